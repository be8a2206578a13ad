"""After a fetch that was killed: its script's files are put back by the next one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from . import events, outputs, said, sources, state
from .attempt import left_open, put_back
from .progress import say
from .tree import Tree

_LATER = 5.0  # seconds after the last sign of life: what is written then, another program wrote


def recover(area: Path, folder: Path) -> None:
    """Undo what fetches that were killed have left, and say so, with paths below `folder` short.

    The caller holds the lock of the area.
    """
    for path in sorted(area.glob("fetch-*-*")):
        if state.is_foreign(path):
            say(f"{path} is of a fetch in another place, and left alone; remove it")
    for left in state.abandoned(area):
        _one(left, folder)


def _one(left: state.State, folder: Path) -> None:
    tree = Tree(None, str(left.folder))
    tree.freeze()
    writing = tree.writing()
    tree.kill()
    seen = left.journal.read_all()
    plan = outputs.plan(seen, writing | left_open(seen), left.caches, (left.folder, left.temporary))
    newer = _newer(plan, left) - writing
    undone = put_back(left, seen, writing | left_open(seen), but=newer)
    if undone.done or undone.problems or newer:
        say("an earlier fetch was killed; its script's files are put back:")
    for line in said.lines([undone], folder):
        say(line)
    for one in plan:
        if one.path in newer:
            old = f"; the old one is {one.backup}" if one.backup else ""
            say(f"{said.shown(one.path, folder)} was written since, and stays as it is{old}")
    last = [one for one in sources.made(seen) if Path(one.path).is_file()][-1:]
    for file in last if not any(event.kind == "stop" for event in seen) else ():
        if file.path not in undone.removed and not events.inside(file.path, left.caches):
            say(f"{file.path} came last before that, and may not be whole: look at it")


def _newer(plan: Iterable[outputs.Undo], left: state.State) -> set[str]:
    """Files that somebody has written since the fetch was killed: a job its results, say."""
    try:
        killed = (left.folder / state.ALIVE).stat().st_mtime
    except OSError:
        return set()
    found = set()
    for one in plan:
        path = Path(one.path)
        if path.is_file() and path.stat().st_mtime > killed + _LATER and one.how != "forget":
            found.add(one.path)
    return found
