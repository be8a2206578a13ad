"""How the run is, from its own records alone: Slurm is not asked here."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UserError
from ...base.files import open_regular
from ...site import rundir
from ...site.rundir import Job
from ...slurm import times

_LIMIT = re.compile(r"^#SBATCH --time=(\S{1,40})$", re.MULTILINE)
_HEADER = 64 * 1024  # bytes of the job script


@dataclass(frozen=True)
class State:
    """A run now.

    Attributes:
        id, name: of the run; name is the recipe's or the script's.
        state: Slurm's word, empty where nobody knows.
        words: why it waits, how it ended.
        live: it waits or runs; None where nobody knows.
        begin, end: unix seconds of its newest life; None where not known.
        limit: unix seconds at which the time limit ends that life; None without one.
        steps: that it is to take; None where nobody says.
        log: the file that it prints into.
    """

    id: str
    name: str = ""
    state: str = ""
    words: str = ""
    live: bool | None = None
    begin: float | None = None
    end: float | None = None
    limit: float | None = None
    steps: int | None = None
    log: Path | None = None


def own(path: Path) -> State:
    """What the run directory says of itself; of one without `job.json` only its name."""
    try:
        job = rundir.read(path)
    except UserError:
        return State(path.name, log=newest_log(path))
    begin, end, code = _newest_life(job, rundir.records(path))
    limit = time_limit(path)
    over = end is not None
    return State(
        id=job.id,
        name=job.name,
        state="" if begin is None else _word(over, code),
        words=f"exit code {code:.0f}" if over and code else "",
        live=False if over else None,
        begin=begin,
        end=end,
        limit=begin + limit if begin is not None and limit is not None and not over else None,
        steps=_steps(job),
        log=newest_log(path),
    )


def time_limit(path: Path) -> float | None:
    """Seconds that each life of a Slurm run may take, as its job script asks for them."""
    with suppress(OSError, ValueError):
        with open_regular(path / "job.sh") as file:
            found = _LIMIT.search(file.read(_HEADER).decode("utf-8", "replace"))
        minutes = times.minutes(found[1].strip("'\"")) if found else None
        return None if minutes is None else 60.0 * minutes
    return None


def newest_log(path: Path) -> Path | None:
    """The file below `log/` that the run printed into last."""
    files = [*(path / "log").glob("*.out"), path / "log" / "torchrun.log"]
    dated = []
    for file in files:
        with suppress(OSError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                dated.append((status.st_mtime, file))
    return max(dated)[1] if dated else None


def _newest_life(
    job: Job, records: Sequence[Mapping[str, Any]]
) -> tuple[float | None, float | None, float | None]:
    """Begin, end and exit code of the life that began last."""
    begin = end = code = None
    for record in records:
        if "start" in record:
            begin, end, code = record["start"], None, None
        elif "end" in record:
            end, code = record["end"], record.get("code")
    last = job.lives[-1] if isinstance(job.lives, list) and job.lives else None
    if isinstance(last, dict) and "job" not in last:
        started = rundir.moment(last.get("started"))
        if started is not None and (begin is None or started >= begin):
            ended, said = rundir.moment(last.get("ended")), last.get("code")
            return started, ended, said if isinstance(said, int) else None
    return begin, end, code


def _word(over: bool, code: float | None) -> str:
    if not over:
        return "RUNNING"
    return "FAILED" if code else "COMPLETED"


def _steps(job: Job) -> int | None:
    """How many steps a recipe was asked for."""
    if job.kind != "recipe":
        return None
    from ... import recipes

    with suppress(UserError):
        steps = getattr(recipes.find(job.target).parse(job.args), "steps", None)
        return steps if isinstance(steps, int) else None
    return None
