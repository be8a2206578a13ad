"""Transforms that draw from the global generators."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from rankup.base.errors import UserError
from rankup.data import transforms
from rankup.data.photos import seeded


def draws(data: bytes) -> tuple[bytes, float, float, float]:
    return data, random.random(), float(np.random.rand()), float(torch.rand(1))


def fails(data: bytes) -> None:
    draws(data)
    raise ValueError("a bad sample")


def state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


def test_a_sample_is_the_same_whatever_was_drawn_before() -> None:
    transform = seeded(draws)
    first = transform(b"a", transforms.rng(1, 7))
    draws(b"")
    assert transform(b"a", transforms.rng(1, 7)) == first
    others = transform(b"a", transforms.rng(1, 8)), transform(b"a", transforms.rng(2, 7))
    for other in others:
        assert all(mine != its for mine, its in zip(first[1:], other[1:], strict=True))
    assert len({*first[1:]}) == 3


def test_the_generators_are_as_before() -> None:
    before = state()
    seeded(draws)(b"a", transforms.rng(1, 7))
    assert state() == before
    with pytest.raises(ValueError, match="a bad sample"):
        seeded(fails)(b"a", transforms.rng(1, 7))
    assert state() == before


def test_not_in_threads() -> None:
    transform = seeded(draws)
    assert not transform.releases_gil
    raised: list[BaseException] = []

    def work() -> None:
        try:
            transform(b"a", transforms.rng(1, 7))
        except UserError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert "kind='processes'" in str(raised[0])
