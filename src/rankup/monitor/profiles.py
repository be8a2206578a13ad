"""Steps that were profiled (`--profile`): the numbers that lie beside each trace."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "profile"


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


def read(directory: Path) -> tuple[Profile, ...]:
    """Return the profiles of a run, the newest steps first; what cannot be read is left out."""
    found = []
    for path in (directory / FOLDER).glob("steps-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(path.read_text(encoding="utf-8"))
            profile = Profile(
                rank=int(said["rank"]),
                node=str(said["node"]),
                steps=(int(said["steps"][0]), int(said["steps"][1])),
                operators=tuple(
                    Operator(str(one["name"]), int(one["calls"]), float(one["seconds"]))
                    for one in said["operators"]
                ),
                trace=f"{FOLDER}/{said['trace']}",
                **{
                    name: float(said[name])
                    for name in ("seconds", "computing", "collectives", "waiting")
                },
            )
            found.append(profile)
    return tuple(sorted(found, key=lambda one: (-one.steps[0], one.rank)))
