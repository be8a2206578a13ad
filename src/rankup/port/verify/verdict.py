"""What came of each of the seven checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["proved", "differs", "not seen", "-"]

CHECKS = {
    "losses": "losses equal at equal global batch",
    "parameters": "parameters equal on all ranks",
    "samples": "each sample seen once",
    "evaluation": "evaluation exact",
    "output": "one writer per file, the same printed lines",
    "saved": "saved file loads into the original, strict=True",
    "killed": "a killed rank ends the rest",
}


@dataclass(frozen=True)
class Result:
    """Of one check on some number of ranks.

    Attributes:
        check: key of `CHECKS`.
        state: `-`: means nothing on so many ranks; `not seen`: the script did nothing of the kind.
        detail: a few words or figures for the table.
        difference: the first one, explained; empty unless `differs`.
    """

    check: str
    world: int
    state: State
    detail: str = ""
    difference: str = ""


def differs(check: str, world: int, difference: str, detail: str = "") -> Result:
    """One that was not passed."""
    return Result(check, world, "differs", detail, difference)
