"""The state of a job, from whoever still knows it: squeue, scontrol, sacct, our own records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import parse, reasons
from .client import Client, SlurmError, is_ours
from .hostlist import short
from .parse import Accounted, Queued, moment

STOPPED = "It stopped with a checkpoint"
_STOPPED = f"{STOPPED} before the time limit."
CANCELLED = "`rankup cancel` had cancelled it before it began."


@dataclass(frozen=True)
class Attempt:
    """One start of a run: a stay of a Slurm job on its nodes, or a local start.

    Attributes:
        job: "123"; None for a local run.
        state: Slurm's word, or UNKNOWN; of a local run `RUNNING`, `COMPLETED` or `FAILED`.
        words: why it waits, what it does, or how it ended.
        source: who said so: "squeue", "scontrol", "sacct", "own record", or "none".
        live: it has not ended; also where nobody answers and nothing says that it has.
        restart: how often the job was started before.
        started, ended, expected: unix seconds; `expected` start of a pending job.
        exit_code: 128 + number of the signal where one ended it; None before the end, and where
            the job has never run.
        follows: the job whose place this one took, where the site does not requeue.
        asked: what `job.json` says of the start that was asked for and that this belongs to.
    """

    job: str | None
    state: str
    words: str
    source: str
    live: bool
    restart: int = 0
    nodes: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    expected: float | None = None
    exit_code: int | None = None
    follows: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def begin(self) -> float:
        """The start of one that has begun."""
        assert self.started is not None
        return self.started

    @property
    def limit(self) -> float | None:
        """Seconds that a job may take, as they were asked for; None without a limit."""
        minutes = (self.asked.get("bill") or {}).get("minutes")
        return minutes * 60.0 if minutes and self.job else None

    @property
    def failed(self) -> bool:
        """It ended, and not as it should."""
        return not self.live and self.state != "COMPLETED"


def state_of(
    client: Client,
    job_id: str,
    own: Sequence[Mapping[str, Any]] = (),
    folder: Path | None = None,
    accounted: Sequence[Accounted] | None = None,
) -> Attempt:
    """The state of a job.

    Args:
        own: lines of the run's `attempts.jsonl`: {"job", "restart", "start", "nodes"} at the start
            of an attempt, {"job", "restart", "end", "code"} at its end. Only what Slurm does not
            know is taken from them.
        folder: the job's working directory. What Slurm knows under this number with another one,
            or as another user's, is not this job.
        accounted: the rows of accounting, of a job that is not in the queue; None: to be asked for.
    """
    accounted = None if accounted is None else _of_folder(accounted, folder)
    if accounted and (ended := _ended(accounted, by_records(job_id, own))):
        return ended
    found, reached, foreign = _from_controller(client, job_id, folder)
    if found is not None:
        return found
    if not foreign:
        with suppress(SlurmError):
            if accounted is None:
                accounted = _of_folder(client.account_records([job_id]), folder)
            # It lags: what a controller that answers does not know does not live.
            found = _from_sacct(job_id, accounted)
            if found is not None and not (found.live and reached):
                return found
    mine = by_records(job_id, own, reached)
    return mine[-1] if mine else _unknown(job_id, reached)


def recorded(
    job_id: str,
    own: Sequence[Mapping[str, Any]],
    folder: Path | None = None,
    accounted: Sequence[Accounted] = (),
) -> Attempt:
    """The newest attempt of a job without a question to Slurm; as of `state_of`."""
    mine = by_records(job_id, own)
    told = _from_sacct(job_id, _of_folder(accounted, folder))
    if told and not told.live and (not mine or mine[-1].restart <= told.restart):  # else it lags
        return told
    return mine[-1] if mine else _unknown(job_id, reached=True)


def by_records(
    job_id: str, own: Sequence[Mapping[str, Any]], reached: bool = True
) -> list[Attempt]:
    """All attempts of a job by our own records, in order.

    Args:
        reached: Slurm answered, and does not know the job.
    """
    attempts: dict[int, dict[str, Any]] = {}
    for line in own:
        if ("start" in line or "end" in line) and str(line["job"]) == job_id:
            attempts.setdefault(line.get("restart", 0), {}).update(line)
    return [
        _owned(job_id, restart, line, reached or restart < max(attempts))
        for restart, line in sorted(attempts.items())
    ]


def judged(state: Attempt, own: Sequence[Mapping[str, Any]]) -> Attempt:
    """Return Slurm's words for an attempt, and what only our record knows: that it was to stop."""
    mine = [one for one in by_records(state.job or "", own) if one.restart == state.restart]
    for one in mine:
        stopped = state.state == "COMPLETED" and one.words == _STOPPED
        if stopped or (state.state == "FAILED" and one.words == CANCELLED):
            return replace(state, state=one.state, words=one.words, exit_code=one.exit_code)
    return state


def _from_controller(
    client: Client, job_id: str, folder: Path | None
) -> tuple[Attempt | None, bool, bool]:
    """The controller's answer, whether there was one, and whether the number is another job's."""
    try:
        shown = client.show(job_id)
    except SlurmError:
        return None, False, False
    known = [record for record in shown if folder is None or _is_ours(record, folder)]
    return _shown(job_id, known[0]) if known else None, True, len(known) < len(shown)


