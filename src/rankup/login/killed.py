"""Fetches that were killed: what their scripts changed is put back by the next one, and not yet."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import words

# The lock of a fetch that goes on is renewed every few seconds.
_STALE = 60.0
_MOST_NAMED = 3


@dataclass(frozen=True)
class Killed:
    """One of them: what is known of it, and the command that undoes it."""

    what: str
    todo: str


def killed(project: Path) -> Iterator[Killed]:
    """Each fetch of a project that was killed and is not undone.

    Quick where there is none.
    """
    area = project / ".rankup"
    for folder in sorted(area.glob("fetch-*-*")):
        with suppress(OSError):
            if folder.is_dir() and folder.stat().st_uid == os.getuid() and not _goes_on(area):
                yield _told(folder)


def _goes_on(area: Path) -> bool:
    """Whether somebody holds the area's lock: a fetch that was killed on this node does not."""
    lock = area / ".project.lock"
    try:
        fresh = time.time() - lock.stat().st_mtime < _STALE
        holder = json.loads(lock.read_text(encoding="utf-8"))
        if holder["node"] == os.uname().nodename:
            os.kill(int(holder["pid"]), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:  # another user's process, so it is there
        return True
    except (OSError, ValueError, TypeError, KeyError, OverflowError):  # while it is being written
        return True
    return fresh


def _told(folder: Path) -> Killed:
    from .fetch import state  # seldom needed

    if state.is_foreign(folder):
        what = f"{folder} is of a fetch in another folder, from which this one was copied"
        return Killed(what, shlex.join(["rm", "-r", str(folder)]))
    names = [os.path.basename(path) for path in _changed(folder)]
    script, args = _start(folder)
    of = f" of {os.path.basename(script)}" if script else ""
    todo = words.command(["rankup", "fetch", *([script, *args] if script else ["SCRIPT"])])
    if not names:
        return Killed(f"an earlier fetch{of} was killed", f"{todo} clears up after it")
    files = (
        "1 file is as it left it" if len(names) == 1 else f"{len(names)} files are as it left them"
    )
    more = ", ..." if len(names) > _MOST_NAMED else ""
    shown = f"{', '.join(names[:_MOST_NAMED])}{more}"
    what = f"an earlier fetch{of} was killed, and {files}: {shown}"
    return Killed(what, f"{todo} puts back what was there before")


def _changed(folder: Path) -> list[str]:
    """The user's files that are not as they were before that fetch."""
    from .fetch import outputs, state

    left = state.of(folder)
    if left is None:
        return []
    plan = outputs.plan(left.journal.read_all(), (), left.caches, (folder, left.temporary))
    back = {
        one.path
        for one in plan
        if one.how in ("put back", "renamed", "cut back")
        and os.path.lexists(one.backup or one.path)
    }
    return sorted(back)


def _start(folder: Path) -> tuple[str, list[str]]:
    """The script with its arguments; empty where it had not come so far."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        script, args = spec["script"], spec["args"]
        if isinstance(script, str) and all(isinstance(one, str) for one in args):
            path = os.path.relpath(script)
            return (script if path.startswith("..") else path), list(args)
    return "", []
