"""The attempts of a run, from Slurm's answers and from our own records."""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..site import rundir
from ..site.rundir import Job
from ..slurm import job as slurm_job
from ..slurm import reasons
from ..slurm.client import Client, SlurmError, is_ours
from ..slurm.job import CANCELLED, STOPPED, Attempt
from ..slurm.parse import Accounted, Queued
from . import cause, logfile

# Where no Slurm command is to be asked, its absence lets `slurm_job.state_of` use our own records.
NO_SLURM = Client(environment={"PATH": os.devnull})
_VIEWS = ("status", "logs", "cancel")
NEW = Attempt(None, "NEW", "It has not been started.", "own record", live=True)


def live(path: Path, job: Job, client: Client) -> list[Queued]:
    """The rows of squeue that are jobs of this run: those written down in order, then others.

    An id may never have been written down: where sbatch did not answer, say. But a run's job script
    starts in the run directory.

    Raises:
        SlurmError: Slurm does not answer.
    """
    known = {job_id: place for place, job_id in enumerate(rundir.slurm_jobs(path, job))}
    rows = _of_folder(client.mine(), path)
    return sorted(rows, key=lambda row: known.get(row.job_id, len(known)))


def _of_folder(rows: Sequence[Queued], path: Path) -> list[Queued]:
    return [row for row in rows if is_ours(row.uid, row.work_dir, path)]


@dataclass(frozen=True)
class Answers:
    """Slurm's answers about several runs at once.

    Attributes:
        queued: the user's jobs.
        accounted: rows of accounting, by job, of those that wrote no end and are not queued.
    """

    queued: Sequence[Queued]
    accounted: Mapping[str, Sequence[Accounted]]


def answers(runs: Mapping[Path, Job], client: Client) -> Answers:
    """Ask squeue once for all runs, and sacct once for the jobs that nothing else accounts for.

    Raises:
        SlurmError: squeue does not answer.
    """
    ids = {path: rundir.slurm_jobs(path, job) for path, job in runs.items()}
    queued = client.mine() if any(ids.values()) else []
    known = {row.job_id for row in queued}
    left = []
    for path, jobs in ids.items():
        records = rundir.records(path)
        left += [
            job_id
            for job_id in jobs
            # A number that is none, of a damaged run, would have sacct refuse them all.
            if isinstance(job_id, str) and job_id.isdecimal() and job_id not in known
            if not _ended([record for record in records if record["job"] == job_id])
            # One that stopped was to start again, and may have been cancelled while it waited.
            or (job_id == jobs[-1] and (path / "requeue").exists())
        ]
    accounted: dict[str, list[Accounted]] = {job_id: [] for job_id in left}
    with suppress(SlurmError):
        for row in client.account_records(list(accounted)):
            accounted.setdefault(row.job_id, []).append(row)
    return Answers(queued, accounted)


def of_run(path: Path, job: Job, client: Client, answers: Answers | None = None) -> list[Attempt]:
    """All attempts, in order.

    Args:
        answers: for all runs; a job that is not in the queue, and has written its end, is then not
            asked for again. Else squeue is asked here, and Slurm for more about the newest job.
    """
    records = rundir.records(path)
    follows = {str(r["job"]): str(r["follows"]) for r in records if "follows" in r}
    attempts = [
        _local(path, attempt, attempt is job.attempts[-1])
        for attempt in job.attempts
        if "job" not in attempt
    ]
    ids = rundir.slurm_jobs(path, job)
    rows: Sequence[Queued] | None = None
    if answers is not None:
        rows = answers.queued
    else:
        try:
            rows = client.mine()
        except SlurmError:
            client = NO_SLURM
    mine = None if rows is None else _of_folder(rows, path)
    ids = list(dict.fromkeys([*ids, *(row.job_id for row in mine or ())]))
    for job_id in ids:
        own = [record for record in records if record["job"] == job_id]
        row = next((row for row in mine or () if row.job_id == job_id), None)
        if row is not None:
            state = _queued(row, own)
        else:
            accounted = None if answers is None else answers.accounted.get(job_id)
            thorough = mine is None or (answers is None and job_id == ids[-1])
            ask = thorough or accounted is not None or not _ended(own)
            state = (
                slurm_job.state_of(client, job_id, own, path, accounted)
                if ask
                else slurm_job.recorded(job_id, own, path, accounted or ())
            )
        of_job_id = _folded(job_id, own, state)
        if mine is None:
            of_job_id += _waiting(path, of_job_id, own, follows)
        asked = _asked(job, job_id, follows)
        attempts += [
            replace(attempt, follows=follows.get(job_id), asked=asked)
            for attempt in (_by_log(path, one, own) for one in of_job_id)
        ]
    attempts = [_in_vain(path, job, attempt, records) for attempt in attempts]
    # The note is removed by the next submission: it is about the newest job.
    last = attempts[-1] if attempts else NEW
    if last.source == "none" and not last.live and (path / "log" / "cancelled").exists():
        attempts[-1] = replace(last, state="CANCELLED", words=CANCELLED, source="own record")
    # Stable: attempts of one job stay together, what has not begun comes last.
    return sorted(attempts, key=lambda attempt: attempt.started or attempt.expected or float("inf"))


