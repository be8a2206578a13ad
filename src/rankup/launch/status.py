"""`rankup status`: how runs are, in a table of the newest, or all about one. Facts, no printing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base import gone
from ..base.amounts import duration
from ..base.errors import UserError
from ..site import rundir
from ..site.config import Config
from ..site.rundir import Job
from ..slurm.client import Client, SlurmError
from . import attempts, cause, failure, logfile
from .attempts import STOPPED, Attempt

NEWEST = 20
_TAIL = 64 * 1024


@dataclass(frozen=True)
class Summary:
    """A run in a line.

    Attributes:
        where: the Slurm jobs, or the node of a local run.
        state: of the newest attempt.
        since, until: unix seconds of the newest attempt; the expected start of a pending one.
        step, steps: done, and of how many where that is known.
        words: why it waits or how it ended.
        source: who says so.
    """

    id: str
    name: str
    path: str
    where: str = ""
    state: str = "NEW"
    since: float | None = None
    until: float | None = None
    step: int | None = None
    steps: int | None = None
    words: str = "It has not been started."
    source: str = "own record"
    live: bool = False


@dataclass(frozen=True)
class Report:
    """All about one run; `cause` is the last line of why it failed."""

    summary: Summary
    job: Job
    attempts: tuple[Attempt, ...]
    metrics: Mapping[str, Any]
    cause: str
    next_steps: tuple[str, ...]
    monitoring: str


def newest(runs: Path, client: Client) -> tuple[list[Summary], str]:
    """The newest runs, newest first, and a note on what could not be asked; empty if nothing.

    squeue and sacct are called once for all of them. A damaged run, and an array of version 0.2,
    is a row that says so.
    """
    everything = rundir.all_runs(runs)
    known = everything[-NEWEST:][::-1]
    jobs = {path: _job(path) for path in known}
    note, asked, said = "", client, None
    try:
        sound = {path: job for path, job in jobs.items() if isinstance(job, Job)}
        said = attempts.answers(sound, client)
    except SlurmError as error:
        note = f"Slurm cannot be asked, so this is from the runs' own records. {error}"
        asked = attempts.NO_SLURM
    if len(everything) > NEWEST:
        more = f"the newest {NEWEST} of {len(everything)} runs; of another: rankup status RUN"
        note = f"{note}\n{more}" if note else more
    found = []
    for path, job in jobs.items():
        if isinstance(job, Job):
            try:
                found.append(_row(path, job, attempts.of_run(path, job, asked, said)))
                continue
            except Exception as error:  # whatever is wrong with one run, the others are shown
                job = UserError(f"its files are damaged: {type(error).__name__}: {error}")
        name = path.parent.name
        state = "ARRAY" if isinstance(job, rundir.ArrayError) else "DAMAGED"
        found.append(Summary(path.name, name, str(path), state=state, words=str(job)))
    return found, note


def _row(path: Path, job: Job, found: Sequence[Attempt]) -> Summary:
    """`summary`, with the cause where a rank has written one down."""
    short = summary(path, job, found)
    last = attempts.newest(found)
    if last is None or not last.failed:
        return short
    seen = _noted(path, last) or (last.state == "FAILED" and _short_log(path, last))
    written = cause.of_run(path, last.job) if seen else None
    return replace(short, words=written.text.splitlines()[-1]) if written else short


def _noted(path: Path, attempt: Attempt) -> bool:
    """Return True if a rank of this attempt has left a note: those of earlier ones are removed."""
    began = attempt.started or 0
    notes = (path / "log").glob(failure.NOTES)
    return any(note.stat().st_mtime >= began - 1 for note in notes)


def _short_log(path: Path, attempt: Attempt) -> bool:
    """Return True for a log that is read in a moment; that of another run is for its own page."""
    if attempt.job is None:
        return False
    size = logfile.size_of(logfile.log_of(path, attempt.job))
    return 0 < size <= logfile.HEAD_BYTES


def report(path: Path, config: Config, client: Client) -> Report:
    """Everything about one run.

    Raises:
        UserError: its `job.json` is missing or damaged.
    """
    job = rundir.read(path)
    found = tuple(attempts.of_run(path, job, client))
    last = attempts.newest(found)
    why = cause.of_run(path, last.job) if last and last.failed else None
    return Report(
        summary=summary(path, job, found),
        job=job,
        attempts=found,
        metrics=last_metrics(path),
        cause=why.text.splitlines()[-1] if why else "",
        next_steps=tuple(_next_steps(path, job, found)),
        monitoring=monitoring(found, config),
    )


def summary(path: Path, job: Job, found: Sequence[Attempt]) -> Summary:
    """A run in a line, from its attempts."""
    metrics = last_metrics(path)
    jobs = [attempt.job for attempt in found if attempt.job]
    short = Summary(
        id=job.id,
        name=job.name,
        path=str(path),
        where=", ".join(dict.fromkeys(jobs)),
        step=metrics.get("step"),
        steps=None if metrics.get("final") else steps(job),
    )
    last = attempts.newest(found)
    if last is None:
        return short
    return replace(
        short,
        where=short.where or "".join(last.nodes[:1]),
        state=last.state,
        since=last.started or last.expected,
        until=last.ended,
        words=last.words,
        source=last.source,
        live=last.live,
    )


def last_metrics(path: Path) -> dict[str, Any]:
    """The last record of `metrics.jsonl` that has a step; empty without one."""
    found = reversed(rundir.metrics(path, _TAIL))
    return next((one for one in found if isinstance(one.get("step"), int)), {})


def steps(job: Job) -> int | None:
    """Return how many steps a recipe's run has, where that was said."""
    if job.kind != "recipe":
        return None
    from .. import recipes

    with suppress(UserError):
        found = getattr(recipes.find(job.target).parse(job.args, job.kept), "steps", None)
        return found if isinstance(found, int) else None
    return None


