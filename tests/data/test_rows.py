"""Rows of arrays, in any order, by any way of reading."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankup.data import Loader, PackedDataset, Samples, open
from rankup.data.making import BadSample
from rankup.data.rows import gather
from rankup.data.spans import Spans

VALUES = np.random.default_rng(0).standard_normal((60, 5, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits of an array that lies in one piece, of a compressed one, and of one of big-endian."""
    path = tmp_path_factory.mktemp("rows") / "arrays.h5"
    with h5py.File(path, "w") as file:
        for name, part in (("train", VALUES[:40]), ("val", VALUES[40:])):
            group = file.create_group(name)
            group["plain"] = part
            group.create_dataset("packed", data=part, compression="gzip", chunks=(7, 5, 3))
            group["foreign"] = part.astype(">f4")
            group["labels"] = np.arange(len(part)) % 4
    return path


@cache
def opened(arrays: Path, how: Literal["mmap", "pread"]) -> Samples:
    return open(arrays, how=how)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 19), max_size=30) | st.just(list(range(3, 17))),
    field=st.sampled_from(["plain", "packed", "foreign", None]),
    how=st.sampled_from(["mmap", "pread"]),
)
def test_rows_are_those_of_the_array(
    arrays: Path, rows: list[int], field: str | None, how: Literal["mmap", "pread"]
) -> None:
    samples = opened(arrays, how).split("val")
    out = np.full((len(rows), 5, 3), np.nan, np.float32)
    gather(samples, np.array(rows, np.int64), field, out)
    assert np.array_equal(out, VALUES[40:][rows])


def test_rows_that_there_are_not(arrays: Path) -> None:
    samples = open(arrays).split("val")
    for row in (-1, 20):
        with pytest.raises(IndexError, match="outside the 20"):
            gather(samples, np.array([0, row]), "plain", np.empty((2, 5, 3), np.float32))


def test_consecutive_rows_are_one_read(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    pread = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        reads.append(length)
        return pread(descriptor, length, offset)

    samples = open(arrays, how="pread")
    monkeypatch.setattr(os, "pread", counted)
    out = np.empty((15, 5, 3), np.float32)
    gather(samples, np.r_[5:15, 20:25], "plain", out)
    assert reads == [10 * 60, 5 * 60]
    assert np.array_equal(out, VALUES[np.r_[5:15, 20:25]])


@pytest.mark.parametrize("field", ["plain", "packed", "foreign"])
def test_a_data_set_of_arrays(arrays: Path, field: str) -> None:
    train = PackedDataset(arrays, "train", field=field).subset(range(39, -1, -1))
    loader = Loader(train, 16, shuffle=False, workers=0, rank=0, world_size=1)
    batches = list(loader)
    assert [len(inputs) for inputs, _ in batches] == [16, 16, 8]
    joined = np.concatenate([inputs.numpy() for inputs, _ in batches])
    assert np.array_equal(joined, VALUES[39::-1])
    assert np.concatenate([labels for _, labels in batches]).tolist() == [
        row % 4 for row in range(39, -1, -1)
    ]
    item, label = train[3]
    assert np.array_equal(item, VALUES[36])
    assert label == 0


def test_a_row_that_cannot_be_read_is_named(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = PackedDataset(arrays, "train", field="plain")
    at = train.samples.index.field("plain").offset[7]
    read = Spans.read

    def broken(self: Spans, file: int, offset: int, length: int) -> memoryview | bytes:
        if offset <= at < offset + length:
            raise OSError(5, "Input/output error")
        return read(self, file, offset, length)

    monkeypatch.setattr(Spans, "read", broken)
    train.samples._read = train.samples._spans.read
    with pytest.raises(BadSample, match=r"sample 7\).*Input/output error"):
        train.__getitems__(range(40))
