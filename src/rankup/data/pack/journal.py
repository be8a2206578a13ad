"""The folder `OUT.part`: everything a pack has made so far, and what it needs to go on.

about.json    what was asked, written first: a folder without it is not ours
source.npz    the index of the source, so that it is not scanned again
notes*.jsonl  what is to be said of images, of the copy and of the spool
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
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ...base import progress
from ...base.amounts import bytes_of
from ...base.errors import UserError
from ...base.files import fsync_directory, pwrite_all, write_json
from ...base.holder import boot
from ...base.text import clean
from ..index import Index, UInt64s
from ..pool import cores
from .layout import Layout, Shape, sample_bytes
from .source import Request, asked, target

VERSION = 2


class Pack:
    """A pack that goes on: its options and its work folder.

    Attributes:
        out, container: what is made, and the name of its format.
        one_file: it is a single file, with its index beside it.
        index, report: where these are, until they get their names.
        names: path in the work folder -> its name at last, in the order in which they are given.
        watch: called often; raises once there is a reason to stop.
    """

    def __init__(self, request: Request, watch: Callable[[], None] = lambda: None) -> None:
        self.request, self.watch = request, watch
        self.out, self.container = target(request.out, request.to)
        self.one_file = self.container in ("hdf5", "squashfs")
        self.workers = request.workers or cores()
        # Images are looked at on their way; else it was done before.
        self.looks = request.bad == "keep" and request.resize is None
        self.shape = Shape(shard=bytes_of(request.shard_size, "--shard-size"))
        self.part = self.out.with_name(f"{self.out.name}.part")
        self.about = self.part / "about.json"
        self.source = self.part / "source.npz"
        self.spool = self.part / "spool"
        self.begun = self.part / "begun.json"
        self.data = self.part / "data"
        self.done = self.part / "done"
        self.hashes = self.part / "hashes"
        self.published = self.part / "published"
        inside = self.part if self.one_file else self.data
        self.index, self.report = inside / "index.npz", inside / "report.json"
        self.names = {self.data: self.out}
        if self.one_file:
            beside = (self.report, self.index)
            self.names |= {path: Path(f"{self.out}.{path.name}") for path in beside}

    def named(self, path: Path) -> Path:
        """Return where the index or the report lies once the pack is complete."""
        return self.names.get(path, self.out / path.name)

    @property
    def asked(self) -> dict[str, Any]:
        """The options that decide the bytes of the pack."""
        return asked(self.request, self.container)

    def say(self, line: str) -> None:
        """Print a line of the command's output, if anybody reads it."""
        if self.request.as_json:
            return
        try:
            print(clean(line), flush=True)
        except BrokenPipeError:  # `| head` has seen enough; the pack goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def progress(self, what: str, index: Index) -> AbstractContextManager[progress.Progress]:
        """Return what shows how far a part of the pack is."""
        return progress.shown(what, sample_bytes(index), quiet=self.request.as_json)

    def make(self) -> None:
        """Make the work folder; what one has noted that came no further is not kept.

        Raises:
            OSError: it cannot be made.
        """
        self.part.mkdir(parents=True, exist_ok=True)
        write_json(self.about, {"rankup_pack": VERSION, "asked": self.asked})
        for path in self.part.glob("notes-*.jsonl"):
            path.unlink()

    def before(self) -> dict[str, Any] | None:
        """Return what an earlier pack in this folder was asked; None where nothing has begun.

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

    def note(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write down what is to be said of images."""
        append(self.part / "notes-copied.jsonl", records)

    def notes(self) -> list[dict[str, Any]]:
        """Return all that is written down of images."""
        return [one for path in sorted(self.part.glob("notes-*.jsonl")) for one in records(path)]


class Units:
    """The units of a container that are written, and the hashes of their samples.

    Args:
        layout: as `begin` gave it.

    Attributes:
        done: of each unit whether it is written.
    """

    def __init__(self, pack: Pack, layout: Layout) -> None:
        self._pack, self._layout = pack, layout
        self._done = os.open(pack.done, os.O_WRONLY | os.O_CLOEXEC)
        self._hashes = os.open(pack.hashes, os.O_WRONLY | os.O_CLOEXEC)
        self.done = np.fromfile(pack.done, np.bool_)

    def note(self, unit: int, hashes: UInt64s) -> None:
        """Write down that a unit is there, and on the disk where that was asked for."""
        start, count = int(self._layout.units[unit]), len(self._layout.index)
        for number, row in enumerate(hashes):
            at = 8 * (number * count + start)
            pwrite_all(self._hashes, row.astype("<u8").tobytes(), at)
        if self._pack.request.fsync:  # before the byte that says so
            os.fdatasync(self._hashes)
        pwrite_all(self._done, b"\1", unit)
        self.done[unit] = True

    def hashes(self) -> UInt64s:
        """Return the hashes of all samples, uint64 (fields, n)."""
        found = np.fromfile(self._pack.hashes, "<u8").astype(np.uint64)
        return found.reshape(len(self._layout.index.fields), len(self._layout.index))

    def close(self) -> None:
        os.close(self._done)
        os.close(self._hashes)


def begin(pack: Pack, layout: Layout) -> Layout:
    """Make the container's files, or find those that an interrupted pack has made.

    Without fsync, what was written is only sure while the machine that wrote it has not crashed.

    Returns:
        the layout, with what it knows of these files.
    """
    units, now, fsync = len(layout.units) - 1, boot(), pack.request.fsync
    before: dict[str, Any] = {}
    if pack.begun.exists():
        before = json.loads(pack.begun.read_text(encoding="utf-8"))
    trusted = before.get("fsync") or (now and before.get("boot") == now)
    if trusted and before["units"] == units and pack.data.exists():
        layout = layout.attach(pack.data)
        fsync = fsync and bool(before["fsync"])
    else:
        # First, and as new files: a process of an earlier attempt that does not know yet that it is
        # over would else note units as done here which it has written into the old `data`.
        for path in (pack.begun, pack.done, pack.hashes, pack.data):
            clear(path)
        if not pack.one_file:
            pack.data.mkdir()
        layout = layout.begin(pack.data)
        size = 8 * len(layout.index) * len(layout.index.fields)
        for path, zeros in ((pack.done, units), (pack.hashes, size)):
            path.touch()
            os.truncate(path, zeros)
        if fsync:
            for path in (pack.done, pack.hashes, pack.data):
                sync(path)
    write_json(pack.begun, {"fsync": fsync, "boot": now, "units": units})
    return layout


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
    for one in [*path.rglob("*"), path] if path.is_dir() else [path]:
        fsync_directory(one)  # which does the same for a file


def allocated(path: Path) -> int:
    """Return the bytes that a file, or all below a folder, take on the disk now."""
    try:
        if path.is_dir():
            return sum(allocated(below) for below in path.iterdir())
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _is_of_about(name: str) -> bool:
    return name.startswith(".about.json.") and name.endswith(".tmp")