def _job(path: Path) -> Job | UserError:
    try:
        job = rundir.read(path)
        rundir.slurm_jobs(path, job)
        return job
    except UserError as error:
        return error
    except Exception as error:
        return UserError(f"its files cannot be read: {type(error).__name__}: {error}")


def _next_steps(path: Path, job: Job, found: Sequence[Attempt]) -> Iterable[str]:
    last = attempts.newest(found)
    if last is None:
        return
    if last.live:
        yield f"rankup logs -f {job.id}" if last.state != "PENDING" else f"rankup status {job.id}"
        yield f"rankup cancel {job.id}"
        return
    yield f"rankup logs {job.id}"
    waiting = (path / "requeue").exists()
    stopped = waiting or any(
        STOPPED in attempt.words for attempt in found
    )  # a script's own checkpoint
    saved = stopped or any(path.glob("checkpoints/*"))
    if last.state == "COMPLETED" and not waiting:
        return
    if job.kind == "recipe" and gone.of_run(job.target, job.args):
        return
    if saved:
        yield f"rankup run --resume {job.id}"
    else:
        yield f"{_typed(job)} (once more from its beginning: it has saved no checkpoint)"


def _typed(job: Job) -> str:
    """The command that started a run, where that one would start another."""
    first = job.attempts[0].get("command") if job.attempts else None
    if first and first[1:2] == ["run"] and not any(one.startswith("--out") for one in first):
        return shlex.join(first)
    return f"rankup run … {shlex.join(job.words)}"


def monitoring(found: Sequence[Attempt], config: Config) -> str:
    """Return the site's own page of the newest Slurm job; empty where it has none."""
    last = attempts.last_job(found)
    if last is None or last.job is None:
        return ""
    from ..site import profile as sites

    profile, _ = sites.choose(config)
    if not profile.monitoring:
        return ""
    if "{job}" in profile.monitoring:
        return profile.monitoring.replace("{job}", last.job)
    unsure = ", if the page is still there" if "monitoring" in profile.unsure else ""
    return f"{profile.monitoring} (job {last.job}{unsure})"


def elapsed(short: Summary) -> str:
    """Say how long the newest attempt has gone on, or took; when a pending one may start."""
    now = max(time.time(), short.since or 0, short.until or 0)  # clocks of nodes differ
    if short.live and short.state == "PENDING":
        return f"may start {clock(short.since)}" if short.since else ""
    if short.since is None:
        return ""
    if short.live:
        return f"for {duration(now - short.since)}"
    if short.until is None:
        return f"began {duration(now - short.since)} ago"
    return f"took {duration(short.until - short.since)}, {duration(now - short.until)} ago"


def clock(moment: float | None) -> str:
    """A moment as people read it here; the date only where it is not today's."""
    if moment is None:
        return ""
    try:
        local = time.localtime(moment)
    except (ValueError, OverflowError, OSError):
        return "?"
    today = time.localtime()
    same = (local.tm_year, local.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", local)
