"""Steps that were profiled (`--profile`): the numbers that lie beside each trace."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.files import open_regular
from ..site.rundir import PROFILE

_LONGEST = 1 << 20  # bytes; the trainer writes a few kilobytes


@dataclass(frozen=True)
class Operator:
    """An operator: how often it was called, and its seconds without those that it calls."""

    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The profiled steps of a rank, in seconds.

    Attributes:
        steps: the first and the last.
        computing: something was computed; collectives: one was under way; waiting: and nothing was
            computed beside it.
        operators: those that took most, in order.
        trace: path of it, in the run directory.
    """

    rank: int
    node: str
    steps: tuple[int, int]
    seconds: float
    computing: float
    collectives: float
    waiting: float
    operators: tuple[Operator, ...]
    trace: str

    def shares(self) -> tuple[float, float, float]:
        """Return the shares of the time that went into computing, collectives and waiting."""
        whole = max(self.seconds, 1e-9)
        return self.computing / whole, self.collectives / whole, self.waiting / whole


def read(directory: Path) -> tuple[tuple[Profile, ...], tuple[tuple[str, str], ...]]:
    """Return the profiles of a run, the newest steps first; and file and why of the unreadable."""
    found, unread = [], []
    for path in sorted((directory / PROFILE).glob("steps-*.json")):
        one = _read(path)
        if isinstance(one, Profile):
            found.append(one)
        else:
            unread.append((f"{PROFILE}/{path.name}", one))
    return tuple(sorted(found, key=lambda one: (-one.steps[0], one.rank))), tuple(unread)


def _read(path: Path) -> Profile | str:
    try:
        with open_regular(path) as file:
            return _profile(json.loads(file.read(_LONGEST)))
    except Exception as error:  # whatever is wrong with one, the report is made
        return f"{type(error).__name__}: {error}"


def _profile(said: dict[str, Any]) -> Profile:
    first, last = said["steps"]
    return Profile(
        rank=int(said["rank"]),
        node=str(said["node"]),
        steps=(int(first), int(last)),
        operators=tuple(
            Operator(str(one["name"]), int(one["calls"]), _seconds(one["seconds"]))
            for one in said["operators"]
        ),
        trace=f"{PROFILE}/{said['trace']}",
        **{
            name: _seconds(said[name])
            for name in ("seconds", "computing", "collectives", "waiting")
        },
    )


def _seconds(said: float) -> float:
    if not (math.isfinite(said) and said >= 0):
        raise ValueError(f"{said} is no time")
    return float(said)
