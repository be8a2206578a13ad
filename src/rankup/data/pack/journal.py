"""The folder `OUT.part`: everything a pack has made so far, and what it needs to go on.

about.json    what was asked, written first: a folder without it is not ours
source.npz    the index of the source, so that it is not scanned again
notes*.jsonl  what is to be said of images; each task of a Slurm step has its own
spool         images that are encoded anew, see `spool`
begun.json    written once the container's files are there with their full sizes
data          the container to be: a file, or a folder
done          a byte per unit: 1 once the unit is written
hashes        xxh3 of each field and sample, in the order of fields and rows
report.json   of the finished pack; in `data` where that is a folder, as index.npz is
published     written before the first of these gets its name outside
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ...base.files import fsync_directory, pwrite_all, write_json
from ...base.holder import boot
from .. import indexes
from ..errors import BadContainer
from ..index import Index, UInt64s
from .layout import Layout
from .request import Target

VERSION = 2


class Work:
    """A work folder, and the paths in it.

    Attributes:
        index, report: where these are, until they get their names.
    """

    def __init__(self, goal: Target) -> None:
        self.goal, self.part = goal, goal.part
        self.about = self.part / "about.json"
        self.source = self.part / "source.npz"
        self.spool = self.part / "spool"
        self.begun = self.part / "begun.json"
        self.data = self.part / "data"
        self.done = self.part / "done"
        self.hashes = self.part / "hashes"
        self.published = self.part / "published"
        inside = self.part if goal.one_file else self.data
        self.index, self.report = inside / "index.npz", inside / "report.json"

    def make(self, asked: Mapping[str, Any]) -> None:
        """Make the folder; an empty one may be there.

        Raises:
            OSError: it cannot be made.
        """
        self.part.mkdir(parents=True, exist_ok=True)
        write_json(self.about, {"rankup_pack": VERSION, "asked": dict(asked)})

    def asked(self) -> dict[str, Any] | None:
        """Return what a pack in this folder was asked; None where nothing has begun.

        Raises:
            UserError: what is there is no work folder, or one of another rankup.
        """
        if not os.path.lexists(self.part):
            return None
        if self.part.is_symlink():  # a pack would write, and remove, wherever it leads
            raise UserError(
                f"{self.part} is a link; rankup needs that name: move it away, or remove it"
            )
        try:
            about = json.loads(self.about.read_text(encoding="utf-8"))
            if about["rankup_pack"] == VERSION:
                return dict(about["asked"])
            what = f"is of a rankup that works differently (version {about['rankup_pack']!r})"
        except FileNotFoundError:
            # Killed while the first file was written: its temporary name is all there is.
            if all(_is_of_about(name) for name in os.listdir(self.part)):
                return None
            what = "is no work folder of rankup pack"
        except (NotADirectoryError, ValueError, KeyError, TypeError):
            what = "is no work folder of rankup pack"
        raise UserError(f"{self.part} {what}; rankup needs that name: move it away, or remove it")

    def load_source(self) -> Index | None:
        """Return the source's index; None where the scan did not come to its end."""
        try:
            return indexes.load(self.source)
        except (FileNotFoundError, BadContainer):  # the disk has perhaps not survived a crash
            return None

    def is_over(self) -> bool:
        """Return True where nothing is lost with the folder: its container is out, or not begun."""
        names = {name for name in os.listdir(self.part) if not _is_of_about(name)}
        if self.published.name in names:
            return not names & {self.data.name, "index.npz", "report.json"}
        return names <= {self.about.name}

    def remove(self) -> None:
        """Remove the folder; what says that it is one goes last."""
        if not self.part.is_dir() or self.part.is_symlink():
            return
        for path in self.part.iterdir():
            if path not in (self.about, self.published):
                clear(path)
        self.published.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)
        self.part.rmdir()

    def note(self, records: Sequence[Mapping[str, Any]], task: int = 0) -> None:
        """Write down what is to be said of images."""
        append(self.part / f"notes-{task}.jsonl", records)

    def notes(self) -> list[dict[str, Any]]:
        """Return all that is written down of images."""
        return [one for path in sorted(self.part.glob("notes-*.jsonl")) for one in records(path)]


