"""Samples for the tests of Arrow, packed as the engine does it, and read back through the index."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from rankup.data import spans
from rankup.data.containers import arrow_layout, module
from rankup.data.containers.arrow_layout import ArrowLayout
from rankup.data.index import Field, Index, Split
from rankup.data.indexes import inconsistency
from rankup.data.pack.layout import Shape
from rankup.data.strings import Strings


class Sample(NamedTuple):
    """A sample in memory."""

    key: bytes
    label: int
    values: tuple[bytes, ...]


def samples(count: int, seed: int = 0, largest: int = 3000) -> list[Sample]:
    """Samples of one field, of random bytes and lengths (0 among them), in order of their keys."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(0, largest, count)
    return [
        Sample(b"c%d/%06d.bin" % (n % 3, n), n % 3, (draw.bytes(int(size)),))
        for n, size in enumerate(sizes)
    ]


def index_of(
    splits: Mapping[str, Sequence[Sample]],
    *,
    fields: Sequence[tuple[str, str, tuple[int, ...]]] = (("data", "", ()),),
    classes: Sequence[str] = ("a", "b", "c"),
    labels: bool = True,
) -> Index:
    """What a scan of these would be; where they lie does not matter to a layout."""
    every = [one for part in splits.values() for one in part]
    ends = np.cumsum([0, *(len(part) for part in splits.values())]).tolist()
    made = tuple(Split(name, ends[n], ends[n + 1], name) for n, name in enumerate(splits))
    return Index(
        "files",
        Strings.of([b"x"]),
        made,
        Strings.of(one.key for one in every),
        tuple(
            Field(
                name,
                np.zeros(len(every), np.int64),
                np.array([len(one.values[n]) for one in every], np.int64),
                dtype=dtype,
                shape=shape,
            )
            for n, (name, dtype, shape) in enumerate(fields)
        ),
        np.array([one.label for one in every], np.int64) if labels else None,
        tuple(classes),
    )


def pack(root: Path, splits: Mapping[str, Sequence[Sample]], **how: Any) -> ArrowLayout:
    """Write the folder as the engine does, unit by unit, the last one first."""
    every = [one for part in splits.values() for one in part]
    layout = arrow_layout.plan(index_of(splits, **how), Shape())
    assert inconsistency(layout.index) == ""
    root.mkdir()
    layout = layout.begin(root)
    paths = [root / layout.index.files.text(n) for n in range(len(layout.index.files))]
    fields = layout.index.fields
    hashes = np.array(
        [[xxhash.xxh3_64_intdigest(one.values[n]) for one in every] for n in range(len(fields))],
        np.uint64,
    ).reshape(len(fields), len(every))
    handles = [path.open("r+b") for path in paths]
    written = [np.zeros(path.stat().st_size, np.bool_) for path in paths]

    def put(file: int, offset: int, data: bytes) -> None:
        assert offset >= 0
        assert offset + len(data) <= len(written[file])
        assert not written[file][offset : offset + len(data)].any(), "written twice"
        written[file][offset : offset + len(data)] = True
        handles[file].seek(offset)
        handles[file].write(data)

    units = layout.units.tolist()
    for start, stop in reversed(list(itertools.pairwise(units))):
        for piece in layout.before(start, stop):
            put(*piece)
        for row in range(start, stop):
            for n, one in enumerate(fields):
                assert int(one.length[row]) == len(every[row].values[n])
                put(
                    0 if one.file is None else int(one.file[row]),
                    int(one.offset[row]),
                    every[row].values[n],
                )
        for piece in layout.after(start, stop, hashes[:, start:stop]):
            put(*piece)
    for file, handle in enumerate(handles):
        handle.close()
        begin, end = len(layout.columns.head(file)), len(layout.tails[file])
        inside = written[file][begin : len(written[file]) - end]
        assert inside.all(), "bytes that no piece covers"
    layout.finish(root, hashes)
    assert [path.stat().st_size for path in paths] == layout.sizes.tolist()
    return layout


def read(index: Index, root: Path) -> list[Sample]:
    """All samples through the index: by their place, or the format's fallback."""
    assert inconsistency(index) == ""
    source = spans.Spans(root, index.files, index.sizes, "pread")
    other = None
    found = []
    for row in range(len(index)):
        values = []
        for one in index.fields:
            offset, length = int(one.offset[row]), int(one.length[row])
            if offset < 0:
                other = other or module(index.container).fallback(index, root)
                parts = list(other.chunks(one.name, ~offset))
                assert all(memoryview(part).format == "B" for part in parts)  # fits a bytearray
                value = b"".join(map(bytes, parts))
            else:
                file = 0 if one.file is None else int(one.file[row])
                value = bytes(source.read(file, offset, length))
            assert len(value) == length
            values.append(value)
        label = -1 if index.labels is None else int(index.labels[row])
        found.append(Sample(index.keys[row], label, tuple(values)))
    return found
