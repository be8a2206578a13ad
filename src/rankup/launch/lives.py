"""What became of a run: each of its lives, from Slurm's answers and from our own records."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ..base.errors import UserError
from ..base.files import user_path
from ..site import rundir
from ..site.rundir import Job
from ..slurm import job as slurm_job
from ..slurm import parse, reasons
from ..slurm.client import Client
from ..slurm.job import JobState
from ..slurm.parse import Queued

# Where no Slurm command is to be asked, its absence lets `slurm_job.states` use our own records.
NO_SLURM = Client(environment={"PATH": os.devnull})
# A status that waits half a minute for a busy controller helps nobody.
TIMEOUT = 10.0


@dataclass(frozen=True)
class Life:
    """One start of a run: a stay of a Slurm job (or array task) on its nodes, or a local start.

    Attributes:
        job: "123", "123_4" for a task of an array; None for a local run.
        restart: how often Slurm had requeued the job before.
        state: Slurm's word; `RUNNING`, `COMPLETED`, `FAILED` or `UNKNOWN` for a local run.
        words: the same in plain words.
        started, ended, expected: unix seconds; `expected` start of a pending job.
        source: who says so.
        follows: the job whose place this one took, where the site does not requeue.
    """

    job: str | None
    restart: int
    state: str
    words: str
    nodes: tuple[str, ...]
    started: float | None
    ended: float | None
    expected: float | None
    exit_code: int | None
    source: str
    live: bool
    follows: str | None = None

    @property
    def task(self) -> str | None:
        """The number of the array's task."""
        return self.job.partition("_")[2] or None if self.job else None

    @property
    def failed(self) -> bool:
        """It ended, and not as it should."""
        return not self.live and self.state != "COMPLETED"


def locate(runs: Path, run: str) -> tuple[Path, str | None]:
    """A run's directory, and the array's task where `run` means one ("123_4", `<run>/array/4`).

    Raises:
        UserError: there is no such run.
    """
    given = user_path(run, "RUN")
    if given.is_dir() and not (given / rundir.JOB).is_file():
        folder = given.resolve()
        if folder.parent.name == "array" and (folder.parent.parent / rundir.JOB).is_file():
            return folder.parent.parent, folder.name
    path = rundir.find(runs, run)
    match = re.fullmatch(r"\d+_(\d+)", run)
    return path, match[1] if match else None


def of_run(
    path: Path, job: Job, client: Client, queued: Mapping[str, Sequence[Queued]] | None = None
) -> list[Life]:
    """All lives, in order; those of one array side by side.

    Args:
        queued: what one call of squeue said for all runs: a job that is not in it, and has
            written its end, is not asked for again.
    """
    records = rundir.records(path)
    follows = {str(r["job"]): str(r["follows"]) for r in records if "follows" in r}
    lives = [_local(path, life, life is job.lives[-1]) for life in job.lives if "job" not in life]
    for job_id in rundir.slurm_jobs(path, job):
        mine = [record for record in records if record["job"] == job_id]
        states = _states(client, job_id, mine, queued)
        earlier = _earlier(mine, {state.job_id: state for state in states})
        lives += [replace(life, follows=follows.get(job_id)) for life in earlier]
        lives += [_slurm(state, follows.get(job_id)) for state in states]
    # Stable: lives of one job stay together, what has not begun comes last.
    return sorted(lives, key=lambda life: life.started or life.expected or float("inf"))


def newest(lives: Sequence[Life]) -> Life | None:
    """The life that says how the run is: a live one, else the one that ended last."""
    live = [life for life in lives if life.live]
    if live:
        running = [life for life in live if life.state != "PENDING"]
        return (running or live)[0]
    return max(lives, key=lambda life: life.ended or life.started or 0, default=None)


def last_job(lives: Sequence[Life], task: str | None = None) -> Life | None:
    """The newest life that is a Slurm job's, of that task where one is given."""
    mine = [life for life in lives if life.job and (task is None or life.task == task)]
    return newest(mine)


def queue(client: Client, ids: Sequence[str]) -> dict[str, list[Queued]]:
    """What squeue says of all of them, in one call."""
    return client.queue(list(dict.fromkeys(ids)))


def holder(path: Path) -> int | None:
    """The process on this host that holds a run going on; None where there is none of ours."""
    import psutil

    lock = path / "log" / "lock"
    with suppress(OSError, psutil.Error):
        match = re.fullmatch(r"process (\d+) on (\S+)", lock.read_text().strip())
        if match is None or match[2] != os.uname().nodename:
            return None
        process = psutil.Process(int(match[1]))
        # A number is given to another process once its own has ended.
        old = process.create_time() <= lock.stat().st_mtime + 1
        ours = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
        if old and ours and any("rankup" in word for word in process.cmdline()):
            return process.pid
    return None


def _states(
    client: Client,
    job_id: str,
    own: Sequence[Mapping[str, Any]],
    queued: Mapping[str, Sequence[Queued]] | None,
) -> list[JobState]:
    if queued is not None and (rows := queued.get(job_id)):
        # Tasks of an array that have ended are not in the queue any more.
        known = {row.job_id: _queued(row, own) for row in rows}
        rest = slurm_job.states(NO_SLURM, job_id, own)
        others = [s for s in rest if s.source == "own record" and s.job_id not in known]
        return [*others, *known.values()]
    if queued is not None and _ended_alone(own):
        return slurm_job.states(NO_SLURM, job_id, own)
    return slurm_job.states(client, job_id, own)