class Units:
    """The units of a container that are written, and the hashes of their samples.

    Several Slurm tasks have one open, each for units of its own.
    """

    def __init__(self, work: Work, layout: Layout, *, fsync: bool) -> None:
        self._work, self._layout, self._fsync = work, layout, fsync
        self._count = len(layout.index)
        self._done = os.open(work.done, os.O_WRONLY | os.O_CLOEXEC)
        self._hashes = os.open(work.hashes, os.O_WRONLY | os.O_CLOEXEC)

    def note(self, unit: int, hashes: UInt64s) -> None:
        """Write down that a unit is there, and on the disk where that was asked for."""
        start = int(self._layout.units[unit])
        for number, row in enumerate(hashes):
            at = 8 * (number * self._count + start)
            pwrite_all(self._hashes, row.astype("<u8").tobytes(), at)
        if self._fsync:  # before the byte that says so
            os.fdatasync(self._hashes)
        pwrite_all(self._done, b"\1", unit)

    def close(self) -> None:
        os.close(self._done)
        os.close(self._hashes)


def begin(work: Work, layout: Layout, *, fsync: bool, told: Mapping[str, Any]) -> Layout:
    """Make the container's files, or find those that an interrupted pack has made.

    Without fsync, what was written is only sure while the machine that wrote it has not crashed.

    Args:
        told: what the other tasks of a Slurm step need to know; `begun.json` has it.

    Returns:
        the layout, with what it knows of these files.
    """
    units, now = len(layout.units) - 1, boot()
    before = read_begun(work)
    trusted = before.get("fsync") or (now and before.get("boot") == now)
    if trusted and before.get("units") == units and work.data.exists():
        layout = layout.attach(work.data)
        fsync = fsync and bool(before["fsync"])
    else:
        work.begun.unlink(missing_ok=True)
        # First, and as new files: a process of an earlier attempt that does not know yet that it is
        # over would else note units as done here which it has written into the old `data`.
        work.done.unlink(missing_ok=True)
        work.hashes.unlink(missing_ok=True)
        clear(work.data)
        if not work.goal.one_file:
            work.data.mkdir()
        layout = layout.begin(work.data)
        _zeros(work.done, units, fsync)
        _zeros(work.hashes, 8 * len(layout.index) * len(layout.index.fields), fsync)
        if fsync:
            sync(work.data)
    write_json(work.begun, {"fsync": fsync, "boot": now, "units": units, **told})
    return layout


def read_begun(work: Work) -> dict[str, Any]:
    """Return what `begin` has written; empty where it has not."""
    try:
        found = json.loads(work.begun.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def done(work: Work) -> npt.NDArray[np.bool_]:
    """Return of each unit whether it is written. Read anew, since other nodes write it."""
    return np.frombuffer(work.done.read_bytes(), np.uint8) == 1


def hashes(work: Work, layout: Layout) -> UInt64s:
    """Return the hashes of all samples, uint64 (fields, n)."""
    found = np.fromfile(work.hashes, "<u8").astype(np.uint64)
    return found.reshape(len(layout.index.fields), len(layout.index))


def append(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Append records to a file of JSON lines."""
    if not records:
        return
    data = "".join(f"{json.dumps(one)}\n" for one in records).encode()
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            data = b"\n" + data  # a kill, or a full disk, has torn the line before
        file.write(data)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file of JSON lines; a line that a kill has torn is left out."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def clear(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or a folder and all below it, on the disk."""
    if path.is_dir():
        for below in path.iterdir():
            sync(below)
        fsync_directory(path)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocated(path: Path) -> int:
    """Return the bytes that a file, or all below a folder, take on the disk now."""
    try:
        if path.is_dir():
            return sum(allocated(below) for below in path.iterdir())
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _zeros(path: Path, size: int, fsync: bool) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        if fsync:
            os.fsync(file.fileno())


def _is_of_about(name: str) -> bool:
    return name.startswith(".about.json.") and name.endswith(".tmp")
