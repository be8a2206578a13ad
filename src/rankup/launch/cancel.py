"""`rankup cancel`: end every life of a run, so that none comes after it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..base.errors import UserError
from ..site import config, rundir
from ..site.rundir import Job
from ..slurm.client import Client, SlurmError
from ..slurm.parse import Queued
from . import lives

# Slurm gives the ranks some 30 s (KillWait) before it kills them.
PATIENCE = 40.0
_PAUSE = 0.3


def show(run: str) -> int:
    """Cancel `run` and print what came of it.

    Raises:
        UserError: there is no such run, or Slurm refused.
    """
    path, task = lives.locate(config.load(Path.cwd()).runs, run)
    if task is not None:
        raise UserError(
            f"{run} is one task of an array; `scancel {run}` ends it alone, "
            f"`rankup cancel {path.name}` the whole run"
        )
    for line in cancel(path, Client(timeout=lives.TIMEOUT)):
        print(line, flush=True)
    return 0


def cancel(path: Path, client: Client, patience: float = PATIENCE) -> list[str]:
    """Cancel the run's Slurm jobs, or stop its local process; what came of it, line by line.

    Returns without an error where nothing was going on.

    Raises:
        UserError: there is no such run, or Slurm refused.
    """
    job = lives.read_job(path)
    said: list[str] = []
    if pid := lives.holder(path):
        said.append(_stop(path, pid, patience))
    elif where := _elsewhere(path, job):
        said.append(where)
    if rundir.slurm_jobs(path, job):
        said += _cancel_jobs(path, client, patience)
    return said or ["nothing of this run is going on"]


def _cancel_jobs(path: Path, client: Client, patience: float) -> list[str]:
    job = lives.read_job(path)
    try:
        live = _live(path, job, client)
    except SlurmError:
        if all(not life.live for life in lives.of_run(path, job, lives.NO_SLURM)):
            return []  # by our own records it is over
        raise
    if not live:
        _forget_requeue(path)
        return []
    touched: dict[str, str] = {}
    deadline = time.monotonic() + patience
    while live:
        # Before and after: a rank may just be stopping with a checkpoint, to be requeued.
        _forget_requeue(path)
        new = [row for row in live if touched.get(row.job_id) != _life(row)]
        # Who waits for another job's end comes first, so that it does not start in between.
        new.sort(key=lambda row: (row.state != "PENDING", -_number(row.job_id)))
        client.cancel(row.job_id for row in new)
        touched |= {row.job_id: _life(row) for row in new}
        _forget_requeue(path)
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
        live = _live(path, job, client)
    left = {row.job_id: row.state for row in live}
    return [
        f"job {name}: cancelled, and still ending ({left[name]})"
        if name in left
        else f"job {name}: cancelled"
        for name in sorted(touched, key=_number)
    ]


def _live(path: Path, job: Job, client: Client) -> list[Queued]:
    """The jobs that Slurm has; a job that follows another may have been submitted just now."""
    ids = rundir.slurm_jobs(path, job)
    return [row for rows in client.queue(ids).values() for row in rows]


def _life(row: Queued) -> str:
    """Waiting again after a requeue is another life, to be cancelled again."""
    return "waits" if row.state == "PENDING" else "runs"


def _forget_requeue(path: Path) -> None:
    for marker in (path / "requeue", *path.glob("array/*/requeue")):
        with suppress(OSError):
            marker.unlink(missing_ok=True)


def _stop(path: Path, pid: int, patience: float) -> str:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if lives.holder(path) != pid:
            return f"process {pid}: stopped"
        time.sleep(_PAUSE)
    return (
        f"process {pid}: asked to stop; its ranks are still saving. "
        f"`rankup cancel` once more ends them now"
    )


def _elsewhere(path: Path, job: Job) -> str | None:
    """Words for a run that goes on at another host, as far as its files tell."""
    last: Sequence[dict[str, object]] = job.lives[-1:]
    if not last or "job" in last[0] or "code" in last[0]:
        return None
    with suppress(OSError):
        match = re.fullmatch(r"process (\d+) on (\S+)", (path / "log" / "lock").read_text().strip())
        if match and match[2] != os.uname().nodename:
            return (
                f"it was started as process {match[1]} on {match[2]}, which cannot be seen from "
                f"here; if it still runs: ssh {match[2]} kill {match[1]}"
            )
    return None


def _number(job_id: str) -> int:
    return int(re.split(r"[_+]", job_id)[0] or 0)