def _asked(job: Job, job_id: str, follows: Mapping[str, str]) -> Mapping[str, Any]:
    """The start that a job belongs to: its own, or that of the job whose place it took."""
    known = {attempt["job"]: attempt for attempt in job.attempts if "job" in attempt}
    for _ in range(len(follows) + 1):
        if job_id in known:
            return known[job_id]
        job_id = follows.get(job_id, "").partition("_")[0]
    return job.attempts[-1] if job.attempts else {}


def _waiting(
    path: Path,
    of_job: Sequence[Attempt],
    own: Sequence[Mapping[str, Any]],
    follows: Mapping[str, str],
) -> list[Attempt]:
    """The attempts that are to come by our own records, while Slurm does not answer."""
    lasts = [record for record in own if "start" in record or "end" in record]
    if not (_ended(own) and lasts[-1].get("stopped")):
        return []
    words = f"{STOPPED} and waits for its next attempt, by its own record; Slurm does not answer."
    if (path / "log" / "cancelled").exists():
        words = "It was cancelled: its next attempt ends as it starts. Slurm does not answer."
    return [
        replace(
            attempt, state="PENDING", words=words, live=True, started=None, ended=None, nodes=()
        )
        for attempt in of_job
        if attempt.restart == lasts[-1].get("restart", 0) and attempt.job not in follows.values()
    ]


def _in_vain(
    path: Path, job: Job, attempt: Attempt, records: Sequence[Mapping[str, Any]]
) -> Attempt:
    """An attempt that waits, and that its job script will end: --retries allows it no start."""
    mine = [
        record for record in records if "follows" not in record if str(record["job"]) == attempt.job
    ]
    if attempt.state != "PENDING" or not mine or "end" in mine[-1] or (path / "requeue").exists():
        return attempt
    counted = path / "log" / "retries"
    text = counted.read_text(errors="replace").strip() if counted.is_file() else "0"
    allowed = job.launch.get("retries") or 0
    if text.isdecimal() and int(text) < allowed:
        return attempt
    words = (
        f"{attempt.words.removesuffix(' Nothing to do.')} As it starts it ends: Slurm put the job "
        f"back into the queue (a node failed, or it was preempted), and --retries allows {allowed} "
        f"of that. Sooner is: "
        f"rankup cancel {job.id}; rankup run --resume {job.id}"
    )
    return replace(attempt, words=words)


def _by_log(path: Path, attempt: Attempt, own: Sequence[Mapping[str, Any]]) -> Attempt:
    """An attempt that left no end, and that Slurm has forgotten: its log may say how it ended."""
    if (
        attempt.live
        or attempt.state != "UNKNOWN"
        or attempt.source != "own record"
        or attempt.job is None
    ):
        return attempt
    later = [r for r in own if "start" in r and r.get("restart", 0) > attempt.restart]
    end = later[0].get("offset") if later else None
    if later and not isinstance(end, int):
        return attempt  # what ended a later one stands behind it
    file = logfile.log_of(path, attempt.job)
    start = logfile.attempt_start(file, own, attempt.restart)
    state = cause.end_state(logfile.tail_lines(file, start, end))
    if state is None:
        return attempt
    return replace(attempt, state=state, words=reasons.ended(state, 0, 0, ""))


