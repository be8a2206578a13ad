"""Cost of `rankup pack`, against GNU tar, the course's writer, and those that others use.

Claim `pack.tar`: samples/s into a tar by 2 processes, with hashes, index and labels, against
`tar -cf`, which writes the same photos and nothing else. Both are whole commands, with their start;
ours starts Python. The same of three times as many photos, where the start weighs less, stands
beside it.

Claim `pack.hdf5.core`: samples/s into HDF5 on one core (both are bound to one), of the writing
alone, without the start of Python and its imports. The course's writer (a variable-length data set,
each photo through `list(bytes)`) says itself how long it took; it gets a tenth of the photos, since
it takes as long for each. Ours is the whole command with one worker, scan and index included, less
what the same command takes for ten photos. Ours as a whole command stands beside it.

Warm: the photos are in memory, and so is what is written; nothing is fsynced (`--no-fsync`). The
contestants of a claim take turns in a random order, and each starts from nothing. Below that, fewer
times, `rankup pack` into other containers and mksquashfs as whole commands, and what other writers
take in one process, without start and imports. A program or module that is missing is skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import _photos
from common import (
    claim,
    has_programs,
    machine,
    median,
    parse_effort,
    run,
    seconds,
    spread,
    table,
    take_turns,
)

RANKUP = Path(sys.executable).parent / "rankup"
Contestant = Callable[[Path], float]
_MORE = 3  # times as many photos, for `pack.tar`
_TAR, _GNU = "rankup pack --to tar, 2 workers", "GNU tar"
_WHOLE, _START = "rankup pack --to hdf5, 1 core", "the same of ten photos"
_WRITING, _COURSE = "the same, less its start", "the course's writer"
_WRITERS = {
    "course_hdf5_quick": "the course's without list()",
    "course_arrow": "the course's Arrow",
    "hugging_face": "HF datasets",
    "web_dataset": "WebDataset",
}


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(machine())
    # As of an installed rankup, its bytecode is there once the round that does not count is over.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with _photos.workplace() as folder:
        for line in bench(folder, effort.rounds, 3000 if effort.quick else 10_000):
            print(line)


def bench(folder: Path, rounds: int, number: int) -> list[str]:
    """Measure and print everything; return the claim lines."""
    source, tenth, ten, out = (folder / one for one in ("photos", "tenth", "ten", "out"))
    kind = _photos.make(source, number)
    _photos.make(tenth, number // 10)
    _photos.make(ten, 10)
    size = sum(path.stat().st_size for path, _ in _photos.listed(source))
    print(f"{number} photos, {size / 1e9:.2f} GB, {kind}\n", flush=True)
    one_core = {min(os.sched_getaffinity(0))}
    has_tar = has_programs("GNU tar and the claim pack.tar", "tar")
    has_squashfs = has_programs("rankup pack --to squashfs, mksquashfs", "mksquashfs")

    tars: dict[str, Contestant] = {_TAR: partial(pack, source, "tar", 2)}
    if has_tar:
        tars[_GNU] = partial(gnu_tar, source)
    seconds = turns(rounds, out, tars)
    core: dict[str, Contestant] = {
        _WHOLE: partial(pack, source, "hdf5", 1, cores=one_core),
        _START: partial(pack, ten, "hdf5", 1, cores=one_core),
        _COURSE: partial(writer, "course_hdf5", tenth, cores=one_core),
    }
    seconds |= turns(rounds, out, core)
    start = median(seconds.pop(_START))
    seconds[_WRITING] = [one - start for one in seconds[_WHOLE]]
    containers = [("hdf5", 2), ("arrow", 2), *([("squashfs", 2)] if has_squashfs else [])]
    others: dict[str, Contestant] = {
        f"rankup pack --to {container}, {workers} workers": partial(
            pack, source, container, workers
        )
        for container, workers in containers
    }
    if has_squashfs:
        others["mksquashfs, its own 2 threads"] = partial(mksquashfs, source)
    tenths = {words: name for name, words in _WRITERS.items() if _photos.has_writer(name)}
    others |= {words: partial(writer, name, tenth) for words, name in tenths.items()}
    seconds |= turns(max(3, rounds // 3), out, others)
    counts = {**dict.fromkeys((_COURSE, *tenths), number // 10), _WRITING: number - 10}
    if has_tar:
        _photos.make(source, _MORE * number)  # the same ones, and more
        found = turns(rounds, out, tars)
        more = {f"{name}, {_MORE * number} photos": found[name] for name in found}
        seconds |= more
        counts |= dict.fromkeys(more, _MORE * number)
    rates = {
        name: [counts.get(name, number) / one for one in all_] for name, all_ in seconds.items()
    }
    rows = []
    for name, all_ in rates.items():
        quartiles = spread([one / 1000 for one in all_], 1) + "k"
        megabytes = median(all_) * size / number / 1e6
        rows.append([name, f"{median(all_):.0f}", quartiles, f"{megabytes:.0f}"])
    table(["", "samples/s", "quartiles", "MB/s"], rows)
    lines = []
    if has_tar:
        note = (
            f"{number} photos, {size / 1e9:.2f} GB, in memory, no fsync; whole commands, ours with "
            f"hashes and 2 processes; median of {rounds} turns; of {_MORE * number} photos "
            f"{_against(rates, *more)}"
        )
        lines.append(_claim("pack.tar", rates, _TAR, _GNU, note))
    note = (
        f"one core each, in memory, no fsync; counted of ours: the command for {number} photos "
        f"(scan, hashes, index) less {start:.2f} s, which it takes for ten; of the course's: the "
        f"writing of {number // 10}, without start and imports; median of {rounds} turns; ours "
        f"with its start, the course's without: {_against(rates, _WHOLE, _COURSE)}"
    )
    return [*lines, _claim("pack.hdf5.core", rates, _WRITING, _COURSE, note)]


def turns(rounds: int, out: Path, contestants: Mapping[str, Contestant]) -> dict[str, list[float]]:
    """Return the seconds of each, after a round that does not count; each fills a new folder."""

    def into_new(contestant: Contestant) -> float:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return contestant(out)

    found = take_turns({name: partial(into_new, one) for name, one in contestants.items()}, rounds)
    shutil.rmtree(out, ignore_errors=True)
    return found


def pack(
    source: Path, container: str, workers: int, out: Path, *, cores: set[int] | None = None
) -> float:
    """Return the seconds of the whole command."""
    words = [RANKUP, "pack", source, out / file_name(container), "--to", container, "--no-fsync"]
    return seconds([*words, "--workers", workers], cores=cores)


def file_name(container: str) -> str:
    """Return what a container is called here: one that is a file needs its suffix."""
    return {"hdf5": "photos.h5", "squashfs": "photos.sqsh"}.get(container, "photos")


def gnu_tar(source: Path, out: Path) -> float:
    return seconds(["tar", "-cf", out / "photos.tar", "-C", source, "."])


def mksquashfs(source: Path, out: Path) -> float:
    words = ["mksquashfs", source, out / "photos.sqsh", "-noappend", "-no-progress", "-quiet"]
    whole = ["-noD", "-noF", "-no-fragments", "-no-duplicates", "-b", "1M"]
    return seconds([*words, *whole, "-processors", "2"])


def writer(name: str, source: Path, out: Path, *, cores: set[int] | None = None) -> float:
    """Return the seconds that one of `_photos.WRITERS` says it took."""
    program = Path(_photos.__file__)
    return float(run([sys.executable, program, name, source, out / "photos"], cores=cores))


def _against(rates: Mapping[str, list[float]], ours: str, peer: str) -> str:
    """Return `3000 / 150 = 20.00`."""
    one, other = (median(rates[name]) for name in (ours, peer))
    return f"{one:.0f} / {other:.0f} = {one / other:.2f}"


def _claim(name: str, rates: Mapping[str, list[float]], ours: str, peer: str, note: str) -> str:
    return claim(name, median(rates[ours]), median(rates[peer]), "samples/s", note)


if __name__ == "__main__":
    main()