def _of_folder(accounted: Sequence[Accounted], folder: Path | None) -> list[Accounted]:
    """Return the rows of this user's job in that folder: numbers are used again."""
    uid = os.getuid()  # sacct was asked for this user's alone
    return [
        row
        for row in accounted
        if folder is None or not row.work_dir or is_ours(uid, row.work_dir, folder)
    ]


def _is_ours(record: Mapping[str, str], folder: Path) -> bool:
    uid = parse.user_number(record.get("UserId", ""))
    return is_ours(uid, record.get("WorkDir", ""), folder)


def of_row(row: Queued) -> Attempt:
    """The state of a job by its row of squeue, which has no count of restarts."""
    return _told("squeue", row.job_id, row.state, row.reason, row.nodes, start=row.start)


def _told(
    source: str,
    name: str,
    state: str,
    reason: str,
    nodes: tuple[str, ...],
    code: tuple[int, int] = (0, 0),
    start: float | None = None,
    end: float | None = None,
    restart: int = 0,
) -> Attempt:
    """An attempt as Slurm tells it; `code` are the halves of its ExitCode."""
    live, pending, where = reasons.is_live(state), state == "PENDING", short(nodes)
    return Attempt(
        job=name,
        state=state,
        words=reasons.living(state, reason, where)
        if live
        else reasons.ended(state, *code, reason, where),
        source=source,
        live=live,
        restart=restart,
        nodes=nodes,
        # A job that was cancelled while it waited has its end as its start.
        started=start if nodes and not pending else None,
        ended=None if live else end,
        expected=start if pending else None,
        exit_code=None if live or not nodes else _exit_code(state, *code),
    )


def _shown(name: str, record: Mapping[str, str]) -> Attempt:
    restarts = record.get("Restarts", "")
    return _told(
        "scontrol",
        name,
        record.get("JobState", "UNKNOWN").split(",")[0],
        _none(record.get("Reason", "")),
        parse.node_names(record.get("NodeList", "")),
        parse.exit_code(record.get("ExitCode", "")),
        moment(record.get("StartTime", "")),
        moment(record.get("EndTime", "")),
        int(restarts) if restarts.isdecimal() else 0,
    )


def _ended(accounted: Sequence[Accounted], own: Sequence[Attempt]) -> Attempt | None:
    """The state of a job by accounting; None where it has not ended there, for it lags."""
    found = _from_sacct(accounted[0].job_id, accounted)
    if found is None or found.live or any(one.restart > found.restart for one in own):
        return None
    return found


def _from_sacct(job_id: str, accounted: Sequence[Accounted]) -> Attempt | None:
    """The newest attempt by accounting, which counts the others."""
    if not accounted:
        return None
    rows = sorted(accounted, key=lambda row: (row.end is None, row.start or row.end or 0))
    last = rows[-1]
    return _told(
        "sacct",
        job_id,
        last.state,
        _none(last.reason),
        last.nodes,
        (last.exit_code, last.signal),
        last.start,
        last.end,
        len(rows) - 1,
    )


def _owned(name: str, restart: int, attempt: Mapping[str, Any], reached: bool) -> Attempt:
    """The state by our own record; `reached`: Slurm answered, and does not know the job."""
    nodes = parse.node_names(str(attempt.get("nodes") or ""))
    on = f" on {short(nodes)}" if nodes else ""
    code = attempt.get("code")
    over = attempt.get("end") is not None
    if over and attempt.get("cancelled"):
        state, words, code = "CANCELLED", CANCELLED, None
    elif over and code == 0 and attempt.get("stopped"):
        state, words = "COMPLETED", _STOPPED
    elif over and code is not None:
        state = "FAILED" if code else "COMPLETED"
        words = reasons.ended(state, code, 0, "", short(nodes))
    elif over:
        state, words = "UNKNOWN", "It ended; how was not written down."
    elif reached:
        state = "UNKNOWN"
        words = f"It ended without a word{on} (killed, or its node died)."
    else:
        state = "UNKNOWN"
        words = (
            f"It began{on} and has not written its end. Slurm does not answer; it may still run."
        )
    return Attempt(
        job=name,
        state=state,
        words=words,
        exit_code=code if over else None,
        nodes=nodes,
        started=attempt.get("start"),
        ended=attempt.get("end"),
        restart=restart,
        source="own record",
        live=not (over or reached),
    )


def _unknown(job_id: str, reached: bool) -> Attempt:
    words = (
        "Slurm does not know it any more, and it has written nothing: it was cancelled or killed "
        "before its first line, or is another cluster's."
        if reached
        else "Slurm does not answer, and the job has written nothing yet."
    )
    return Attempt(job_id, "UNKNOWN", words, "none", live=not reached)


def _exit_code(state: str, code: int, number: int) -> int | None:
    if number == reasons.NEVER_BEGAN or number > 64:  # no signals; 125 is out of memory
        return None
    if number:
        return 128 + number
    return code if code or state == "COMPLETED" else None


def _none(reason: str) -> str:
    return "" if reason in ("(null)", "Unknown") else reason
