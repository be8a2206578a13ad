"""Samples for the tests of containers, packed as the engine does it, and read back by the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import xxhash

from rankup.data.containers import module
from rankup.data.index import Field, Index, Split, Strings, data_path
from rankup.data.indexes import inconsistency
from rankup.data.pack.layout import Layout, Shape, plan
from rankup.data.spans import Spans

Values = Sequence[bytes] | npt.NDArray[np.generic]


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


def raw(column: Values) -> Sequence[bytes]:
    """The bytes of each sample."""
    if isinstance(column, np.ndarray):
        return [column[row : row + 1].tobytes() for row in range(len(column))]
    return column


def index_of(
    fields: Mapping[str, Values],
    splits: Mapping[str, int],
    keys: Sequence[bytes] | None = None,
    labels: Sequence[int] | None = None,
    classes: Sequence[str] = (),
) -> Index:
    """What a scan of these would be; where they lie does not matter to a layout."""
    n = sum(splits.values())
    spans, start = [], 0
    for name, count in splits.items():
        spans.append(Split(name, start, start + count, name))
        start += count
    made = []
    for name, column in fields.items():
        length = np.array([len(value) for value in raw(column)], np.int64).reshape(n)
        one = Field(name, np.zeros(n, np.int64), length)
        if isinstance(column, np.ndarray):
            one = replace(one, dtype=column.dtype.str, shape=column.shape[1:])
        made.append(one)
    return Index(
        "files",
        Strings.of([b"nowhere"]),
        tuple(spans),
        Strings.of(keys if keys is not None else [b"%06d.bin" % row for row in range(n)]),
        tuple(made),
        None if labels is None else np.array(labels, np.int64),
        tuple(classes),
    )


def of_samples(splits: Mapping[str, Sequence[Sample]]) -> tuple[Index, dict[str, Values]]:
    """Samples of one field, with labels of three classes, and their bytes."""
    every = [one for part in splits.values() for one in part]
    fields: dict[str, Values] = {"data": [one.values[0] for one in every]}
    counts = {name: len(part) for name, part in splits.items()}
    keys, labels = [one.key for one in every], [one.label for one in every]
    return index_of(fields, counts, keys, labels, ("a", "b", "c")), fields


def pack(container: str, root: Path, source: Index, fields: Mapping[str, Values]) -> Layout:
    """Write a container as the engine does, unit by unit, the last one first."""
    layout = plan(container, source, Shape())
    assert inconsistency(layout.index) == ""
    if container != "hdf5":
        root.mkdir()
    layout = layout.begin(root)
    hashes = fill(layout, root, fields, reversed(range(len(layout.units) - 1)))
    layout.finish(root, hashes)
    paths = [data_path(root, layout.index.files, n) for n in range(len(layout.index.files))]
    assert [path.stat().st_size for path in paths] == layout.sizes.tolist()
    return layout


def fill(
    layout: Layout, root: Path, fields: Mapping[str, Values], units: Iterable[int]
) -> npt.NDArray[np.uint64]:
    """Write units, each byte once, and give the hashes of all samples."""
    index = layout.index
    paths = [data_path(root, index.files, number) for number in range(len(index.files))]
    written = [np.zeros(path.stat().st_size, np.bool_) for path in paths]
    hashes = np.zeros((len(fields), len(index)), np.uint64)

    def put(file: int, offset: int, data: bytes) -> None:
        assert 0 <= offset <= len(written[file]) - len(data)
        assert not written[file][offset : offset + len(data)].any(), "written twice"
        written[file][offset : offset + len(data)] = True
        with paths[file].open("r+b") as out:
            out.seek(offset)
            out.write(data)

    contents = [raw(column) for column in fields.values()]
    for unit in units:
        start, stop = layout.units[unit : unit + 2].tolist()
        for piece in layout.before(start, stop):
            put(*piece)
        for number, (one, column) in enumerate(zip(index.fields, contents, strict=True)):
            for row in range(start, stop):
                assert one.length[row] == len(column[row])
                file = 0 if one.file is None else int(one.file[row])
                put(file, int(one.offset[row]), column[row])
                hashes[number, row] = xxhash.xxh3_64_intdigest(column[row])
        for piece in layout.after(start, stop, hashes[:, start:stop]):
            put(*piece)
    return hashes


def read(index: Index, root: Path) -> list[Sample]:
    """All samples through the index: by their place, or the format's fallback."""
    assert inconsistency(index) == ""
    labels = [-1] * len(index) if index.labels is None else index.labels.tolist()
    columns = [values(root, index, one.name) for one in index.fields]
    rows = zip(*columns, strict=True) if columns else ()
    return [Sample(*one) for one in zip(index.keys, labels, rows, strict=True)]


def values(root: Path, index: Index, field: str | None = None) -> list[bytes]:
    """The bytes of a field of all samples; without a name of the first one."""
    one = index.field(field)
    spans = Spans(root, index.files, index.sizes, "pread")
    rest = module(index.container).fallback(index, root) if (one.offset < 0).any() else None
    found = []
    for row, (offset, length) in enumerate(
        zip(one.offset.tolist(), one.length.tolist(), strict=True)
    ):
        if rest is not None and offset < 0:
            parts = list(rest.chunks(one.name, ~offset))
            assert all(memoryview(part).format == "B" for part in parts)  # fits a bytearray
            value = b"".join(map(bytes, parts))
        else:
            value = bytes(spans.read(0 if one.file is None else int(one.file[row]), offset, length))
        assert len(value) == length
        found.append(value)
    return found


def course(path: Path, splits: Mapping[str, Sequence[tuple[bytes, int]]]) -> None:
    """An HDF5 file as the course writes it: `images` of variable length, `targets` int16."""
    with h5py.File(path, "w") as file:
        for split, photos in splits.items():
            group = file.create_group(split)
            kind = h5py.vlen_dtype(np.dtype("uint8"))
            images = group.create_dataset("images", (len(photos),), dtype=kind)
            targets = group.create_dataset("targets", (len(photos),), dtype=np.int16)
            for row, (data, label) in enumerate(photos):
                images[row] = np.frombuffer(data, np.uint8)
                targets[row] = label
