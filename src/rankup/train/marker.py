"""A checkpoint's marker: written last, it says what the checkpoint is and how its files look whole.

No torch here: whoever only wants to know how far a run came can ask on a login node.
"""

from __future__ import annotations

import contextlib
import json
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

Fingerprint = tuple[int, str]  # size in bytes, XXH3-64 of the content in hexadecimal


@dataclass(frozen=True)
class Saved:
    """What a complete checkpoint says of itself.

    Attributes:
        place: how far the run had come.
        identity: the options that define the run.
        best: lowest validation loss so far and the step it was seen at; None before the first.
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

    def damaged(self, names: Iterable[str]) -> list[str]:
        """Which of the files are not what they were, each with what was found."""
        found = []
        for name in names:
            path, expected = self.directory / name, tuple(self.files[name])
            if not path.is_file():
                found.append(f"{name} is missing")
            elif path.stat().st_size != expected[0]:
                found.append(f"{name} has {path.stat().st_size} bytes instead of {expected[0]}")
            elif fingerprint(path) != expected:
                found.append(f"{name} has changed since it was written")
        return found


def fingerprint(path: Path) -> Fingerprint:
    """Size and hash of a file."""
    digest, size = xxhash.xxh3_64(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def write(directory: Path, saved: Saved, files: dict[str, Fingerprint]) -> None:
    """Declare a checkpoint complete."""
    fsync_directory(directory)
    write_json(directory / MARKER, {**asdict(saved), "files": files})
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
    for directory in sorted(root.glob("step-*"), reverse=True):
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
        for path in directory.parent.glob("step-*"):
            if path == directory or not (path / MARKER).exists():
                remove(path)
        directory.mkdir()
    except OSError as error:
        return error
    return None


def prune(newest: Path, keep: int) -> None:
    """Keep `newest` and the `keep - 1` complete checkpoints before it.

    Later ones are of a future that was abandoned when the run fell back; they go too.
    """
    others = sorted(path for path in newest.parent.glob("step-*") if path != newest)
    before = [path for path in others if path < newest]
    for path in {*others} - {*before[max(0, len(before) - (keep - 1)) :]}:
        with contextlib.suppress(OSError):  # the new one is whole, whatever becomes of this
            remove(path)


def remove(directory: Path) -> None:
    """Remove a checkpoint, its marker first, so that half of it is never trusted."""
    if directory.exists():
        (directory / MARKER).unlink(missing_ok=True)
        shutil.rmtree(directory)


def _read(directory: Path) -> Candidate | str:
    """The candidate, or why it is none."""
    if not (directory / MARKER).exists():
        return "its writing was interrupted"
    try:
        marker = json.loads((directory / MARKER).read_text())
        best = tuple(marker["best"]) if marker["best"] else None
        place, identity = Place(**marker["place"]), dict(marker["identity"])
        saved = Saved(place, identity, best, bool(marker["unvalidated"]))
        files = {
            str(name): (int(size), str(digest)) for name, (size, digest) in marker["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its marker is damaged: {error}"
    return Candidate(directory, saved, files)
