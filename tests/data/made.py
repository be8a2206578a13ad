"""Packs made by hand: one file per split, an index over it, no format around the samples."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from rankup.data import indexes, stamp
from rankup.data.index import Field, Index, Split, Strings

# key, bytes, label
Sample = tuple[str | bytes, bytes, int]


def samples(count: int, seed: int = 0, most: int = 5000) -> list[Sample]:
    """Samples of random sizes in three classes, the first of them empty."""
    draw = random.Random(seed)
    return [
        (f"c{row % 3}/{row:05}.bin", draw.randbytes(draw.randrange(most) if row else 0), row % 3)
        for row in range(count)
    ]


def pack(
    root: Path,
    splits: Mapping[str, Sequence[Sample]],
    *,
    gap: int = 16,
    classes: Sequence[str] = ("c0", "c1", "c2"),
) -> Index:
    """Write a pack into a new folder, with hashes and ends, as `rankup pack` does."""
    root.mkdir()
    keys: list[bytes] = []
    rows: list[tuple[int, int, int, int]] = []
    files, labels, parts = [], [], []
    for number, (name, members) in enumerate(splits.items()):
        written = bytearray(b"head")
        for key, data, label in members:
            keys.append(key.encode() if isinstance(key, str) else key)
            rows.append((number, len(written), len(data), xxhash.xxh3_64_intdigest(data)))
            labels.append(label)
            written += data + bytes(gap)
        (root / f"{name}.bin").write_bytes(written)
        files.append(f"{name}.bin".encode())
        parts.append(Split(name, len(keys) - len(members), len(keys), name))
    file, offset, length, digest = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    )
    field = Field(
        "data",
        np.array(offset, np.int64),
        np.array(length, np.int64),
        np.array(file, np.uint32),
        np.array(digest, np.uint64),
    )
    index = Index(
        "tar",
        Strings.of(files),
        tuple(parts),
        Strings.of(keys),
        (field,),
        np.array(labels, np.int64),
        tuple(classes),
        np.array([(root / name.decode()).stat().st_size for name in files], np.int64),
    )
    return finished(index, root)


def finished(index: Index, root: Path) -> Index:
    """Complete an index with what tells of damage, and save it at its place."""
    facts = {**index.facts, "ends": stamp.all_ends(index, root), "writer": "rankup test"}
    index = replace(index, facts=facts)
    indexes.save(index, indexes.place(root))
    return index
