"""What became of each point of a series, and what it reached."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import UserError
from ...site import rundir
from ...slurm.client import Client
from .. import attempts
from .series import Series, runs_of

_TAIL = 1 << 18
_METRIC = re.compile(r"loss|acc|top|rouge|perplexity|f1|bleu|score", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """A point as it stands.

    Attributes:
        path: its newest run directory; None before it was started.
        attempts: run directories so far.
        state: of its newest attempt, in Slurm's word; `NEW` before it was started.
        done: it came to its end; it is not run again.
        live: it waits or runs.
        saved: it ended early and has a checkpoint to go on from.
        words: what happened, in plain words.
        metrics: what it reached at its end, by name: losses, accuracies.
    """

    count: int
    path: Path | None = None
    attempts: int = 0
    state: str = "NEW"
    done: bool = False
    live: bool = False
    saved: bool = False
    words: str = ""
    metrics: dict[str, float] = field(default_factory=dict)


def outcomes(path: Path, series: Series, client: Client) -> list[Outcome]:
    """Every point of the series in the folder `path`."""
    return [_outcome(count, runs_of(path, series, count), client) for count in series.counts]


def _outcome(count: int, found: list[Path], client: Client) -> Outcome:
    if not found:
        return Outcome(count)
    path = found[-1]
    try:
        last = attempts.newest(attempts.of_run(path, rundir.read(path), client))
    except UserError as error:
        return Outcome(count, path, len(found), "DAMAGED", words=str(error))
    if last is None:
        return Outcome(count, path, len(found), words="It has not been started.")
    stopped = (path / "requeue").exists()
    done = last.state == "COMPLETED" and not last.live and not stopped
    return Outcome(
        count,
        path,
        len(found),
        "STOPPED" if stopped and not last.live else last.state,
        done,
        last.live,
        not done and any(path.glob("checkpoints/*")),
        last.words,
        _metrics(path) if done else {},
    )


def _metrics(path: Path) -> dict[str, float]:
    """The last value of each measure in `metrics.jsonl`; a recipe's last line has them all."""
    return {
        name: float(value)
        for record in rundir.metrics(path, _TAIL)
        for name, value in record.items()
        if isinstance(value, int | float) and math.isfinite(value) and _METRIC.search(name)
    }
