"""HDF5 files for the tests: ours, filled in as the engine does, and the course's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import xxhash

from rankup.data.containers import module
from rankup.data.containers.hdf5_layout import plan
from rankup.data.index import Field, Index, Split
from rankup.data.pack.layout import Layout, Shape
from rankup.data.spans import Spans
from rankup.data.strings import Strings

Values = Sequence[bytes] | npt.NDArray[np.generic]


def raw(values: Values) -> Sequence[bytes]:
    """The bytes of each sample."""
    if isinstance(values, np.ndarray):
        return [values[row : row + 1].tobytes() for row in range(len(values))]
    return values


def index_of(
    fields: Mapping[str, Values],
    splits: Mapping[str, int],
    keys: Sequence[bytes] | None = None,
    labels: Sequence[int] | None = None,
    classes: Sequence[str] = (),
) -> Index:
    """A source whose samples lie nowhere; only their lengths are known."""
    n = sum(splits.values())
    spans, start = [], 0
    for name, count in splits.items():
        spans.append(Split(name, start, start + count, name))
        start += count
    made = []
    for name, values in fields.items():
        offset = np.zeros(n, np.int64)
        if isinstance(values, np.ndarray):
            one = values[:1].nbytes if n else 0
            length = np.full(n, one, np.int64)
            made.append(Field(name, offset, length, dtype=values.dtype.str, shape=values.shape[1:]))
        else:
            length = np.array([len(value) for value in values], np.int64)
            made.append(Field(name, offset, length.reshape(n)))
    return Index(
        "files",
        Strings.of([b"nowhere"]),
        tuple(spans),
        Strings.of(keys if keys is not None else [b"%06d.bin" % row for row in range(n)]),
        tuple(made),
        None if labels is None else np.array(labels, np.int64),
        tuple(classes),
    )


def fill(layout: Layout, root: Path, fields: Mapping[str, Values], units: Sequence[int]) -> None:
    """Write units, each by position and with its hashes, as the engine does."""
    descriptor = os.open(root, os.O_WRONLY)
    try:
        for unit in units:
            start, stop = int(layout.units[unit]), int(layout.units[unit + 1])
            hashes = np.zeros((len(fields), stop - start), np.uint64)
            pieces = list(layout.before(start, stop))
            for number, (field, values) in enumerate(
                zip(layout.index.fields, fields.values(), strict=True)
            ):
                for row, data in enumerate(raw(values)[start:stop], start):
                    assert field.length[row] == len(data)
                    os.pwrite(descriptor, data, int(field.offset[row]))
                    hashes[number, row - start] = xxhash.xxh3_64_intdigest(data)
            for piece in [*pieces, *layout.after(start, stop, hashes)]:
                os.pwrite(descriptor, piece.data, piece.offset)
    finally:
        os.close(descriptor)


def pack(root: Path, source: Index, fields: Mapping[str, Values]) -> Layout:
    """A whole file of ours."""
    layout = plan(source, Shape()).begin(root)
    fill(layout, root, fields, range(len(layout.units) - 1))
    layout.finish(root, np.zeros((len(fields), len(source)), np.uint64))
    return layout


def samples(root: Path, index: Index, field: str | None = None) -> list[bytes]:
    """All samples of a field, by span or by fallback."""
    one = index.field(field)
    spans = Spans(root, index.files, index.sizes, "pread")
    rest = module("hdf5").fallback(index, root)
    found = []
    for offset, length in zip(one.offset.tolist(), one.length.tolist(), strict=True):
        if offset < 0:
            found.append(b"".join(rest.chunks(one.name, ~offset)))
            assert length in (-1, len(found[-1]))
        else:
            found.append(bytes(spans.read(0, offset, length)))
    return found


def course(path: Path, splits: Mapping[str, Sequence[tuple[bytes, int]]]) -> None:
    """A file as the course writes it: `images` of variable length, `targets` int16."""
    with h5py.File(path, "w") as file:
        for split, photos in splits.items():
            group = file.create_group(split)
            kind = h5py.vlen_dtype(np.dtype("uint8"))
            images = group.create_dataset("images", (len(photos),), dtype=kind)
            targets = group.create_dataset("targets", (len(photos),), dtype=np.int16)
            for row, (data, label) in enumerate(photos):
                images[row] = np.frombuffer(data, np.uint8)
                targets[row] = label
