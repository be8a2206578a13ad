"""What `rankup pack` costs, against GNU tar, the course's writer, and those that others use.

Claim `pack.tar`: samples/s into a tar by 2 processes, with hashes, index and labels, against
`tar -cf`, which writes the same photos and nothing else. Both are whole commands, with their start;
ours starts Python. The same of three times as many photos, where the start weighs less, stands
beside it.

Claim `pack.hdf5.core`: samples/s into HDF5 on one core (both are bound to one), of the writing
alone, without the start of Python and its imports. The course's writer (a variable-length data set,
each photo through `list(bytes)`) says itself how long it took; it gets a tenth of the photos, since
it takes as long for each. Ours is the whole command with one worker, scan and index included, less
what the same command takes for ten photos. Ours as a whole command, start and all, stands beside
it, against the same figure of the course's.

Warm: the photos are in memory, and so is what is written; nothing is fsynced (`--no-fsync`). The
contestants of a claim take turns in a random order, and each starts from nothing. Below that, fewer
times, `rankup pack` with 1 and 2 workers and mksquashfs as whole commands, and what other writers
take in one process, without start and imports.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import _photos
import common

RANKUP = Path(sys.executable).parent / "rankup"
Contestant = Callable[[Path], float]
_MORE = 3  # times as many photos, for `pack.tar`
_TAR, _GNU = "rankup pack --to tar, 2 workers", "GNU tar"
_WHOLE, _START = "rankup pack --to hdf5, 1 core", "the same of ten photos"
_WRITING, _COURSE = "the same, less its start", "the course's writer"


def main() -> None:
    effort = common.arguments(__doc__ or "")
    rounds, number = (3, 3000) if effort.quick else (9, 10_000)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with _photos.workplace() as folder:
        for line in bench(folder, rounds, number):
            print(json.dumps(line))


def bench(folder: Path, rounds: int, number: int) -> list[dict[str, object]]:
    """Measure all; the claims."""
    source, tenth, ten, out = (folder / one for one in ("photos", "tenth", "ten", "out"))
    kind = _photos.make(source, number)
    _photos.make(tenth, number // 10)
    _photos.make(ten, 10)
    size = sum(path.stat().st_size for path, _ in _photos.listed(source)) / 1e9
    print(f"{number} photos, {size:.2f} GB, {kind}\n")
    one_core = {min(os.sched_getaffinity(0))}
    tars: dict[str, Contestant] = {
        _TAR: partial(pack, source, "tar", 2),
        _GNU: partial(gnu_tar, source),
    }
    tar = turns(rounds, out, tars)
    core = turns(
        rounds,
        out,
        {
            _WHOLE: partial(pack, source, "hdf5", 1, cores=one_core),
            _START: partial(pack, ten, "hdf5", 1, cores=one_core),
            _COURSE: partial(writer, "course_hdf5", tenth, cores=one_core),
        },
    )
    start = common.median(core[_START])
    core = {
        _WHOLE: core[_WHOLE],
        _WRITING: [one - start for one in core[_WHOLE]],
        _COURSE: core[_COURSE],
    }
    few = max(3, rounds // 3)
    others: dict[str, Contestant] = {
        f"rankup pack --to {container}, {workers} worker{'s'[: workers - 1]}": partial(
            pack, source, container, workers
        )
        for container, workers in (("hdf5", 2), ("arrow", 1), ("arrow", 2), ("squashfs", 2))
    }
    others["mksquashfs, its own 2 threads"] = partial(mksquashfs, source)
    peers: dict[str, Contestant] = {
        words: partial(writer, name, tenth)
        for name, words in (
            ("course_hdf5_quick", "the course's without list()"),
            ("course_arrow", "the course's Arrow"),
            ("hugging_face", "HF datasets"),
            ("web_dataset", "WebDataset"),
            *((("mosaic", "mosaicml-streaming"),) if _photos.get_mosaic() else ()),
        )
    }
    others_found = turns(few, out, {**others, **peers})
    _photos.make(source, _MORE * number)  # the same ones, and more
    more = {
        f"{name}, {_MORE * number} photos": seconds
        for name, seconds in turns(rounds, out, tars).items()
    }
    counts = {
        **dict.fromkeys((_COURSE, *peers), number // 10),
        **dict.fromkeys(more, _MORE * number),
        _WRITING: number - 10,
    }
    rates = {
        name: [counts.get(name, number) / one for one in seconds]
        for name, seconds in {**tar, **more, **core, **others_found}.items()
    }
    per_photo = size * 1e9 / number
    common.table(
        ["", "samples/s", "quartiles", "MB/s"],
        [
            [
                name,
                f"{common.median(all_):.0f}",
                common.spread([one / 1000 for one in all_]) + "k",
                f"{common.median(all_) * per_photo / 1e6:.0f}",
            ]
            for name, all_ in rates.items()
        ],
    )
    return [
        _claim(
            "pack.tar",
            rates,
            _TAR,
            _GNU,
            f"{number} photos, {size:.2f} GB, in memory, no fsync; whole commands, ours with "
            f"hashes and 2 processes; median of {rounds} turns; of {_MORE * number} photos "
            f"{_against(rates, *more)}",
        ),
        _claim(
            "pack.hdf5.core",
            rates,
            _WRITING,
            _COURSE,
            f"one core each, in memory, no fsync; counted of ours: the command for {number} photos "
            f"(scan, hashes, index) less {start:.2f} s, which it takes for ten; of the course's: "
            f"the writing of {number // 10}, without start and imports; median of {rounds} turns; "
            f"ours with its start, the course's without: {_against(rates, _WHOLE, _COURSE)}",
        ),
    ]


def turns(rounds: int, out: Path, contestants: Mapping[str, Contestant]) -> dict[str, list[float]]:
    """Seconds of each, after one of each that does not count; each writes into a new folder."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name in random.sample(list(contestants), len(contestants)):
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            seconds = contestants[name](out)
            if number:
                found[name].append(seconds)
    shutil.rmtree(out, ignore_errors=True)
    return found


