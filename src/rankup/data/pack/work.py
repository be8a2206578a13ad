"""The folder `OUT.part`: everything a pack has made so far, and what it needs to go on.

about.json   what was asked, written first: a folder without it is not ours
source.npz   the index of the source, so that it is not scanned again
noted.jsonl  what is to be said of images, found before the copy
begun.json   written once the container's files are there with their full sizes
data         the container to be: a file, or a folder
done         a byte per unit: 1 once the unit is written
hashes       xxh3 of each field and sample, in the order of fields and rows
report.json  of the finished pack; in `data` where that is a folder, as index.npz is
published    written before the first of these gets its name outside
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import UserError
from ...base.files import pwrite_all, write_atomic, write_json
from .. import indexes
from ..errors import BadContainer
from ..index import Index, UInt64s
from .layout import Layout
from .request import Request, Target
from .trees import clear, sync

VERSION = 1


@dataclass(frozen=True)
class Work:
    """Paths of a work folder."""

    part: Path

    @property
    def about(self) -> Path:
        return self.part / "about.json"

    @property
    def source(self) -> Path:
        return self.part / "source.npz"

    @property
    def noted(self) -> Path:
        return self.part / "noted.jsonl"

    @property
    def begun(self) -> Path:
        return self.part / "begun.json"

    @property
    def data(self) -> Path:
        return self.part / "data"

    @property
    def done(self) -> Path:
        return self.part / "done"

    @property
    def hashes(self) -> Path:
        return self.part / "hashes"

    @property
    def spool(self) -> Path:
        return self.part / "spool"

    @property
    def index(self) -> Path:
        """The finished index, where it cannot lie in the container's folder."""
        return self.part / "index.npz"

    @property
    def report(self) -> Path:
        return self.part / "report.json"

    @property
    def published(self) -> Path:
        return self.part / "published"


def asked(request: Request, target: Target) -> dict[str, Any]:
    """What decides the bytes of a pack; a pack is resumed with the same only."""
    return {
        "SOURCE": os.path.abspath(request.source),
        "--to": target.container,
        "--preset": request.preset,
        "--split": request.split,
        "--label": request.label,
        "--key": request.key,
        "--fields": ",".join(request.fields) or None,
        "--bad": request.bad,
        "--resize": request.resize,
        "--shard-size": request.shard_size,
    }


def make(work: Work, asked: Mapping[str, Any]) -> None:
    """Make a work folder; an empty one may be there.

    Raises:
        OSError: it cannot be made.
    """
    work.part.mkdir(parents=True, exist_ok=True)
    write(work.about, {"rankup_pack": VERSION, "asked": dict(asked)})


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON document, old or new; names that are no UTF-8 come through."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2)
    write_atomic(path, text + "\n")


def ours(work: Work) -> dict[str, Any] | None:
    """What a pack in this folder was asked; None where nothing has begun.

    Raises:
        UserError: what is there is no work folder, or one of another rankup.
    """
    if not os.path.lexists(work.part):
        return None
    if work.part.is_symlink():  # a pack would write, and remove, wherever it leads
        raise UserError(
            f"{work.part} is a link; rankup needs that name: move it away, or remove it"
        )
    try:
        about = json.loads(work.about.read_text(encoding="utf-8"))
        if about["rankup_pack"] == VERSION:
            return dict(about["asked"])
        what = f"is of a rankup that works differently (version {about['rankup_pack']!r})"
    except FileNotFoundError:
        names = os.listdir(work.part)
        # Killed while the first file was written: its temporary name is all there is.
        if all(name.startswith(".about.json.") and name.endswith(".tmp") for name in names):
            return None
        what = "is no work folder of rankup pack"
    except (NotADirectoryError, ValueError, KeyError, TypeError):
        what = "is no work folder of rankup pack"
    raise UserError(f"{work.part} {what}; rankup needs that name: move it away, or remove it")


