"""What a fetch has done to a script's files, in words, once for all of its starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from . import events as journal
from .outputs import How, Undo
from .undo import Undone

_WORDS: dict[How, str] = {
    "put back": "{} is as it was before",
    "copied back": "{} is as it was before",
    "renamed": "{} has its old name again",
    "cut back": "{} is as long as before",
    "mode": "{} has its old permissions again",
    "removed": "{} is removed: it was not finished",
    "emptied": "{} is removed: it was empty",
    "again": "{} is removed: every start writes it",
    "lost": "{} was changed by the script, and could not be kept as it was",
    "handed": "{} is as it was before",
    "gone": "{} was removed by a program that the script has started, and cannot be put back",
}
_MOST = 10


def lines(undone: Sequence[Undone], folder: Path, new: Collection[str] = ()) -> list[str]:
    """A line for each path, ten at most, paths relative to `folder`.

    Args:
        undone: of each start, in their order.
        new: files that were not there before the first start: what a later one has put back of
            them is not how the user knew them.
    """
    worth: dict[str, Undo] = {}
    for one in (one for start in undone for one in start.done):
        if one.how == "again" or one.path not in worth:
            worth[one.path] = one
    back = {path for path, one in worth.items() if one.how in ("put back", "renamed")}
    joined = [path for start in undone for path in start.joined if os.path.lexists(path)]
    told = []
    for path, one in worth.items():
        old = path not in new or one.how in ("removed", "again")
        if one.how in _WORDS and old and not _nested(one, worth, back):
            has_more = path in back and any(journal.inside(other, [path]) for other in joined)
            words = "{} has its old files again" if has_more else _WORDS[one.how]
            told.append(words.format(shown(path, folder)))
    if len(told) > _MOST:
        told[_MOST:] = [f"... and {len(told) - _MOST} more"]
    problems = dict.fromkeys(line for start in undone for line in start.problems)
    return [*told, *problems]


def _nested(one: Undo, worth: Mapping[str, Undo], back: Collection[str]) -> bool:
    """Whether another line says enough: of a folder that is as before, or of what was in it."""
    above = os.path.dirname(one.path)
    if one.how in ("removed", "emptied") and journal.inside(above, back):
        return True
    others = [path for path, other in worth.items() if other.how in ("removed", "again")]
    folders = [path for path, other in worth.items() if other.how == "emptied"]
    return one.how == "emptied" and (
        journal.inside(above, folders) or any(journal.inside(path, [one.path]) for path in others)
    )


def shown(path: str, folder: Path) -> str:
    """A path, relative to `folder` where it lies in it."""
    return os.path.relpath(path, folder) if journal.inside(path, [folder]) else path
