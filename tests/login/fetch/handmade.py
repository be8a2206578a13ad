"""Events as a child writes them, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankup.sandbox.events import Event
from rankup.sandbox.watch import Ended, Limits

LIMITS = Limits(seconds=60, memory=10**9)


def event(kind: str, *, pid: int = 1, where: str = "", **values: Any) -> Event:
    """An event; a path may be given as `Path`."""
    plain = {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}
    return Event(event=kind, time=0.0, pid=pid, where=where, **plain)


def new(path: Path | str, pid: int = 1) -> Event:
    """A file that was not there is opened for writing."""
    return event("open", pid=pid, path=str(path), existed=False, how="truncate")


def old(path: Path | str, how: str) -> Event:
    """A file that was there is opened for writing."""
    return event("open", path=str(path), existed=True, how=how)


def rename(source: Path | str, target: Path | str, *, existed: bool = False) -> Event:
    """A file or folder gets another name."""
    names = {"from": str(source), "to": str(target)}
    return event("rename", **names, made=False, existed=existed)


def url(address: str, pid: int = 1, where: str = "") -> Event:
    """A request is made."""
    return event("url", pid=pid, where=where, url=address, method="GET")


def ended(code: int = 0, **changes: Any) -> Ended:
    """A child that ended by itself."""
    return Ended(**{"why": "exit", "code": code, "seconds": 1.0, "memory": 0, **changes})
