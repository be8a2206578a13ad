"""Each codec: what it loses at most, its size in bytes, and what becomes of a NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.runtime.compress.codecs import Codec, Half, Int8, TopK, Whole, largest, make
from rankup.runtime.compress.names import parse

CODECS = [Whole(), Half(), Int8(), TopK(0.01), TopK(0.3), TopK(1.0)]
EVERY = pytest.mark.parametrize("codec", CODECS, ids=str)
SIZES = (0, 1, 257)
TINY = torch.finfo(torch.float32).tiny


def floats(most: float) -> Any:
    return st.lists(st.floats(-most, most, width=32), min_size=0, max_size=600).map(torch.tensor)


def around(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    data = codec.encode(values)
    assert data.dtype == torch.uint8
    assert data.shape == (*values.shape[:-1], codec.size(values.shape[-1]))
    found = codec.decode(data, values.shape[-1])
    assert found.dtype == torch.float32
    assert found.shape == values.shape
    return found


@EVERY
@pytest.mark.parametrize("n", SIZES)
def test_shapes(codec: Codec, n: int) -> None:
    values = torch.randn(n)
    found = around(codec, values)
    assert torch.equal(found, around(codec, values)), "the same each time"
    # Rows are messages of their own; a message may start anywhere in a buffer.
    rows = torch.stack([values, -2 * values, torch.zeros(n)])
    data = codec.encode(rows)
    for row, message in zip(rows, data, strict=True):
        assert torch.equal(codec.decode(message, n), codec.decode(codec.encode(row), n))
    odd = torch.cat([torch.zeros(1, dtype=torch.uint8), data[0]])[1:]
    assert torch.equal(codec.decode(odd, n), found)
    assert torch.equal(codec.decode(data, n)[0], found)


@pytest.mark.parametrize(
    ("codec", "n", "size"),
    [
        (Whole(), 10, 40),
        (Half(), 10, 20),
        (Int8(), 256, 4 + 256),
        (Int8(), 257, 8 + 257),
        (TopK(0.01), 1000, 10 * 8),
        (TopK(0.01), 1001, 11 * 8),
        (TopK(0.07), 100, 7 * 8),
        (TopK(0.01), 1, 8),
        (TopK(0.01), 0, 0),
    ],
)
def test_size(codec: Codec, n: int, size: int) -> None:
    assert codec.size(n) == size


@given(floats(2.0**127))
def test_whole_is_the_same(values: torch.Tensor) -> None:
    assert torch.equal(around(Whole(), values), values)


@given(floats(2.0**127))
def test_half_is_off_by_a_256th(values: torch.Tensor) -> None:
    error = (around(Half(), values).double() - values.double()).abs()
    assert (error <= 2**-8 * values.abs().double() + TINY).all()


@given(floats(2.0**127))
def test_int8_is_off_by_half_a_step(values: torch.Tensor) -> None:
    found = around(Int8(), values)
    for block, its in zip(values.split(256), found.split(256), strict=True):
        if len(block):
            most = float(block.abs().max())
            error = (its.double() - block.double()).abs().max()
            assert error <= most / 254 * (1 + 1e-5) or most <= 127 * TINY


@given(floats(2.0**127), st.sampled_from([0.01, 0.1, 0.3, 1.0]))
def test_topk_sends_the_largest_as_they_are(values: torch.Tensor, fraction: float) -> None:
    codec = TopK(fraction)
    found, k = around(codec, values), codec.count(len(values))
    sent = found != 0
    assert torch.equal(found[sent], values[sent])
    expected = values.abs().sort(descending=True).values[:k]
    assert torch.equal(found.abs().sort(descending=True).values[:k], expected)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 5))
def test_the_largest_are_found_among_few(n: int, k: int, seed: int) -> None:
    k = min(n, k)
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 50, (2, n), generator=draw).float()  # with many that are equal
    places = largest(values, k)
    assert all(len(set(row.tolist())) == k for row in places)
    found = values.gather(-1, places).sort(descending=True).values
    assert torch.equal(found, values.sort(descending=True).values[:, :k])


@EVERY
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-42, -1e-40, 1.5e-36, 3.3e38])
def test_the_ends_of_the_range(codec: Codec, value: float) -> None:
    """Nothing finite becomes NaN, and zeros stay zeros."""
    values = torch.full((300,), value)
    values[1::2] = 0
    found = around(codec, values)
    assert found.isfinite().all()
    assert (found.abs() <= values.abs() * (1 + 2**-8) + TINY).all()


@EVERY
@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
@pytest.mark.parametrize("n", [1, 257])
@pytest.mark.parametrize("place", ["last", "all but one"])
def test_what_is_not_finite_is_reported(codec: Codec, bad: float, n: int, place: str) -> None:
    """Also where there are more than topk sends, beside values however large."""
    values = torch.linspace(-3e38, 3e38, n)
    where = {"first": slice(0, 1), "last": slice(n - 1, n), "all but one": slice(0, max(1, n - 1))}
    values[where.get(place, slice(None))] = bad
    assert not around(codec, values).isfinite().all()


@given(floats(1024.0), st.sampled_from(CODECS), st.data())
def test_a_nan_anywhere_is_reported(values: torch.Tensor, codec: Codec, data: Any) -> None:
    if len(values):
        values[data.draw(st.integers(0, len(values) - 1))] = torch.nan
        assert not around(codec, values).isfinite().all()


def test_infinity_in_int8_is_reported_by_its_own_block_alone() -> None:
    values = torch.ones(600)
    values[300] = torch.inf
    blocks = around(Int8(), values).split(256)
    assert [bool(block.isfinite().any()) for block in blocks] == [True, False, True]


def test_made_of_a_compression() -> None:
    names = ("none", "bf16", "int8", "topk:0.3")
    assert [make(parse(name)) for name in names] == [Whole(), Half(), Int8(), TopK(0.3)]
    with pytest.raises(ValueError, match="powersgd is for the gradients of ddp"):
        make(parse("powersgd"))


def test_places_that_do_not_fit_are_refused() -> None:
    values = torch.empty(1).expand(2**31)
    with pytest.raises(ValueError, match="2147483647"):
        TopK(0.01).encode(values)
