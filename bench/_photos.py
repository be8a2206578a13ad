"""Photos to pack and to read, the course's two formats, and the writers shown beside rankup's.

As a program, `_photos.py WRITER SOURCE OUT`: writes all photos of a folder of class folders with
one of `WRITERS`, in this one process, and prints the seconds that took, without imports.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import common

_ROOM = 10 << 30  # `read.py` has seven containers and one cache beside the photos
_MEAN = 110_000  # bytes of a photo of ImageNet


def data_root() -> Path | None:
    """Return the folder of real data, as the tests find it."""
    root = Path(os.environ.get("RANKUP_DATA") or common.ROOT.parent / "shared" / "data")
    return root if root.is_dir() else None


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a folder, in memory where that is possible: else the disk is what is measured."""
    memory = Path("/dev/shm")
    fits = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="rankup-bench-", dir=memory if fits else None) as name:
        print(f"in {'memory' if fits else 'a folder on disk'}\n")
        yield Path(name)


def make(folder: Path, number: int) -> str:
    """Fill `folder` with class folders of photos, no two alike; return what they are in words.

    Copies of real photos get a comment, so that no writer finds the same one twice.
    """
    root = data_root()
    real = sorted((root / "imagenet-sample").rglob("*.JPEG")) if root else []
    draw = random.Random(0)
    for k in range(number):
        if real:
            path = real[k % len(real)]
            data, wnid = path.read_bytes(), path.parent.name
        else:
            data, wnid = _random_photo(draw), f"n{k % 100:08d}"
        comment = b"\xff\xfe" + struct.pack(">H", 10) + b"%08d" % k
        target = folder / "train" / wnid / f"{wnid}_{k:06d}.JPEG"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data[:2] + comment + data[2:])
    return "copies of imagenet-sample's photos" if real else "random bytes in the shape of a JPEG"


def _random_photo(draw: random.Random) -> bytes:
    """Return start, frame and scan headers, noise, end."""
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 375, 500, 3) + b"\1\x22\0\2\x11\1\3\x11\1"
    scan = b"\xff\xda" + struct.pack(">HB", 12, 3) + b"\1\0\2\x11\3\x11\0\x3f\0"
    noise = draw.randbytes(int(draw.gauss(_MEAN, _MEAN / 4)) % (4 * _MEAN))
    return b"\xff\xd8" + frame + scan + noise.replace(b"\xff", b"\xfe") + b"\xff\xd9"


def listed(folder: Path) -> list[tuple[Path, int]]:
    """Return path and label of each photo, in the order of rankup's containers."""
    paths = sorted((folder / "train").rglob("*.JPEG"), key=lambda path: os.fsencode(path))
    classes = {name: k for k, name in enumerate(sorted({path.parent.name for path in paths}))}
    return [(path, classes[path.parent.name]) for path in paths]


def course_hdf5(photos: list[tuple[Path, int]], out: Path) -> None:
    """Write as the course's `save_imagenet_files.py`: variable length, each photo a list first."""
    import numpy as np

    _vlen_hdf5(photos, out, lambda data: np.array(list(data), np.uint8))


def course_hdf5_quick(photos: list[tuple[Path, int]], out: Path) -> None:
    """Write the same file without the detour over a list."""
    import numpy as np

    _vlen_hdf5(photos, out, lambda data: np.frombuffer(data, np.uint8))


def _vlen_hdf5(photos: list[tuple[Path, int]], out: Path, array: Callable[[bytes], object]) -> None:
    import h5py
    import numpy as np

    with h5py.File(out, "w") as file:
        group = file.create_group("train")
        images = group.create_dataset("images", (len(photos),), h5py.vlen_dtype(np.uint8))
        targets = group.create_dataset("targets", (len(photos),), np.int16)
        for k, (path, label) in enumerate(photos):
            images[k] = array(path.read_bytes())
            targets[k] = label


def course_arrow(photos: list[tuple[Path, int]], out: Path) -> None:
    """Write Arrow as the course does: a record batch for each photo."""
    import pyarrow as pa

    schema = pa.schema([("image_data", pa.binary()), ("label", pa.uint16())])
    with pa.OSFile(str(out), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for path, label in photos:
            columns = [pa.array([path.read_bytes()], pa.binary()), pa.array([label], pa.uint16())]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def hugging_face(photos: list[tuple[Path, int]], out: Path) -> None:
    """Write by `datasets`: from a generator, then `save_to_disk`, which is what users call."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {"image": datasets.Value("binary"), "label": datasets.Value("int64")}
    )
    made = datasets.Dataset.from_generator(
        _rows,
        features=features,
        cache_dir=str(out.with_name(f"{out.name}.cache")),
        gen_kwargs={"photos": photos},
    )
    made.save_to_disk(str(out))


def _rows(photos: list[tuple[Path, int]]) -> Iterator[dict[str, object]]:
    for path, label in photos:
        yield {"image": path.read_bytes(), "label": label}


def web_dataset(photos: list[tuple[Path, int]], out: Path) -> None:
    """Write by WebDataset's `ShardWriter`."""
    import webdataset

    out.mkdir()
    pattern = str(out / "train-%06d.tar")
    with webdataset.ShardWriter(pattern, maxsize=1 << 30, verbose=0) as writer:
        for path, label in photos:
            writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": label})


def has_writer(name: str) -> bool:
    """Return True if the modules of a writer are installed; otherwise print that it is skipped."""
    missing = [module for module in IMPORTS[name] if find_spec(module) is None]
    if missing:
        print(f"bench: {', '.join(missing)} not installed; skipped: {name}", flush=True)
    return not missing


WRITERS: dict[str, Callable[[list[tuple[Path, int]], Path], None]] = {
    "course_hdf5": course_hdf5,
    "course_hdf5_quick": course_hdf5_quick,
    "course_arrow": course_arrow,
    "hugging_face": hugging_face,
    "web_dataset": web_dataset,
}
IMPORTS: dict[str, tuple[str, ...]] = {
    "course_hdf5": ("h5py", "numpy"),
    "course_hdf5_quick": ("h5py", "numpy"),
    "course_arrow": ("pyarrow",),
    "hugging_face": ("datasets",),
    "web_dataset": ("webdataset",),
}


def main() -> None:
    name, source, out = sys.argv[1:]
    photos = listed(Path(source))
    for module in IMPORTS[name]:
        importlib.import_module(module)
    start = time.perf_counter()
    WRITERS[name](photos, Path(out))
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
