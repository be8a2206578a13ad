"""What starts of a script have made themselves, outside of caches, and what of it has to go.

A script that is stopped in its first step has written what belongs to a run: a folder that must
not be there yet, a checkpoint of weights that were never trained. A job would stumble over it, or
go on from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import events as journal
from .events import Event
from .needed import of_a_job
from .outputs import Undo
from .sources import Renames, made
from .undo import Undone

_IN_THE_WAY = re.compile(r"\bexists?\b|not empty|overwrit|ENOTEMPTY|EEXIST", re.IGNORECASE)
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"")


@dataclass(frozen=True)
class Left:
    """Paths that were not there before the first start.

    Attributes:
        files: and links.
        came: those that came from the network, or were unpacked.
    """

    files: frozenset[str] = frozenset()
    came: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()

    def and_then(self, later: Left) -> Left:
        """With what a later start has left."""
        return Left(self.files | later.files, self.came | later.came, self.folders | later.folders)


def of(
    events: Sequence[Event], undone: Undone, caches: Iterable[Path], ignored: Iterable[Path]
) -> Left:
    """What one start has left; what was there before it, and is again, does not belong to it."""
    caches = tuple(caches)
    kept = (*caches, *ignored)
    back = undone.restored
    # What has its old name again may have lain under a new one meanwhile.
    foreign = {e.text("to") for e in journal.of(events, "rename") if e.values.get("made") is False}

    def ours(path: str) -> bool:
        if not os.path.lexists(path) or path in back or journal.inside(path, (*kept, *foreign)):
            return False
        return path in undone.joined or not journal.inside(path, back)

    new = made(events)
    files = {one.path for one in new} | {e.text("path") for e in journal.of(events, "link")}
    renames = Renames(events)
    folders = {
        renames.moved(event.text("path"), place)
        for place, event in enumerate(events)
        if event.kind == "mkdir"
    }
    return Left(
        frozenset(filter(ours, files)),
        of_a_job(new, events, caches),
        frozenset(path for path in folders if ours(path) and os.path.isdir(path)),
    )


def written_again(left: Left, second: Sequence[Event]) -> list[str]:
    """The files that a start without a network has written anew: every start will."""
    paths = [
        event.text("to" if event.kind == "rename" else "path")
        for event in second
        if event.kind in ("rename", "link")
        or (event.kind == "open" and event.text("how") != "update")
    ]
    own = left.files - left.came
    return [path for path in dict.fromkeys(paths) if path in own]


def in_the_way(left: Left, second: Sequence[Event], folder: Path) -> list[str]:
    """What a start may have failed for because an earlier one had made it; empty: for nothing.

    The file or folder that its error names; where it names none, all that did not come.

    Args:
        folder: where the script runs.
    """
    end = next(iter(reversed(journal.of(second, "end"))), None)
    if end is None:
        return []
    message = end.text("message")
    if end.text("type") != "FileExistsError" and not _IN_THE_WAY.search(message):
        return []
    quoted = [first or other for first, other in _QUOTED.findall(message)]
    for name in reversed(quoted):
        path = os.path.normpath(os.path.join(os.path.realpath(folder), name))
        known = path in left.files or path in left.folders
        if known and not any(journal.inside(file, [path]) for file in left.came):
            return [path]
    return [] if quoted else sorted(left.files - left.came)


def remove(paths: Collection[str], left: Left) -> Undone:
    """Remove files, and folders with all that was made in them; then folders that are empty now."""
    done: list[Undo] = []
    problems: list[str] = []
    for path in paths:
        for file in sorted(one for one in left.files if journal.inside(one, [path])):
            if why := _unlink(file):
                problems.append(f"{file} could not be removed: {why}")
            else:
                done.append(Undo("again", file))
    for one in sorted(left.folders, key=len, reverse=True):
        touched = any(journal.inside(undo.path, [one]) for undo in done)
        if touched or journal.inside(one, paths):
            with suppress(OSError):  # what is not empty stays
                os.rmdir(one)
                done.append(Undo("emptied", one))
    return Undone(tuple(done), tuple(problems))


def _unlink(path: str) -> str:
    """Why it could not be done; empty where there is no such file now."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        return error.strerror or str(error)
    return ""
