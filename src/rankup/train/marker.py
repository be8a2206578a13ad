"""A checkpoint's marker: written last, it says what the checkpoint is and how its files look whole.

No torch here: whoever only wants to know how far a run came can ask on a login node.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..base.errors import UserError
from ..base.files import fsync_directory, write_json
from .place import Place

MARKER = "COMPLETE"
_BLOCK = 1 << 24
_NAME = re.compile(r"step-\d{8,}")
_MOST = 10**15  # steps, samples
# What a marker that somebody, or a disk, has changed can raise.
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
)

Fingerprint = tuple[int, str]  # size in bytes, XXH3-64 of the content in hexadecimal


@dataclass(frozen=True)
class Saved:
    """What a complete checkpoint says of itself.

    Attributes:
        place: how far the run had come.
        identity: the options that define the run.
        best: lowest validation loss so far and the step it was seen at, whose checkpoint is kept;
            None before the first.
        unvalidated: the validation that belongs to this step was left when the run was stopped.
    """

    place: Place
    identity: dict[str, Any]
    best: tuple[float, int] | None
    unvalidated: bool = False


@dataclass(frozen=True)
class Candidate:
    """A checkpoint with a readable marker: where, what, and how its files looked when written."""

    directory: Path
    saved: Saved
    files: dict[str, Fingerprint]
    aliases: dict[str, str]

    def damaged(self, names: Iterable[str]) -> list[str]:
        """Which of the files are not what they were, each with what was found."""
        found = []
        for name in names:
            path, expected = self.directory / name, tuple(self.files[name])
            try:
                if not path.is_file():
                    found.append(f"{name} is missing")
                elif path.stat().st_size != expected[0]:
                    size = path.stat().st_size
                    found.append(f"{name} has {size} bytes instead of {expected[0]}")
                elif fingerprint(path) != expected:
                    found.append(f"{name} has changed since it was written")
            except OSError as error:
                found.append(f"{name} cannot be read ({error.strerror})")
        return found


def fingerprint(path: Path) -> Fingerprint:
    """Size and hash of a file."""
    digest, size = xxhash.xxh3_64(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def write(
    directory: Path,
    saved: Saved,
    files: dict[str, Fingerprint],
    aliases: dict[str, str] | None = None,
) -> None:
    """Declare a checkpoint complete.

    Args:
        aliases: other name -> name in the checkpoint, of what the model has under several names.
    """
    fsync_directory(directory)
    write_json(directory / MARKER, {**asdict(saved), "files": files, "aliases": aliases or {}})
    fsync_directory(directory.parent)


def candidates(root: Path) -> tuple[list[Candidate], list[str], bool]:
    """Checkpoints with a readable marker, newest first, lines on the others, and whether one of
    those was whole once.

    Raises:
        UserError: `root` is a link to nowhere.
    """
    if root.is_symlink() and not root.exists():
        raise UserError(f"{root} is a link to {root.readlink()}, which is not there")
    found, passed, spoiled = [], [], False
    for directory in reversed(_steps(root)):
        candidate = _read(directory)
        if isinstance(candidate, Candidate):
            found.append(candidate)
        else:
            passed.append(f"checkpoint {directory.name} is torn ({candidate}); passed over")
            spoiled = spoiled or (directory / MARKER).exists()
    return found, passed, spoiled


def make_room(directory: Path) -> OSError | None:
    """Clear the place of a new checkpoint; an error is handed back, for all ranks to raise."""
    try:
        directory.parent.mkdir(exist_ok=True)
        if directory.is_symlink() or directory.exists():
            remove(directory)
        for path in _steps(directory.parent):
            if not (path / MARKER).exists():
                remove(path)
        directory.mkdir()
    except OSError as error:
        return error
    return None


def amend(root: Path, saved: Saved) -> None:
    """Replace, old or new, what the complete checkpoint of this place says of itself.

    Raises:
        OSError: it could not be written; what it said before is unchanged.
    """
    path = of_step(root, saved.place.step) / MARKER
    write_json(path, {**json.loads(path.read_text()), **asdict(saved)})


def of_step(root: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return root / f"step-{step:08d}"


def prune(newest: Path, keep: int, best: Path | None = None) -> None:
    """Keep `newest`, the `keep - 1` complete checkpoints before it, and `best`.

    Later ones are of a future that was abandoned when the run fell back; they go too.
    """
    others = [path for path in _steps(newest.parent) if path != newest]
    before = [path for path in others if _number(path) < _number(newest)]
    for path in {*others} - {*before[max(0, len(before) - (keep - 1)) :], best}:
        with contextlib.suppress(OSError):  # the new one is whole, whatever becomes of this
            remove(path)


def discard(directory: Path) -> None:
    """Remove what there is of a checkpoint that could not be written; no error comes of it."""
    with contextlib.suppress(OSError):
        (directory / MARKER).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def remove(directory: Path) -> None:
    """Remove a checkpoint, its marker first, so that half of it is never trusted.

    A link to one that was moved elsewhere goes; what it points to is somebody's.
    """
    if not directory.is_dir() or directory.is_symlink():
        directory.unlink(missing_ok=True)
    else:
        (directory / MARKER).unlink(missing_ok=True)
        shutil.rmtree(directory)


def _steps(root: Path) -> list[Path]:
    """The folders of checkpoints, oldest first; not what else somebody keeps beside them."""
    found = [path for path in root.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_number)


def _number(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r:.40} is no count")
    return value


def _best(value: Any, step: int) -> tuple[float, int] | None:
    if value is None:
        return None
    loss, at = value
    if not math.isfinite(loss := float(loss)) or not 0 < _whole(at) <= step:
        raise ValueError(f"its best is {value!r:.60}")
    return loss, at


def _read(directory: Path) -> Candidate | str:
    """The candidate, or why it is none."""
    if not (directory / MARKER).exists():
        return "its writing was interrupted"
    try:
        marker = json.loads((directory / MARKER).read_text())
        place = Place(**{name: _whole(number) for name, number in marker["place"].items()})
        if directory.name != of_step(directory.parent, place.step).name:
            raise ValueError(f"it is of step {place.step}")
        best, identity = _best(marker["best"], place.step), dict(marker["identity"])
        saved = Saved(place, identity, best, bool(marker["unvalidated"]))
        files = {
            str(name): (int(size), str(digest)) for name, (size, digest) in marker["files"].items()
        }
        aliases = {str(name): str(first) for name, first in marker.get("aliases", {}).items()}
    except _DAMAGE as error:
        return f"its marker is damaged: {error}"
    return Candidate(directory, saved, files, aliases)
