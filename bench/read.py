"""Reading of photos at random: `rankup.data.open` against the course's readers.

Claims `read.course.hdf5` and `read.course.arrow`: samples/s of the same photos, each copied to
`bytes`, out of what `rankup pack` has written and out of the course's own files by its own calls:
h5py's `images[i]` of a variable-length data set; `pa.OSFile`, a record batch per photo,
`get_batch(i)` and `as_py()`. Labels and decoding are left out on both sides.

Warm: all files are in memory (the page cache where there is no /dev/shm). One process, one thread;
the contestants take turns in slices, in a new random order each round, over the same random order
of photos. Before that each has shown that it reads the right bytes.

Beside them plain files, HF datasets, and how fast bare `pread` and a map give the same bytes; and
the system calls that a sample costs, which is what a parallel file system charges for, counted by
strace between a short run and a longer one. A map has none there, and page faults instead. What
needs a program or module that is missing is skipped.
"""

from __future__ import annotations

import functools
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import _photos
import pack
from common import (
    Effort,
    claim,
    has_programs,
    machine,
    median,
    paired,
    parse_effort,
    spread,
    table,
    take_turns,
)

Read = Callable[[int], bytes]
CONTAINERS = ("hdf5", "arrow", "tar", "squashfs")
_OPENS = ("open", "openat", "openat2")
_READS = ("read", "pread64", "preadv", "preadv2", "readv")
_SHORT, _LONG = 50, 250  # samples of the two runs under strace


def main() -> None:
    if sys.argv[1:2] == ["--calls"]:
        name, place, count = sys.argv[2:]
        read_some(name, Path(place), int(count))
        return
    effort = parse_effort(__doc__ or "")
    number = 1000 if effort.quick else 10_000
    print(machine())
    with _photos.workplace() as folder:
        kind = _photos.make(folder / "photos", number)
        print(f"{number} photos, {kind}\n", flush=True)
        for line in bench(folder, write(folder), number, effort):
            print(line)


def write(folder: Path) -> list[str]:
    """Write all containers; return the readers whose files are there."""
    source, readers = folder / "photos", list(READERS)
    for container in CONTAINERS:
        reader = f"rankup, {container}"
        if container == "squashfs" and not has_programs(reader, "mksquashfs"):
            readers.remove(reader)
            continue
        (folder / container).mkdir()
        pack.pack(source, container, 2, folder / container)
    for name in ("course_hdf5_quick", "course_arrow", "hugging_face"):
        if name == "hugging_face" and not _photos.has_writer(name):
            readers.remove("HF datasets")
            continue
        (folder / name).mkdir()
        pack.writer(name, source, folder / name)
    shutil.rmtree(folder / "hugging_face" / "photos.cache", ignore_errors=True)
    return readers


def bench(folder: Path, names: Sequence[str], number: int, effort: Effort) -> list[str]:
    """Measure and print everything; return the claim lines."""
    readers = {name: READERS[name](folder) for name in names}
    files = readers["plain files"]
    for row in random.sample(range(number), 20):
        wrong = [name for name, read in readers.items() if read(row) != files(row)]
        if wrong:
            sys.exit(f"bench: photo {row} is not the same out of {wrong}")
    order = random.Random(0).sample(range(number), number)
    seconds = effort.slice_seconds
    rates = take_turns(
        {name: functools.partial(_slice, read, order, seconds) for name, read in readers.items()},
        effort.rounds,
    )
    calls = dict.fromkeys(readers, ("-", "-"))
    if not effort.quick and has_programs("opens and reads per sample", "strace"):
        calls = {name: _calls(name, folder) for name in readers}
    rows = []
    for name, all_ in rates.items():
        quartiles = spread([rate / 1000 for rate in all_], 1) + "k"
        rows.append([name, f"{median(all_):.0f}", quartiles, *calls[name]])
    table(["", "samples/s", "quartiles", "opens", "reads"], rows)
    note = (
        f"{number} photos in random order, in memory, each copied to bytes; one process; median of "
        f"{effort.rounds} slices of {seconds} s; paired "
    )
    lines = []
    for container in ("hdf5", "arrow"):
        ours, course = rates[f"rankup, {container}"], rates[f"the course's {container}"]
        about = note + paired(ours, course, 2)
        name = f"read.course.{container}"
        lines.append(claim(name, median(ours), median(course), "samples/s", about))
    return lines