def newest(attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that says how the run is: a live one, else the one that ended last."""
    live = [attempt for attempt in attempts if attempt.live]
    if live:
        running = [attempt for attempt in live if attempt.state != "PENDING"]
        return (running or live)[0]
    return max(attempts, key=lambda attempt: attempt.ended or attempt.started or 0, default=None)


def last_job(attempts: Sequence[Attempt]) -> Attempt | None:
    """The newest attempt that is a Slurm job's."""
    return newest([attempt for attempt in attempts if attempt.job])


def _queued(row: Queued, own: Sequence[Mapping[str, Any]]) -> Attempt:
    """A row of squeue, which does not count restarts; our own records do."""
    state = slurm_job.of_row(row)
    starts = [r.get("restart", 0) for r in own if "start" in r]
    if not starts:
        return state
    ends = [r["end"] for r in own if "end" in r and r.get("restart", 0) == max(starts)]
    begins_anew = state.started is not None and any(state.started > end for end in ends)
    return replace(state, restart=max(starts) + (row.state == "PENDING" or begins_anew))


def _ended(own: Sequence[Mapping[str, Any]]) -> bool:
    """Return True where the last that a job wrote is its end."""
    lasts = [record for record in own if "start" in record or "end" in record]
    return bool(lasts) and "end" in lasts[-1]


def _folded(job_id: str, own: Sequence[Mapping[str, Any]], state: Attempt) -> list[Attempt]:
    """All attempts of a job: those that Slurm has started again since only our own records know."""
    # A job that waits, or was cancelled then, has had all attempts that are written down.
    ran = state.started is not None or state.source == "own record"
    earlier = [
        attempt
        for attempt in slurm_job.by_records(job_id, own)
        if not (ran and attempt.restart == state.restart)
    ]
    return [*earlier, slurm_job.judged(state, own)]


def _local(path: Path, attempt: Mapping[str, Any], is_last: bool) -> Attempt:
    code, ended = attempt.get("code"), rundir.moment(attempt.get("ended"))
    node = str(attempt.get("node") or f"allocation {attempt.get('allocation', '?')}")
    live = False
    if code is not None:
        state = "FAILED" if code else "COMPLETED"
        words = reasons.ended(state, code, 0, "")
        if 128 < code < 128 + 65:
            words = f"It was stopped: {reasons.how(code, 0)}."
        if code - 128 in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            state = "CANCELLED"  # a user's wish, at which it has saved
        if attempt.get("stopped") is True:
            words = f"{STOPPED} before the deadline."
    elif is_last and (pid := holder(path)):
        live, state, words = True, "RUNNING", f"It runs here, as process {pid}."
    elif is_last and (pid := orphaned(path)):
        live, state = True, "RUNNING"
        words = f"Its job script runs on here, though process {pid}, which started it, has ended."
    elif attempt.get("node") in (None, os.uname().nodename):
        state, words = "UNKNOWN", "It ended without a word (killed, or the machine went down)."
    else:
        state, words = "UNKNOWN", f"It began on {node} and has not written its end; look there."
    return Attempt(
        job=None,
        state=state,
        words=words,
        nodes=(node,),
        started=rundir.moment(attempt.get("started")),
        ended=ended,
        exit_code=code,
        source="own record",
        live=live,
        asked=attempt,
    )


def held(path: Path) -> bool:
    """Return whether a process of this host holds the run; True where that cannot be asked."""
    try:
        with (path / "log" / "lock").open() as file:
            # Shared, so that two who look at once do not take each other for the run.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody has it, or the file system knows no locks
        return True
    return False


def written(path: Path) -> tuple[int, str] | None:
    """Process and host that took the lock last; None where that was a job, or nobody."""
    with suppress(OSError):
        text = (path / "log" / "lock").read_text(errors="replace")[:400]
        if match := re.fullmatch(r"process (\d{1,10}) on (\S+)", text.strip()):
            return int(match[1]), match[2]
    return None


def holder(path: Path) -> int | None:
    """The `rankup run` on this host that holds the run; None where there is none of ours."""
    import psutil

    taken = written(path)
    if taken is None or taken[1] != os.uname().nodename or not held(path):
        return None
    with suppress(OSError, psutil.Error):
        process = psutil.Process(taken[0])
        # A number is given to another process once its own has ended.
        old = process.create_time() <= (path / "log" / "lock").stat().st_mtime + 1
        ours = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
        if old and ours and _starts_runs(process.cmdline()):
            return process.pid
    return None


def orphaned(path: Path) -> int | None:
    """The `rankup run` of this host that has ended while its job script holds the run."""
    import psutil

    taken = written(path)
    if taken is None or taken[1] != os.uname().nodename or not held(path):
        return None
    return None if psutil.pid_exists(taken[0]) else taken[0]


def _starts_runs(words: Sequence[str]) -> bool:
    """Return whether a command line is rankup's (also by `python` or `python -m`), and no view."""
    for place, word in enumerate(words[:5]):
        module = word == "rankup" and place > 0 and words[place - 1] == "-m"
        if module or (place < 2 and Path(word).name == "rankup"):
            return not set(words[place + 1 : place + 2]) & set(_VIEWS)
    return False
