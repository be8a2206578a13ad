"""The copies that there are on this node: who uses them, and their end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...base import lock
from ...base.amounts import size
from . import find, place, room, users, waiting
from .users import Alive, Job
from .waiting import Say

_BRIEF = 60.0  # seconds; what is written beside a lock is there for milliseconds


def release(job: Job, sources: Sequence[Path] | None, say: Say) -> list[str]:
    """Take a job off the users of its copies, and remove those that nobody uses then.

    Args:
        sources: real paths or others; None: all that it uses.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    names = None if sources is None else {place.keyed(path) for path in sources}
    done = []
    for entry in entries():
        if names is not None and entry.name not in names:
            continue
        if not (entry / find.USERS / job.name).exists():
            continue
        source = named(entry)
        with waiting.alone(entry, say), elsewhere(entry, say):
            (entry / find.USERS / job.name).unlink(missing_ok=True)
            others = living(entry, users.unknown)
            # Without a marker nobody has what there is: who copies would hold the lock.
            if others and (entry / find.MARKER).exists():
                still = ", ".join(users.shown(one) for one in others)
                done.append(f"{source}: its copy stays for {still}")
            else:
                done.append(f"{source}: its copy of {size(remove(entry))} is removed")
    return done


def clean(alive: Alive, to: Path | None, say: Say) -> list[str]:
    """Remove copies that were interrupted, and those whose users are all over; `to` as `entries`.

    Returns:
        What was done, line by line.

    Raises:
        OSError: a copy could not be removed.
    """
    done = []
    for entry in entries(to):
        with (
            suppress(lock.Taken),  # somebody copies it just now
            lock.held(entry, say, doing="staging", wait=False),
            elsewhere(entry, say),
        ):
            why = _leftover(entry, alive)
            if why:
                source = named(entry)
                done.append(f"{source}: {why}; {size(remove(entry))} are free again")
    for root in _roots(to):
        waiting.forget_failures(root)
        _tidy(root, say)
    return done


def _tidy(root: Path, say: Say) -> None:
    """Remove the locks, and other hidden files, of processes that were killed."""
    for path in root.glob(".*.lock"):
        target = root / path.name[1:].removesuffix(".lock")
        with suppress(lock.Taken), lock.held(target, say, wait=False):
            pass
    for pattern in (".*.lock.*", ".*.tmp"):
        for path in root.glob(pattern):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _BRIEF:
                    path.unlink()


def listed(alive: Alive = users.unknown) -> list[dict[str, Any]]:
    """All copies of this user on this node: source, path, state, bytes and users, by JSON names."""
    return [_described(entry, alive) for entry in entries()]


def entries(to: Path | None = None) -> list[Path]:
    """The folders of copies, and links to such; only in folders that are ours alone.

    Args:
        to: a folder that is looked through beside the usual ones.
    """
    found: dict[Path, Path] = {}
    for root in _roots(to):
        for entry in place.keys(root):
            found.setdefault(entry.resolve(), entry)
    return sorted(found.values())


def _roots(to: Path | None) -> Iterator[Path]:
    temporary = os.environ.get("TMPDIR")
    bases = [place.home(os.environ), to, Path(temporary) if temporary else None]
    for base in bases:
        if base is not None:
            root = place.folder_of(base)
            with suppress(OSError):
                if not place.trusted(root):
                    yield root


@contextmanager
def elsewhere(entry: Path, say: Say) -> Iterator[None]:
    """Hold the lock of the copy that an entry leads to as well, where that is elsewhere."""
    folder = entry.resolve()
    if folder == entry.absolute() or not folder.parent.is_dir():
        yield
    else:
        with lock.held(folder, say, waiting.QUICK, doing="staging"):
            yield


def living(entry: Path, alive: Alive) -> list[Job]:
    """The users of a copy that are not known to be gone."""
    found = users.of(entry / find.USERS).values()
    return [one for one in found if one is not None and not users.over(one, alive)]


def clear(entry: Path) -> None:
    """Remove a copy, but not the list of its users; the marker goes first.

    Raises:
        OSError: it cannot be removed.
    """
    folder = entry.resolve()
    with suppress(FileNotFoundError):
        (folder / find.MARKER).unlink()
    for name in (find.DATA, find.PART):
        with suppress(FileNotFoundError):
            shutil.rmtree(folder / name)
    with suppress(FileNotFoundError):
        (folder / find.INDEX).unlink()


def remove(entry: Path) -> int:
    """Remove a copy, and the link that leads to it; the bytes that it took.

    Raises:
        OSError: it cannot be removed.
    """
    folder = entry.resolve()
    taken, _ = room.copies(folder)
    clear(folder)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
    return taken


def named(entry: Path) -> str:
    """The source of a copy, as far as that is known."""
    copy = find.read(entry)
    return str(copy.source) if copy is not None else entry.name


def _leftover(entry: Path, alive: Alive) -> str:
    """Why a copy can go; empty where it cannot. Nobody copies it: its lock is held."""
    if not (entry / find.MARKER).exists():
        return "an interrupted copy"
    found = users.of(entry / find.USERS).values()
    if living(entry, alive):
        return ""
    gone = ", ".join(users.shown(one) for one in found)
    return f"nobody uses its copy any more ({gone or 'nobody is noted'})"


def _described(entry: Path, alive: Alive) -> dict[str, Any]:
    folder = entry.resolve()
    using = users.of(folder / find.USERS).values()
    copy = find.read(folder)
    gone = [users.shown(one) for one in using if users.over(one, alive)]
    about: dict[str, Any] = {
        "users": [users.shown(one) for one in using if not users.over(one, alive)],
        "gone": gone,
    }
    if copy is None:
        state = "being copied" if _busy(entry) else "interrupted"
        taken, _ = room.copies(folder)
        return {"source": entry.name, "path": str(folder), "state": state, "size": taken, **about}
    try:
        state = "out of date" if find.changed(copy) else "ready"
    except OSError:
        state = "ready, and its source cannot be seen"
    return {
        "source": str(copy.source),
        "path": str(copy.root),
        "state": state,
        "size": copy.size,
        "total": copy.total,
        **about,
    }


def _busy(entry: Path) -> bool:
    try:
        with lock.held(entry, lambda _: None, wait=False):
            return False
    except lock.Taken:
        return True