def _slice(read: Read, order: Sequence[int], seconds: float) -> float:
    """Return samples/s over about that time; the clock is read every 64 samples."""
    at = random.randrange(len(order))
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for k in range(at + done, at + done + 64):
            read(order[k % len(order)])
        done += 64
    return done / passed


def ours(container: str, how: str, folder: Path) -> Read:
    import rankup

    samples = rankup.data.open(folder / container / pack.file_name(container), how=how)
    read = samples.read
    return lambda row: bytes(read(row))


def course_hdf5(folder: Path) -> Read:
    import h5py

    images = h5py.File(folder / "course_hdf5_quick" / "photos", "r")["train/images"]
    return lambda row: images[row].tobytes()


def course_arrow(folder: Path) -> Read:
    import pyarrow as pa

    batches = pa.ipc.open_file(pa.OSFile(str(folder / "course_arrow" / "photos"), "rb"))
    return lambda row: batches.get_batch(row)["image_data"][0].as_py()


def plain_files(folder: Path) -> Read:
    paths = [str(path) for path, _ in _photos.listed(folder / "photos")]

    def read(row: int) -> bytes:
        with open(paths[row], "rb") as file:
            return file.read()

    return read


def hugging_face(folder: Path) -> Read:
    import datasets

    rows = datasets.load_from_disk(str(folder / "hugging_face" / "photos"))
    return lambda row: rows[row]["image"]


def bare_pread(folder: Path) -> Read:
    path, places = _places(folder)
    descriptor, pread = os.open(path, os.O_RDONLY), os.pread

    def read(row: int) -> bytes:
        offset, length = places[row]
        return pread(descriptor, length, offset)

    return read


def bare_map(folder: Path) -> Read:
    path, places = _places(folder)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(row: int) -> bytes:
        offset, length = places[row]
        return mapped[offset : offset + length]

    return read


def _places(folder: Path) -> tuple[Path, list[tuple[int, int]]]:
    """Return offset and length of each photo in our HDF5, as our index has them."""
    import rankup

    path = folder / "hdf5" / pack.file_name("hdf5")
    field = rankup.data.open(path).index.field()
    return path, list(zip(field.offset.tolist(), field.length.tolist(), strict=True))


READERS: Mapping[str, Callable[[Path], Read]] = {
    **{f"rankup, {name}": functools.partial(ours, name, "mmap") for name in CONTAINERS},
    "rankup, hdf5 by pread": functools.partial(ours, "hdf5", "pread"),
    "the course's hdf5": course_hdf5,
    "the course's arrow": course_arrow,
    "plain files": plain_files,
    "HF datasets": hugging_face,
    "limit: bare pread": bare_pread,
    "limit: bare map": bare_map,
}


def read_some(name: str, folder: Path, number: int) -> None:
    """Read so many photos in random order, for `_calls` to count."""
    read = READERS[name](folder)
    for row in random.Random(1).sample(range(_LONG), number):
        read(row)


def _calls(name: str, folder: Path) -> tuple[str, str]:
    """Return calls of `open` and of `read` per sample; `-` where strace is not allowed."""
    short, long = (_traced(name, folder, number) for number in (_SHORT, _LONG))
    if short is None or long is None:
        return "-", "-"
    opens, reads = ((b - a) / (_LONG - _SHORT) for a, b in zip(short, long, strict=True))
    return f"{opens:.2f}", f"{reads:.2f}"


def _traced(name: str, folder: Path, number: int) -> tuple[int, int] | None:
    said = folder / "strace.txt"
    trace = ["strace", "-f", "-c", "-o", said, "-e", f"trace={','.join((*_OPENS, *_READS))}"]
    words = [*trace, sys.executable, __file__, "--calls", name, folder, number]
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=300)
    if done.returncode:
        return None
    rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+).*?(\w+)$", said.read_text(), re.M)
    counts = {name: int(number) for number, name in rows}
    return sum(counts.get(one, 0) for one in _OPENS), sum(counts.get(one, 0) for one in _READS)


if __name__ == "__main__":
    main()
