"""Tars for the tests: ours, written as the pack engine does, and other people's."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rankup.data.containers.tar_layout import TarLayout
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.pack.layout import Shape, plan

Data = Mapping[str, Sequence[bytes]]


def source(
    keys: Sequence[bytes],
    data: Data,
    labels: Sequence[int] | None = None,
    splits: tuple[Split, ...] = (),
    classes: tuple[str, ...] = (),
    arrays: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
) -> Index:
    """An index of samples that lie nowhere yet."""
    n = len(keys)
    fields = tuple(
        Field(
            name,
            np.zeros(n, np.int64),
            np.array([len(one) for one in values], np.int64),
            None,
            None,
            *(arrays or {}).get(name, ("", ())),
        )
        for name, values in data.items()
    )
    return Index(
        "files",
        Strings.of([b""]),
        splits or (Split("train", 0, n),),
        Strings.of(keys),
        fields,
        None if labels is None else np.array(labels, np.int64),
        classes,
    )


def write(index: Index, data: Data, root: Path, shard: int = 1 << 30) -> TarLayout:
    """Write the samples as the engine does, and check that each byte is written once."""
    root.mkdir(parents=True, exist_ok=True)
    layout = plan("tar", index, Shape(shard))
    assert isinstance(layout, TarLayout)
    layout = layout.begin(root).attach(root)
    units = layout.units.tolist()
    assert units[0] == 0
    assert units[-1] == len(index)
    paths = [root / os.fsdecode(name) for name in layout.index.files]
    spans: list[list[tuple[int, int]]] = [[] for _ in paths]
    files = [path.open("r+b") for path in paths]
    for start, stop in itertools.pairwise(units):
        assert start < stop
        pieces = [(p.file, p.offset, p.data) for p in layout.before(start, stop)]
        for field in layout.index.fields:
            assert field.file is not None
            pieces += [
                (int(field.file[row]), int(field.offset[row]), data[field.name][row])
                for row in range(start, stop)
            ]
        assert not list(layout.after(start, stop, np.zeros((1, stop - start), np.uint64)))
        for file, offset, content in pieces:
            os.pwrite(files[file].fileno(), content, offset)
            spans[file].append((offset, len(content)))
    for file, path, size, covered in zip(files, paths, layout.sizes.tolist(), spans, strict=True):
        file.close()
        at = 0
        for offset, length in sorted(covered):
            assert offset == at
            at += length
        assert size - at >= 1024
        assert size % 10240 == 0
        assert path.stat().st_size == size
    layout.finish(root, np.zeros((len(data), len(index)), np.uint64))
    return layout


def content(index: Index, root: Path, field: str | None = None) -> list[bytes]:
    """The bytes of each sample where the index says that they lie."""
    of = index.field(field)
    result = []
    for row in range(len(index)):
        name = index.files.text(0 if of.file is None else int(of.file[row]))
        with (root / name if name else root).open("rb") as file:
            file.seek(int(of.offset[row]))
            result.append(file.read(int(of.length[row])))
    return result


def foreign(
    path: Path, members: Sequence[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT
) -> Path:
    """A tar as Python's tarfile writes it."""
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