def pack(
    source: Path, container: str, workers: int, out: Path, *, cores: set[int] | None = None
) -> float:
    """Seconds of the whole command."""
    words = [RANKUP, "pack", source, out / name(container), "--to", container, "--no-fsync"]
    return _seconds([*words, "--workers", workers], cores)


def name(container: str) -> str:
    """What a container is called: one that is a file needs its suffix."""
    return {"hdf5": "photos.h5", "squashfs": "photos.sqsh"}.get(container, "photos")


def gnu_tar(source: Path, out: Path) -> float:
    return _seconds(["tar", "-cf", out / "photos.tar", "-C", source, "."], None)


def mksquashfs(source: Path, out: Path) -> float:
    words = ["mksquashfs", source, out / "photos.sqsh", "-noappend", "-no-progress", "-quiet"]
    whole = ["-noD", "-noF", "-no-fragments", "-no-duplicates", "-b", "1M"]
    return _seconds([*words, *whole, "-processors", "2"], None)


def writer(which: str, source: Path, out: Path, *, cores: set[int] | None = None) -> float:
    """Seconds that one of `_photos.WRITERS` says it took."""
    program = Path(_photos.__file__)
    return float(_run([sys.executable, program, which, source, out / "photos"], cores))


def _seconds(words: list[object], cores: set[int] | None) -> float:
    start = time.perf_counter()
    _run(words, cores)
    return time.perf_counter() - start


def _run(words: list[object], cores: set[int] | None) -> str:
    bound = partial(os.sched_setaffinity, 0, cores) if cores else None
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=bound,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def _against(rates: Mapping[str, list[float]], ours: str, peer: str) -> str:
    """`3000 / 150 = 20.0`."""
    one, other = (common.median(rates[name]) for name in (ours, peer))
    return f"{one:.0f} / {other:.0f} = {one / other:.2f}"


def _claim(
    which: str, rates: Mapping[str, list[float]], ours: str, peer: str, note: str
) -> dict[str, object]:
    values = {name: round(common.median(rates[name])) for name in (ours, peer)}
    return {
        "claim": which,
        "ours": values[ours],
        "peer": values[peer],
        "unit": "samples/s",
        "better": "higher",
        "note": note,
    }


if __name__ == "__main__":
    main()
