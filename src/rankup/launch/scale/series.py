"""A series, its record, a folder of its own that outlives whoever started it, and what
became of each of its points.

<runs>/scale/<id>/   scale.json · scaling.html · scaling.txt
<runs>/<name>/<id>-<GPUs>/   the run of each point, a run as any other
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import user_path, write_json
from ...site import rundir
from ...slurm.client import Client
from .. import attempts

FILE = "scale.json"
FOLDER = "scale"
_TAIL = 1 << 18
_METRIC = re.compile(r"loss|acc|top|rouge|perplexity|f1|bleu|score", re.IGNORECASE)


@dataclass(frozen=True)
class Series:
    """The series as it was asked for.

    Attributes:
        target, args: as for `rankup run`; the target of a script is its absolute path.
        counts: GPUs of each point, or ranks where there are none; ascending.
        weak: the batch grows with them, and the number of steps shrinks.
        batch_option: of a script, the option whose value is the global batch.
        per_node: GPUs, or ranks, that one node takes.
        cwd: the folder it was started in.
        options: of the Slurm jobs, by name (`JobSpec.said`); of `env` the names alone.
    """

    id: str
    target: str
    args: list[str]
    counts: list[int]
    weak: bool
    batch_option: str | None
    per_node: int
    cwd: str
    local: bool
    monitor: bool
    options: dict[str, Any] = field(default_factory=dict)


def folder(runs: Path, series: Series) -> Path:
    """Return the folder of its record."""
    return runs / FOLDER / series.id


def write(path: Path, series: Series) -> None:
    """Write the record, old or new, for its owner alone: arguments may be nobody's business."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / FILE, asdict(series), private=True)


def read(path: Path) -> Series:
    """Read the record.

    Raises:
        UserError: it is damaged.
    """
    return rundir.load(path / FILE, _series)


def _series(said: dict[str, Any]) -> Series:
    series = Series(**said)
    words = (series.id, series.target, series.cwd, *series.args)
    numbers = (series.per_node, *series.counts)
    sound = all(isinstance(word, str) for word in words) and isinstance(series.options, dict)
    if not sound or not series.counts or not all(type(n) is int and n > 0 for n in numbers):
        raise ValueError("a value is of the wrong kind")
    if Path(series.id).name != series.id:
        raise ValueError(f"the id {series.id!r} is a path")
    return series


def find(runs: Path, name: str) -> Path | None:
    """The folder of the series meant by an id, `last`, or a path; None where there is none."""
    given = user_path(name, "SERIES")
    if (given / FILE).is_file():
        return given.resolve()
    known = sorted(path.parent for path in (runs / FOLDER).glob(f"*/{FILE}"))
    if name == "last" and known:
        return known[-1].resolve()
    return next((path.resolve() for path in known if path.name == name), None)


def runs_of(path: Path, series: Series, count: int) -> list[Path]:
    """The run directories of a point, one for each attempt, the newest last."""
    runs = path.parent.parent
    name = Path(series.target).stem if series.target.endswith(".py") else series.target
    first = runs / name / f"{series.id}-{count}"
    found = [first, *(first.with_name(f"{first.name}-{n}") for n in range(2, 100))]
    return [one for one in found if (one / rundir.JOB).is_file()]


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
