"""SquashFS images for the tests: ours, and mksquashfs' own with any options."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash

import rankup
from rankup.data.containers.squashfs import Buffer, indexed, members, write
from rankup.data.index import Field, Index, Split, Strings
from rankup.data.spans import Spans
from rankup.data.stage.mount import release

from ...slurm.fixtures import require

BLOCK = 1 << 20


def needs_tools() -> None:
    """Skip where squashfs-tools are missing; in CI fail."""
    missing = [name for name in ("mksquashfs", "unsquashfs") if shutil.which(name) is None]
    require(f"no {' and no '.join(missing)}" if missing else "", os.environ)


def needs_fuse() -> None:
    """Skip where no image can be mounted; in CI fail."""
    missing = "" if Path("/dev/fuse").exists() else "no /dev/fuse"
    require(missing or ("" if shutil.which("squashfuse") else "no squashfuse"), os.environ)


@pytest.fixture
def unmounted() -> Iterator[None]:
    """Nothing stays mounted behind a test."""
    yield
    release()


def fill(root: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with these files."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def odd_files(block: int) -> dict[str, bytes]:
    """Class folders whose files lie in an image in every way there is."""
    draw = random.Random(7)
    noise = draw.randbytes(3 * block + 17)
    return {
        "train/a/one.bin": b"1",
        "train/a/empty.bin": b"",
        "train/a/noise.bin": noise,
        "train/a/same as noise.bin": noise,
        "train/a/full.bin": noise[: 2 * block],
        "train/a/soft.bin": b"soft" * (block // 2),
        "train/b/zeros.bin": bytes(3 * block),
        "train/b/zeros and tail.bin": bytes(2 * block) + b"tail",
        "train/b/hole.bin": noise[:block] + bytes(block) + noise[:99],
        "train/b/ünï ©ode 名.bin": b"name" * 100,
        "train/b/deep/er/down.bin": noise[5:90],
        "val/a/one.bin": noise[:1000],
        "val/b/one.bin": noise[1000:3000],
        **{f"val/b/small {number}.bin": b"%d" % number * 300 for number in range(40)},
    }


def mksquashfs(folder: Path, out: Path, *options: str) -> Path:
    """An image of a folder, as mksquashfs makes it."""
    needs_tools()
    command = ["mksquashfs", str(folder), str(out), "-noappend", "-quiet", "-no-progress"]
    subprocess.run([*command, *options], check=True, timeout=120, capture_output=True)
    return out


def contents(path: Path, index: Index | None = None) -> dict[str, bytes]:
    """All samples of a lone field, by split's name and key, read as a reader does.

    Args:
        index: of ours; without one the image is opened as one of others.
    """
    if index is None:
        needs_fuse()
        with rankup.data.open(path) as samples:
            return {samples.path(row): bytes(samples.read(row)) for row in range(len(samples))}
    spans = Spans(path, index.files, index.sizes, "pread")
    (field,) = index.fields
    places = zip(field.offset.tolist(), field.length.tolist(), strict=True)
    return {index.path(row): bytes(spans.read(0, *place)) for row, place in enumerate(places)}


def source_of(
    files: Mapping[str, bytes], labels: Sequence[int] | None = None, classes: Sequence[str] = ()
) -> tuple[Index, list[bytes]]:
    """An index of files named `split/key`, and their bytes in its order."""
    names = sorted(files, key=lambda name: (name.split("/")[0], os.fsencode(name)))
    splits, start = [], 0
    for split in sorted({name.split("/")[0] for name in names}):
        stop = start + sum(name.split("/")[0] == split for name in names)
        splits.append(Split(split, start, stop, split))
        start = stop
    data = [files[name] for name in names]
    n = len(names)
    index = Index(
        "files",
        Strings.of([b"somewhere"]),
        tuple(splits),
        Strings.of(os.fsencode(name.split("/", 1)[1]) for name in names),
        (Field("data", np.zeros(n, np.int64), np.array([*map(len, data)], np.int64)),),
        None if labels is None else np.array(labels, np.int64),
        tuple(classes),
    )
    return index, data


def packed(out: Path, files: Mapping[str, bytes], processors: int = 2, block: int = BLOCK) -> Index:
    """Our image of files named `split/key`."""
    needs_tools()
    index, data = source_of(files)
    files_of = members(index, lambda _, row: pieces(data[row]))
    write(files_of, out, block=block, processors=processors)
    hashes = np.array([[xxhash.xxh3_64_intdigest(one) for one in data]], np.uint64)
    return indexed(index, out, hashes)


def pieces(data: bytes, size: int = 300_000) -> Iterator[Buffer]:
    """Bytes in pieces, each of another type."""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        yield (piece, bytearray(piece), memoryview(piece))[start // size % 3]


def tree(root: Path) -> dict[str, bytes]:
    """All files of a folder but hidden ones, by path."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def photos(data_root: Path | None, count: int = 60) -> dict[str, bytes]:
    """Photos of caltech10, or noise in its place, as `split/class/name`."""
    if data_root is not None and (data_root / "caltech10").is_dir():
        root = data_root / "caltech10"
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        step = max(1, len(paths) // count)
        return {str(path.relative_to(root)): path.read_bytes() for path in paths[::step]}
    draw = random.Random(3)
    return {
        f"{split}/c{number % 5}/{number}.jpg": draw.randbytes(draw.randint(0, 40_000))
        for split in ("train", "val")
        for number in range(count // 2)
    }


def same(found: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> None:
    """Fail with names where bytes differ: pytest would compare megabytes."""
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name] != wanted[name]] == []


def refused(paths: Iterable[Path]) -> None:
    """Make sure that nothing is left where something was refused."""
    left = [path for path in paths if path.exists()]
    if left:
        pytest.fail(f"{left} is still there")
