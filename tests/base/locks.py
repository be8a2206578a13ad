"""Locks as others have left them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rankup.base import holder
from rankup.base.lock import Pace

PACE = Pace(renew=0.05, stale=1.0, poll=0.01)
# Where nobody falls silent: a machine that stands still for a second makes no lock stale.
PATIENT = Pace(renew=0.05, stale=60.0, poll=0.01)


def quiet(line: str) -> None:
    """Says nothing."""


def file_of(target: Path) -> Path:
    """The lock's file."""
    return target.with_name(f".{target.name}.lock")


def left_by_another(target: Path, **changes: object) -> Path:
    """A lock file as another process would have left it."""
    path = file_of(target)
    me = holder.myself()
    path.write_text(json.dumps({**dataclasses.asdict(me), "token": "other", **changes}))
    return path