def _queued(row: Queued, own: Sequence[Mapping[str, Any]]) -> JobState:
    """A row of squeue, which does not count restarts; our own records do."""
    pending = row.state == "PENDING"
    task = row.job_id.partition("_")[2]
    starts = [r for r in own if "start" in r and (not task or str(r.get("task")) == task)]
    return JobState(
        job_id=row.job_id,
        state=row.state,
        reason=row.reason,
        words=reasons.living(row.state, row.reason, ", ".join(row.nodes[:4])),
        exit_code=None,
        nodes=row.nodes,
        started=None if pending else row.start,
        ended=None,
        expected_start=row.start if pending else None,
        restarts=max(0, len(starts) - (not pending)),
        source="squeue",
        live=True,
    )


def _ended_alone(own: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the records of a job (not of an array, whose tasks come one by one) are complete."""
    lasts = [record for record in own if "start" in record or "end" in record]
    return bool(lasts) and lasts[-1].get("task") is None and "end" in lasts[-1]


def _slurm(state: JobState, follows: str | None) -> Life:
    return Life(
        job=state.job_id,
        restart=state.restarts,
        state=state.state,
        words=state.words,
        nodes=state.nodes,
        started=state.started,
        ended=state.ended,
        expected=state.expected_start,
        exit_code=state.exit_code,
        source=state.source,
        live=state.live,
        follows=follows,
    )


def _earlier(own: Sequence[Mapping[str, Any]], now: Mapping[str, JobState]) -> list[Life]:
    """Lives of a job that Slurm has started again since; only our own records know them."""
    lives: dict[tuple[str, int], dict[str, Any]] = {}
    for record in own:
        if "start" in record or "end" in record:
            task = record.get("task")
            name = record["job"] if task is None else f"{record['job']}_{task}"
            restart = record.get("restart")
            key = (name, restart if isinstance(restart, int) else 0)
            lives.setdefault(key, {}).update(record)
    found = []
    for (name, restart), life in lives.items():
        state = now.get(name)
        # A job that waits for its next life has had all those that are written down.
        present = max((r for n, r in lives if n == name), default=0)
        waits = state is not None and state.state == "PENDING"
        if state is None or (restart >= present and not waits):
            continue
        code, end = _number(life.get("code")), _number(life.get("end"))
        if life.get("stopped"):
            said, words = "COMPLETED", "It stopped with a checkpoint before the time limit."
        elif end is None:
            said, words = "UNKNOWN", "It ended without a word (killed, or its node died)."
        else:
            said = "FAILED" if code else "COMPLETED"
            words = reasons.ended(said, int(code or 0), 0, "")
        found.append(
            Life(
                job=name,
                restart=restart,
                state=said,
                words=words,
                nodes=parse.node_names(str(life.get("nodes") or "")),
                started=_number(life.get("start")),
                ended=end,
                expected=None,
                exit_code=None if code is None else int(code),
                source="own record",
                live=False,
            )
        )
    return found


def _local(path: Path, life: Mapping[str, Any], is_last: bool) -> Life:
    code, ended = _number(life.get("code")), _moment(life.get("ended"))
    node = str(life.get("node") or f"allocation {life.get('allocation', '?')}")
    live = False
    if code is not None:
        state = "FAILED" if code else "COMPLETED"
        words = reasons.ended(state, int(code), 0, "")
        if 128 < code < 128 + 65:
            words = f"It was stopped: {reasons.how(int(code), 0)}."
    elif is_last and (pid := holder(path)):
        live, state, words = True, "RUNNING", f"It runs here, as process {pid}."
    elif life.get("node") in (None, os.uname().nodename):
        state, words = "UNKNOWN", "It ended without a word (killed, or the machine went down)."
    else:
        state, words = "UNKNOWN", f"It began on {node} and has not written its end; look there."
    return Life(
        job=None,
        restart=0,
        state=state,
        words=words,
        nodes=(node,),
        started=_moment(life.get("started")),
        ended=ended,
        expected=None,
        exit_code=None if code is None else int(code),
        source="own record",
        live=live,
    )


def read_job(path: Path) -> Job:
    """`rundir.read`, with lives of a wrong form left out: one broken life hides no other.

    Raises:
        UserError: `job.json` is missing or damaged.
    """
    job = rundir.read(path)
    if not isinstance(job.lives, list) or not isinstance(job.args, list):
        raise UserError(f"{path / rundir.JOB} is damaged: lives or args are no list")
    return replace(job, lives=[life for life in job.lives if isinstance(life, dict)])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _moment(text: object) -> float | None:
    """Seconds of a local life's "2026-11-20T20:45:54+0100"."""
    with suppress(ValueError, TypeError, OverflowError):
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return None


def ago(seconds: float) -> str:
    """A span of time in words: "12 s", "5 min", "3 h 20 min", "2 d 4 h"."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


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
