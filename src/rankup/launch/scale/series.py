"""What a series is, and its record: a folder of its own that outlives whoever started it.

<runs>/scale/<id>/   scale.json · scaling.html · scaling.txt
<runs>/<name>/<id>-<GPUs>/   the run of each point, a run as any other
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import open_regular, user_path, write_json
from ...site import rundir

FILE = "scale.json"
FOLDER = "scale"


@dataclass(frozen=True)
class Series:
    """What was asked for.

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
    """Where its record lies."""
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
    try:
        with open_regular(path / FILE) as file:
            series = Series(**json.loads(file.read(1 << 20)))
        words = (series.id, series.target, series.cwd, *series.args)
        sound = all(isinstance(word, str) for word in words) and series.counts
        if not sound or not all(type(one) is int and one > 0 for one in series.counts):
            raise ValueError("a value is of the wrong kind")
        if Path(series.id).name != series.id or not isinstance(series.options, dict):
            raise ValueError("a value is of the wrong kind")
        return series
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path / FILE} is damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{path / FILE} cannot be read: {error.strerror or error}") from None


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
