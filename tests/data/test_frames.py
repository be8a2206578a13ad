"""Hashes of the bytes around the samples: every byte of a file is looked after once."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rankup.data import frames
from rankup.data.index import Field, Index, Split
from rankup.data.strings import Strings


def _index(spans: list[tuple[int, int, int]], sizes: list[int], fields: int = 1) -> Index:
    """Of (file, offset, length) of each sample, dealt to `fields` fields in turn."""
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


@given(
    seed=st.integers(0, 1 << 32),
    count=st.sampled_from([0, 1, 7, 1023, 1024, 1025, 3000]),
    files=st.integers(1, 3),
    fields=st.integers(1, 2),
)
def test_each_byte_of_no_sample_is_in_one_group(
    seed: int, count: int, files: int, fields: int
) -> None:
    draw = random.Random(seed)
    spans, sizes = [], [draw.randint(0, 5) for _ in range(files)]
    for _ in range(count):
        file = draw.randrange(files)
        length = draw.choice([0, 0, 1, 5])
        spans.append((file, sizes[file], length))
        sizes[file] += length + draw.choice([0, 0, 3])
    draw.shuffle(spans)
    index = _index(spans, sizes, fields)
    taken = [np.zeros(size, np.int64) for size in sizes]
    for field in index.fields:
        assert field.file is not None
        for file, offset, length in zip(field.file, field.offset, field.length, strict=True):
            taken[file][offset : offset + length] += 1
    found = frames.frames(index)
    for group in range(len(found)):
        for low, high in found.gaps[found.ends[group] : found.ends[group + 1]]:
            assert found.start[group] <= low < high <= found.stop[group]
            taken[found.file[group]][low:high] += 1
    assert all((one == 1).all() for one in taken)
    # Groups stand side by side, and a sample is between the first and last row of its group.
    for file in range(files):
        mine = np.flatnonzero(found.file == file)
        assert found.start[mine[0]] == 0
        assert found.stop[mine[-1]] == sizes[file]
        assert (found.stop[mine[:-1]] == found.start[mine[1:]]).all()


def test_samples_may_share_bytes(tmp_path: Path) -> None:
    index = _index([(0, 4, 6), (0, 4, 6), (0, 5, 2), (0, 12, 0)], [20])
    (tmp_path / "0").write_bytes(bytes(range(20)))
    found = frames.frames(index)
    assert found.gaps.tolist() == [[0, 4], [10, 12], [12, 20]]
    [one] = frames.hashes(found, tmp_path, index.files, 0, 1)
    assert one == xxhash.xxh3_64_intdigest(bytes([*range(4), *range(10, 20)]))
