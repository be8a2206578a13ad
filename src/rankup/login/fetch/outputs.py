"""What undoes what a script did to files of its own: a start that was stopped is no run.

What came from the network stays, and so does what the script made and closed; of a proof, which
shows what a start makes of that, nothing stays. Before the child changes a file that was there, it
sets the old one aside; `undo` puts it back.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import events as journal
from .events import Event
from .sources import PARTIAL, Renames, made, renewed

How = Literal[
    "put back",
    "copied back",
    "renamed",
    "cut back",
    "mode",
    "removed",
    "unmade",
    "emptied",
    "again",
    "forget",
    "lost",
    "handed",
    "gone",
]


@dataclass(frozen=True)
class Undo:
    """One thing to do.

    Attributes:
        how: `put back` the backup, a file or a folder, in the place of what is there now;
            `copied back`: likewise, of a file that is still the one it was, if it has changed;
            `renamed`: give `backup` its old name again; `cut back` to `number` bytes; `mode`: give
            it the permissions `number` again; `removed`: a new file that is not finished;
            `unmade`: a new file that is not worth a word; `emptied`: a new folder, where nothing is
            in it; `again`: a new file that every start writes; `forget` the backup; `lost`: too
            large for a backup, it is as the script left it, if `changed` is not its time now.
            `handed`: `put back` what another program has replaced or removed; `gone`: a folder that
            one has removed.
        changed: when its content was changed last, in ns.
    """

    how: How
    path: str
    backup: str = ""
    number: int = 0
    changed: int = 0


def plan(
    events: Sequence[Event],
    writing: Iterable[str],
    caches: Iterable[Path],
    ignored: Iterable[Path],
    *,
    keep_new: bool = True,
) -> list[Undo]:
    """What is to be undone, in this order: the last thing that was done comes first.

    Args:
        writing: files that were open for writing at the end.
        caches: folders where libraries keep their downloads; what they have finished there is
            theirs, and what they have not, they go on with.
        ignored: folders that are removed anyway.
        keep_new: new files that are finished stay; else those outside of caches go, too.
    """
    caches, ignored, writing = tuple(caches), tuple(ignored), frozenset(writing)
    anew = renewed(events)
    renames = Renames(events)
    found = _new_ones(events, writing, ignored)
    if not keep_new:
        found += _all_new_ones(events, (*caches, *ignored), {one.path for one in found})
    for place in reversed(range(len(events))):
        event = events[place]
        path = event.text("to" if event.kind == "rename" else "path")
        if path and not journal.inside(path, ignored):
            cached = path in anew or journal.inside(path, caches)
            finished = cached and path not in writing
            found += _of(event, place, renames, finished)
    return found


def _new_ones(
    events: Sequence[Event], writing: frozenset[str], ignored: tuple[Path, ...]
) -> list[Undo]:
    """New files that are not finished; and what stands beside a database, which comes back."""
    unfinished = [
        Undo("removed", file.last)
        for file in made(events)
        if {file.last, file.path, file.first} & writing
        # A download that can be resumed is, and others may hold the same lock.
        if not file.last.endswith((*PARTIAL, ".lock")) and not journal.inside(file.last, ignored)
    ]
    beside = [
        Undo("unmade", event.text("path"))
        for event in journal.of(events, "open")
        if event.values.get("beside") is True and event.values.get("existed") is False
    ]
    return beside + [one for one in unfinished if one.path not in {b.path for b in beside}]


def _all_new_ones(
    events: Sequence[Event], kept: tuple[Path, ...], known: Collection[str]
) -> list[Undo]:
    """Every new file and link outside of the folders `kept`."""
    # Something old may lie there now, until it has its old name again.
    old = {e.text("to") for e in journal.of(events, "rename") if e.values.get("made") is False}
    paths = [file.last for file in made(events)]
    paths += [event.text("path") for event in journal.of(events, "link")]
    return [
        Undo("unmade", path)
        for path in dict.fromkeys(paths)
        if path not in known and not journal.inside(path, kept) and not journal.inside(path, old)
    ]


def _of(event: Event, place: int, renames: Renames, finished: bool) -> list[Undo]:
    """What undoes one event; `finished`: a library has done it in its cache, or it came anew."""
    if event.kind == "mkdir":
        return [] if finished else [Undo("emptied", renames.moved(event.text("path"), place))]
    if event.kind == "rename":
        return _of_rename(event, place, renames, finished)
    if event.kind == "chmod":
        path = _beside(event.text("path"), place, renames)
        return [Undo("mode", path, number=event.number("mode"))]
    if event.kind == "handed":
        return _of_handed(event, place, renames, finished)
    if event.kind not in ("open", "remove") or event.values.get("existed") is False:
        return []
    path = _beside(event.text("path"), place, renames)
    backup = _beside(event.text("backup"), place, renames)
    if backup:
        how: How = "copied back" if event.text("how") == "update" else "put back"
        return [Undo("forget" if finished else how, path, backup)]
    if finished or event.kind == "remove":
        return []
    # A file that was empty has no backup when it is written anew.
    if event.text("how") == "append" or not event.number("size"):
        return [
            Undo("cut back", path, number=event.number("size"), changed=event.number("changed"))
        ]
    return [Undo("lost", path, changed=event.number("changed"))]


def _of_handed(event: Event, place: int, renames: Renames, finished: bool) -> list[Undo]:
    """What another program may have replaced, removed, or changed in its place."""
    path = _beside(event.text("path"), place, renames)
    backup = _beside(event.text("backup"), place, renames)
    if event.values.get("folder") is True:
        return [] if finished else [Undo("gone", path)]
    if finished:
        return [Undo("forget", path, backup)] if backup else []
    kept = [Undo("handed", path, backup)] if backup else []
    return [*kept, Undo("lost", path, changed=event.number("changed"))]


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
