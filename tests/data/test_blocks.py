"""Hashes of the bytes around the samples: every byte of no sample is in one block."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankup.data import verified
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.verified import Blocks


def _index(spans: list[tuple[int, int, int]], sizes: list[int], fields: int = 1) -> Index:
    """Return an index of (file, offset, length) of each sample, given to the fields in turn."""
    n = len(spans) // fields
    columns = np.array(spans[: n * fields], np.int64).reshape(n, fields, 3)
    return Index(
        "flat",
        Strings.of([b"%d" % number for number in range(len(sizes))]),
        (Split("train", 0, n),),
        Strings.of([b"%d" % row for row in range(n)]),
        tuple(
            Field(
                f"f{number}",
                columns[:, number, 1].copy(),
                columns[:, number, 2].copy(),
                columns[:, number, 0].astype(np.uint32),
            )
            for number in range(fields)
        ),
        sizes=np.array(sizes, np.int64),
    )


@pytest.mark.parametrize("seed", range(12))
def test_each_byte_of_no_sample_is_in_one_block(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(verified, "BLOCK", draw.choice([7, 16, 1000]))
    files, fields = draw.randint(1, 3), draw.randint(1, 2)
    spans, sizes = [], [draw.randint(0, 5) for _ in range(files)]
    for _ in range(draw.choice([0, 1, 7, 60])):
        file, length = draw.randrange(files), draw.choice([0, 0, 1, 5, 40])
        spans.append((file, sizes[file], length))
        sizes[file] += length + draw.choice([0, 0, 3])
    draw.shuffle(spans)
    index = _index(spans, sizes, fields)
    for file, size in enumerate(sizes):
        (tmp_path / str(file)).write_bytes(draw.randbytes(size))
    taken = [np.zeros(size, np.bool_) for size in sizes]
    for field in index.fields:
        assert field.file is not None
        for file, offset, length in zip(field.file, field.offset, field.length, strict=True):
            taken[file][offset : offset + length] = True
    of = Blocks(index, tmp_path)
    assert len(of) == sum(-(-size // verified.BLOCK) for size in sizes)
    before = of.hashes(0, len(of))
    first = 0
    for file, size in enumerate(sizes):
        path = tmp_path / str(file)
        data = bytearray(path.read_bytes())
        for at in range(size):
            data[at] ^= 1
            path.write_bytes(data)
            data[at] ^= 1
            changed = np.flatnonzero(of.hashes(0, len(of)) != before).tolist()
            assert changed == ([] if taken[file][at] else [first + at // verified.BLOCK])
        path.write_bytes(data)
        first += -(-size // verified.BLOCK)


def test_samples_may_share_bytes_and_a_block_names_those_in_it(tmp_path: Path) -> None:
    index = _index([(0, 4, 6), (0, 4, 6), (0, 5, 2), (0, 12, 0)], [20])
    (tmp_path / "0").write_bytes(bytes(range(20)))
    of = Blocks(index, tmp_path)
    before = of.hashes(0, 1)
    (tmp_path / "0").write_bytes(bytes([*range(4), *[0] * 6, *range(10, 20)]))
    assert of.hashes(0, 1) == before
    assert of.name(0) == ("bytes of no sample in 0 between 0 and 20, around train/0 to train/3")
    alone = Blocks(replace(index, fields=()), tmp_path)
    assert alone.name(0) == "bytes of no sample in 0 between 0 and 20"
