"""Error feedback: nothing is lost, and a NaN does not stay."""

from __future__ import annotations

import pytest
import torch

from rankup.runtime.compress.codecs import Codec, Half, Int8, TopK, Whole
from rankup.runtime.compress.feedback import Feedback

EVERY = pytest.mark.parametrize("codec", [Whole(), Half(), Int8(), TopK(0.01)], ids=str)


@EVERY
@pytest.mark.parametrize("n", [1, 257, 2000])
def test_what_was_sent_and_what_is_kept_is_what_was_given(codec: Codec, n: int) -> None:
    draw = torch.Generator().manual_seed(n)
    feedback, given, sent = Feedback(), torch.zeros(n).double(), torch.zeros(n).double()
    for round_ in range(200):
        values = torch.randn(n, generator=draw) * 10.0 ** (round_ % 5 - 2)
        data, decoded = feedback.pack(values, codec)
        assert torch.equal(decoded, codec.decode(data, n))
        given += values
        sent += decoded
    assert feedback.residual is not None
    torch.testing.assert_close(sent + feedback.residual, given, rtol=0, atol=1e-2)


def test_what_is_small_is_sent_in_the_end() -> None:
    values = torch.ones(100)
    values[0] = 1000.0
    feedback, codec = Feedback(), TopK(0.01)
    sent = torch.zeros(100)
    for _ in range(3000):
        sent += feedback.pack(values, codec)[1]
    assert feedback.residual is not None
    assert sent.count_nonzero() > 50
    assert feedback.residual.abs().max() < 2500


@EVERY
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_message_that_is_not_finite_changes_nothing(codec: Codec, bad: float) -> None:
    feedback = Feedback()
    feedback.pack(torch.randn(600), codec)
    before = feedback.residual
    assert before is not None
    broken = torch.randn(600)
    broken[::3] = bad
    assert not feedback.pack(broken, codec)[1].isfinite().all()
    assert torch.equal(feedback.residual, before)
    assert feedback.pack(torch.randn(600), codec)[1].isfinite().all()