def same(before: Mapping[str, Any], now: Mapping[str, Any], part: Path) -> None:
    """Refuse to go on with a pack of something else.

    Raises:
        UserError: names what differs.
    """
    differs = differences(before, now)
    if differs:
        raise UserError(
            f"{part} was begun otherwise: {differs}. Resume it as it was begun, or "
            f"remove {part} to begin anew"
        )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what two packs were asked for different things; empty: in nothing."""
    return "; ".join(
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in now
        if before.get(name) != now.get(name)
    )


def load_source(work: Work) -> Index | None:
    """The source's index; None where the scan did not come to its end."""
    try:
        return indexes.load(work.source)
    except FileNotFoundError:
        return None
    except BadContainer:  # written old-or-new, but perhaps not onto a disk that has survived
        return None


def begin(work: Work, layout: Layout, *, one_file: bool, fsync: bool, boot: str) -> Layout:
    """Make the container's files; what an interrupted `begin` has left is removed."""
    work.begun.unlink(missing_ok=True)
    # First, and as new files: a process of an earlier attempt that does not know yet that it is
    # over would else note units as done in these which it has written into the old `data`.
    work.done.unlink(missing_ok=True)
    work.hashes.unlink(missing_ok=True)
    clear(work.data)
    if not one_file:
        work.data.mkdir()
    layout = layout.begin(work.data)
    units, samples = len(layout.units) - 1, len(layout.index)
    for path, size in (
        (work.done, units),
        (work.hashes, 8 * samples * len(layout.index.fields)),
    ):
        with path.open("wb") as file:
            file.truncate(size)
            if fsync:
                os.fsync(file.fileno())
    if fsync:
        sync(work.data)
    write_json(work.begun, {"fsync": fsync, "boot": boot, "units": units})
    return layout


def begun(work: Work, layout: Layout, boot: str) -> bool:
    """Whether the container's files are there, and what is done in them can be believed.

    Without fsync, what was written is only sure while the machine that wrote it has not crashed.
    """
    try:
        state = json.loads(work.begun.read_text(encoding="utf-8"))
        trusted = state["fsync"] or (boot and state["boot"] == boot)
        return bool(trusted and state["units"] == len(layout.units) - 1 and work.data.exists())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False


def weaken(work: Work, boot: str) -> None:
    """Note that from now on units are written without fsync."""
    state = json.loads(work.begun.read_text(encoding="utf-8"))
    if state["fsync"]:
        write_json(work.begun, {**state, "fsync": False, "boot": boot})


def done(work: Work) -> npt.NDArray[np.bool_]:
    """Of each unit, whether it is written. Read anew, since other nodes write it."""
    return np.frombuffer(work.done.read_bytes(), np.uint8) == 1


class Journal:
    """Notes which units are done, and the hashes of their samples."""

    def __init__(self, work: Work, layout: Layout, fsync: bool) -> None:
        self._done = os.open(work.done, os.O_WRONLY | os.O_CLOEXEC)
        self._hashes = os.open(work.hashes, os.O_WRONLY | os.O_CLOEXEC)
        self._layout, self._fsync, self._samples = layout, fsync, len(layout.index)

    def note(self, unit: int, hashes: UInt64s) -> None:
        """Note a unit that is written, and on the disk where that was asked for."""
        start = int(self._layout.units[unit])
        for number, row in enumerate(hashes):
            pwrite_all(
                self._hashes, row.astype("<u8").tobytes(), 8 * (number * self._samples + start)
            )
        if self._fsync:  # before the byte that says so
            os.fdatasync(self._hashes)
        pwrite_all(self._done, b"\1", unit)

    def close(self) -> None:
        os.close(self._done)
        os.close(self._hashes)


def hashes(work: Work, layout: Layout) -> UInt64s:
    """The hashes of all samples, uint64 (fields, n)."""
    found = np.fromfile(work.hashes, "<u8").astype(np.uint64)
    return found.reshape(len(layout.index.fields), len(layout.index))


def remove(work: Work) -> None:
    """Remove a work folder; what says that it is one goes last."""
    if not work.part.is_dir() or work.part.is_symlink():
        return
    for path in work.part.iterdir():
        if path not in (work.about, work.published):
            clear(path)
    work.published.unlink(missing_ok=True)
    work.about.unlink(missing_ok=True)
    work.part.rmdir()


def over(work: Work) -> bool:
    """Whether nothing is lost with a work folder: its container is out, or has not begun."""
    names = {name for name in os.listdir(work.part) if not name.startswith(".about.json.")}
    if work.published.name in names:
        return not names & {work.data.name, work.index.name, work.report.name}
    return names <= {work.about.name}
