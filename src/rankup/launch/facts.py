"""What a report says of a run beside its samples: from `job.json`, our own records and Slurm."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base import secrets
from ..monitor.recording import Facts
from ..site import rundir
from ..site.config import Config
from ..site.rundir import Job
from ..slurm.client import Client
from . import attempts, meant, status
from .attempts import Attempt


def facts(
    path: Path, task: str | None, config: Config, client: Client, ended: int | None = None
) -> Facts:
    """Of the run in `path`, or of that task of its array.

    Args:
        ended: exit code of the newest attempt, which Slurm still calls running as it asks for this.

    Raises:
        UserError: `job.json` is missing or damaged.
    """
    job = rundir.read(path)
    if ended is not None:
        client = attempts.NO_SLURM
    found = [
        attempt for attempt in attempts.of_run(path, job, client) if task in (None, attempt.task)
    ]
    bill = _bill(job)
    known = [attempt for attempt in found if attempt.started is not None]
    if ended is not None and known and known[-1].ended is None:
        state = "FAILED" if ended else "COMPLETED"
        known[-1] = replace(known[-1], live=False, ended=time.time(), state=state, words="")
    last = job.attempts[-1] if job.attempts else {}
    return Facts(
        run=job.id if task is None else f"{job.id} task {task}",
        name=job.name,
        command=_command(job),
        directory=str(meant.folder(path, task)),
        kind=job.kind,
        site=bill.get("site", ""),
        partition=bill.get("partition", ""),
        account=bill.get("account", ""),
        nodes=last.get("nodes") or 1,
        ranks=last.get("nproc"),
        gpus=bill.get("gpus"),
        unit=bill.get("unit"),
        per_node_hour=bill.get("per_node_hour"),
        attempts=tuple(known),
        queued=_queued(job, found),
        portal=_link(status.monitoring(found, config)),
        what=_what(job),
    )


def bare(path: Path) -> Facts:
    """Of a folder that holds a recording alone: nobody knows more than its files."""
    return Facts(run=path.name, name=path.name, command="", directory=str(path))


def _bill(job: Job) -> Mapping[str, Any]:
    """Return the machine and price that the newest attempt with a bill was written with."""
    for attempt in reversed(job.attempts):
        if bill := attempt.get("bill"):
            return dict(bill)
    return {}


def _queued(job: Job, found: Sequence[Attempt]) -> float | None:
    """Seconds from what was submitted to the first attempt of each job; None: never in a queue."""
    submitted = {
        attempt["job"]: rundir.moment(attempt.get("submitted"))
        for attempt in job.attempts
        if "job" in attempt
    }
    waits = []
    for number, when in submitted.items():
        starts = [
            attempt.started
            for attempt in found
            if attempt.job and attempt.job.split("_")[0] == number
        ]
        began = min((start for start in starts if start is not None), default=None)
        if when is not None and began is not None:
            waits.append(max(0.0, began - when))
    return sum(waits) if waits else None


def _command(job: Job) -> str:
    """As it was typed at first and at the newest start, or what came to the same; no secrets."""
    typed = [
        shlex.join(secrets.without(words, os.environ))
        for attempt in job.attempts
        if (words := attempt.get("command"))
    ]
    if typed:
        return "; then ".join(dict.fromkeys((typed[0], typed[-1])))
    nodes = job.launch.get("nodes")
    options = [] if nodes is None else ["--nodes", str(nodes)]
    last = job.attempts[-1] if job.attempts else {}
    if (ranks := last.get("nproc")) is not None:
        options += ["--nproc", str(ranks)]
    words = ["rankup", "run", *options, *job.words]
    return shlex.join(secrets.without(words, os.environ))


def _what(job: Job) -> dict[str, str]:
    found = {name: str(value) for name, value in job.versions.items()}
    if commit := job.git.get("commit"):
        found["git"] = str(commit)[:12] + (" and changes since" if job.git.get("changed") else "")
    return found


def _link(text: str) -> str | None:
    address = text.partition(" ")[0]
    return address if address.startswith(("https://", "http://")) else None
