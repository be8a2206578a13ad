"""What the parent wants of the processes that it starts: `plan.json` in the state folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = "plan.json"
OUTCOMES = "outcomes.json"
# Divisible by 2 and 3, so that a hand-written port can give each rank an equal part of a batch.
BATCH = 12
# Two whole batches and a short one; neither 2 nor 3 divides it, so that padding shows.
SAMPLES = 31
EPOCHS, STEPS = 2, 12


@dataclass(frozen=True)
class Run:
    """One start of a script.

    Attributes:
        name: also of its files in the state folder.
        world: ranks; 0: the original, alone and without a launcher.
        folder: what it may write to, and takes for its project.
        kill_at: after so many optimizer steps rank 1 is killed; 0: never.
    """

    name: str
    script: str
    folder: str
    cwd: str
    world: int
    kill_at: int = 0

    @property
    def ranks(self) -> int:
        """How many processes it has."""
        return max(1, self.world)


@dataclass(frozen=True)
class Try:
    """How the original is started; when it fails, the next try is made.

    Attributes:
        gpu: `torch.cuda.is_available()` is true.
        batch: samples in a batch of 2 or more; 0: as the script says.
    """

    gpu: bool
    batch: int


TRIES = (Try(False, BATCH), Try(True, BATCH), Try(False, 0), Try(True, 0))


@dataclass(frozen=True)
class Plan:
    """The fields of `plan.json`.

    Attributes:
        state: folder of journals.
        temporary: the scripts' TMPDIR.
        stand_ins: folders put in front of the module path.
        seconds: limit of one run.
        runs: the original first.
    """

    state: str
    temporary: str
    args: tuple[str, ...]
    stand_ins: tuple[str, ...]
    seconds: float
    runs: tuple[Run, ...]

    def write(self) -> None:
        """Put it into the state folder."""
        Path(self.state, FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def load(state: str) -> Plan:
    """The plan in a state folder."""
    with open(os.path.join(state, FILE), encoding="utf-8") as file:
        values: dict[str, Any] = json.load(file)
    values["runs"] = tuple(Run(**one) for one in values["runs"])
    for name in ("args", "stand_ins"):
        values[name] = tuple(values[name])
    return Plan(**values)


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        code: exit code, negative for a signal; None: it had to be ended.
        finished: its script came to its end.
        said: the last it wrote to stderr.
    """

    code: int | None
    finished: bool
    said: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        why: `exit`, or `time` when its limit was reached.
        seconds: from start to end.
        tried: the `Try` that it was made with.
        patience: seconds until the last rank ended, once one had failed.
    """

    name: str
    why: str
    seconds: float
    ranks: tuple[RankEnd, ...]
    tried: Try = field(default_factory=lambda: TRIES[0])
    patience: float = 0.0


def journal(state: str, run: str, rank: int) -> str:
    """The file of a rank's journal."""
    return os.path.join(state, f"{run}-{rank}.jsonl")


def outcome_from(values: dict[str, Any]) -> Outcome:
    """From its JSON form."""
    ranks = tuple(RankEnd(**one) for one in values["ranks"])
    return Outcome(**{**values, "ranks": ranks, "tried": Try(**values["tried"])})
