"""Undo what a script has done to files of its own: a start that was stopped is no run.

What came from the network stays, and so does what the script made and closed. Before the child
changes a file that was there, it sets the old one aside; here it comes back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import events as journal
from .events import Event
from .sources import PARTIAL, Renames, made, renewed

How = Literal["put back", "renamed", "cut back", "removed", "emptied", "forget", "lost"]


@dataclass(frozen=True)
class Undo:
    """One thing to do.

    Attributes:
        how: `put back` the backup, a file or a folder, in the place of what is there now;
            `renamed`: give `backup` its old name again; `cut back` to `size` bytes; `removed`:
            a new file that is not finished; `emptied`: a new folder, where nothing is in it;
            `forget` the backup; `lost`: too large for a backup, it is as the script left it.
    """

    how: How
    path: str
    backup: str = ""
    size: int = 0


@dataclass(frozen=True)
class Undone:
    """What has been done, in the order it was, and what could not be, in words."""

    done: tuple[Undo, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def removed(self) -> frozenset[str]:
        """Paths that were removed."""
        return frozenset(one.path for one in self.done if one.how == "removed")


def plan(
    events: Sequence[Event], writing: Iterable[str], caches: Iterable[Path], ignored: Iterable[Path]
) -> list[Undo]:
    """What is to be undone, in this order: the last thing that was done comes first.

    Args:
        writing: files that were open for writing at the end.
        caches: folders where libraries keep their downloads; what they have finished there is
            theirs, and what they have not, they go on with.
        ignored: folders that are removed anyway.
    """
    caches, ignored, writing = tuple(caches), tuple(ignored), frozenset(writing)
    anew = renewed(events)
    renames = Renames(events)
    found = [
        Undo("removed", file.last)
        for file in made(events)
        if {file.last, file.path, file.first} & writing
        # A download that can be resumed is, and others may hold the same lock.
        if not file.last.endswith((*PARTIAL, ".lock")) and not journal.inside(file.last, ignored)
    ]
    for place in reversed(range(len(events))):
        event = events[place]
        path = event.text("to" if event.kind == "rename" else "path")
        if path and not journal.inside(path, ignored):
            cached = path in anew or journal.inside(path, caches)
            finished = cached and path not in writing
            found += _of(event, place, renames, finished)
    return found


def _of(event: Event, place: int, renames: Renames, finished: bool) -> list[Undo]:
    """What undoes one event; `finished`: a library has done it in its cache, or it came anew."""
    if event.kind == "mkdir":
        return [] if finished else [Undo("emptied", renames.moved(event.text("path"), place))]
    if event.kind == "rename":
        return _of_rename(event, place, renames, finished)
    if event.kind not in ("open", "remove") or event.values.get("existed") is False:
        return []
    path = _beside(event.text("path"), place, renames)
    backup = _beside(event.text("backup"), place, renames)
    if backup:
        return [Undo("forget" if finished else "put back", path, backup)]
    if finished or event.kind == "remove":
        return []
    # A file that was empty has no backup when it is written anew.
    if event.text("how") == "append" or not event.number("size"):
        return [Undo("cut back", path, size=event.number("size"))]
    return [Undo("lost", path)]


def _of_rename(event: Event, place: int, renames: Renames, finished: bool) -> list[Undo]:
    """First the old name of what was renamed, then what had the new one."""
    found = []
    if event.values.get("made") is False and not finished:
        found.append(Undo("renamed", event.text("from"), event.text("to")))
    if event.text("backup"):
        path = _beside(event.text("to"), place, renames)
        backup = _beside(event.text("backup"), place, renames)
        found.append(Undo("forget" if finished else "put back", path, backup))
    return found


def _beside(path: str, place: int, renames: Renames) -> str:
    """The path where its folder is now; a rename of the path itself is not meant."""
    if not path:
        return ""
    folder, name = os.path.split(path)
    return os.path.join(renames.moved(folder, place), name)


def undo(plan: Iterable[Undo]) -> Undone:
    """Do it; what a fetch that was killed has done of it already is passed over."""
    done: list[Undo] = []
    problems: list[str] = []
    for one in plan:
        try:
            if _do(one):
                done.append(one)
        except OSError as error:  # noqa: PERF203 - one that fails does not keep the others
            kept = f"; the old one is {one.backup}" if one.backup else ""
            problems.append(f"{one.path} could not be {one.how}: {error.strerror}{kept}")
    return Undone(tuple(done), tuple(problems))


def _do(one: Undo) -> bool:
    if one.how == "lost":
        return True
    if not os.path.lexists(one.backup or one.path):
        return False
    if one.how == "put back" and os.path.isdir(one.path) and not os.path.islink(one.path):
        _put_back_folder(one)
    elif one.how in ("put back", "renamed"):
        os.replace(one.backup, one.path)
        # Two names of one file: the script was killed before it replaced the file.
        if os.path.lexists(one.backup):
            os.unlink(one.backup)
    elif one.how == "cut back":
        if os.stat(one.path).st_size <= one.size:
            return False
        os.truncate(one.path, one.size)
    elif one.how == "emptied":
        # What is not empty stays, and so does what has become a file or a link.
        with suppress(OSError):
            os.rmdir(one.path)
            return True
        return False
    else:
        _remove(one.backup or one.path)
    return one.how != "forget"


def _put_back_folder(one: Undo) -> None:
    """Put back a folder that the script has made anew: what it has put there joins the old files.

    Of two files with the same name the old one is kept.
    """
    for root, _, names in os.walk(one.path):
        for name in names:
            new = os.path.join(root, name)
            old = os.path.join(one.backup, os.path.relpath(new, one.path))
            if not os.path.lexists(old):
                os.makedirs(os.path.dirname(old), exist_ok=True)
                os.replace(new, old)
    shutil.rmtree(one.path)
    os.replace(one.backup, one.path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def lines(undone: Undone, folder: Path, most: int = 10) -> list[str]:
    """What to tell the user, one line each, paths relative to `folder`."""
    words = {
        "put back": "{} is as it was before",
        "renamed": "{} has its old name again",
        "cut back": "{} is as long as before",
        "removed": "{} is removed: it was not finished",
        "emptied": "{} is removed: it was empty",
        "lost": "{} was changed by the script, and is too large to have been kept as it was",
    }
    back = {one.path for one in undone.done if one.how == "put back"}
    said = []
    for one in undone.done:
        # What was new in a folder that is as before is not worth a word.
        if one.how in ("removed", "emptied") and journal.inside(one.path, back):
            continue
        name = os.path.relpath(one.path, folder) if journal.inside(one.path, [folder]) else one.path
        said.append(words[one.how].format(name))
    if len(said) > most:
        said[most:] = [f"... and {len(said) - most} more"]
    return [*said, *undone.problems]
