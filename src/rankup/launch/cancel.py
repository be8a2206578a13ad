"""`rankup cancel`: end every attempt of a run, so that none comes after it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..base.files import write_atomic
from ..site import rundir
from ..site.rundir import Job
from ..slurm.client import Client, SlurmError
from ..slurm.parse import Queued
from . import attempts, meant

# An attempt that finds it at its start stops itself; a submission removes it.
CANCELLED = Path("log") / "cancelled"
# Slurm gives the ranks some 30 s (KillWait) before it kills them.
PATIENCE = 40.0
_PAUSE = 1.0


def show(run: str) -> int:
    """Cancel `run` and print what came of it.

    Raises:
        UserError: there is no such run, or Slurm refused.
    """
    here, client = meant.here()
    for line in cancel(meant.locate(here.runs, run, client), client):
        print(line, flush=True)
    return 0


def cancel(path: Path, client: Client, patience: float = PATIENCE) -> list[str]:
    """Cancel the run's Slurm jobs, or stop its local process; what came of it, line by line.

    Returns without an error where nothing was going on.

    Raises:
        UserError: there is no such run, or Slurm refused.
    """
    job = rundir.read(path)
    _mark(path)
    said: list[str] = []
    if pid := attempts.holder(path):
        said.append(_stop(path, pid, patience))
    elif where := _elsewhere(path, job):
        said.append(where)
    said += _cancel_jobs(path, job, client, patience)
    return said or ["nothing of this run is going on"]


def _mark(path: Path) -> None:
    """Whatever begins from now on finds it; also what Slurm starts while it does not answer us."""
    try:
        (path / "log").mkdir(exist_ok=True)
        write_atomic(path / CANCELLED, b"")
    except OSError as error:
        print(
            f"warning: {path / CANCELLED} cannot be written ({error.strerror}), so an attempt that "
            "Slurm starts later is not stopped by it",
            file=sys.stderr,
        )


def _cancel_jobs(path: Path, job: Job, client: Client, patience: float) -> list[str]:
    try:
        live = attempts.live(path, job, client)
    except SlurmError as error:
        # By our own records it is over, or was never a job.
        if all(
            not attempt.live
            for attempt in attempts.of_run(path, job, attempts.NO_SLURM)
            if attempt.job
        ):
            return []
        raise SlurmError(
            error.command,
            error.said,
            "What starts of this run from now on ends at once; `rankup cancel` once more, when "
            "Slurm answers, ends what runs now",
            unreachable=error.unreachable,
        ) from None
    if not live:
        _forget_requeue(path)
        return []
    touched: dict[str, str] = {}
    deadline = time.monotonic() + patience
    while live:
        # Before and after: a rank may just be stopping with a checkpoint, to be requeued.
        _forget_requeue(path)
        new = [row for row in live if touched.get(row.job_id) != _attempt(row)]
        # Who waits for another job's end comes first, so that it does not start in between.
        new.sort(key=lambda row: (row.state != "PENDING", -int(row.job_id)))
        client.cancel(dict.fromkeys(row.job_id for row in new))
        touched |= {row.job_id: _attempt(row) for row in new}
        _forget_requeue(path)
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE)
        live = attempts.live(path, job, client)
    return list(_told(touched, {row.job_id: row.state for row in live}))


def _told(touched: Iterable[str], left: dict[str, str]) -> Iterable[str]:
    for name in sorted(touched, key=int):
        still = f", and still ending ({left[name]})" if name in left else ""
        yield f"job {name}: cancelled{still}"


def _attempt(row: Queued) -> str:
    """Waiting again after a requeue is another attempt, to be cancelled again."""
    return "waits" if row.state == "PENDING" else "runs"


def _forget_requeue(path: Path) -> None:
    with suppress(OSError):
        (path / "requeue").unlink(missing_ok=True)


def _stop(path: Path, pid: int, patience: float) -> str:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if attempts.holder(path) != pid:
            return f"process {pid}: stopped"
        time.sleep(_PAUSE)
    return (
        f"process {pid}: asked to stop; its ranks are still saving. "
        f"`rankup cancel` once more ends them now"
    )


def _elsewhere(path: Path, job: Job) -> str | None:
    """Words for a run that goes on where it cannot be stopped from here, as its files tell."""
    last = job.attempts[-1] if job.attempts else {}
    if not last or "job" in last or "code" in last:
        return None
    number = str(last.get("allocation", ""))
    inside = number if number.isdecimal() else None
    if pid := attempts.orphaned(path):
        how = (
            f"end its ranks with `scancel --signal=TERM {inside}`, or with the whole allocation: "
            f"`scancel {inside}`"
            if inside
            else f"`fuser -v {path / 'log' / 'lock'}` names its processes"
        )
        return f"process {pid}, which started it, has ended, but its job script runs on; {how}"
    taken = attempts.written(path)
    if taken and taken[1] != os.uname().nodename:
        pid, host = taken
        return (
            f"it was started as process {pid} on {host}, which cannot be seen from here; if it "
            f"still runs: ssh {host} kill {pid}"
        )
    return None
