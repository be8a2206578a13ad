"""Which jobs, and runs in them, use a copy: it stays until the last of them is over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from ...base import files, holder
from ...base.holder import Holder

# Whether a job of Slurm lives; None: that is not known.
Alive = Callable[[str], bool | None]


@dataclass(frozen=True)
class Job:
    """A user of a copy.

    Attributes:
        slurm: id of its job; empty outside of one.
        holder: the process that ends when the user does; in a job the one that came first.
        run: directory of its run, where it is one: a job may have several, and one that ends must
            not take away what another one reads.
    """

    slurm: str
    holder: Holder
    run: str = ""

    @property
    def name(self) -> str:
        """Of its file."""
        if self.slurm:
            of = xxhash.xxh3_64_hexdigest(os.fsencode(self.run)) if self.run else "by-hand"
            return f"slurm-{self.slurm}-{of}"
        return f"process-{self.holder.pid}-{self.holder.start}"


def unknown(job: str) -> bool | None:
    """Of no job anything is known."""
    return None


def current(environment: Mapping[str, str], pid: int | None = None) -> Job:
    """The job of this environment, and the run of rankup in it if any; else a process.

    Args:
        pid: of the process that uses the copy; None: this one.
    """
    slurm = environment.get("SLURM_JOB_ID", "")
    if not (slurm.isascii() and slurm.isdigit()):  # it becomes the name of a file
        slurm = ""
    run = environment.get("RANKUP_RUN_DIR", "") if slurm else ""
    return Job(slurm, holder.process(pid if pid is not None else os.getpid()), run)


def this_process() -> Job:
    """This process, also in a job of Slurm: what it uses goes with it."""
    return Job("", holder.process(os.getpid()))


def starter() -> int:
    """The process for which a command is run: the shell, or the script that it stands in.

    That is the leader of the session; a parent may be a mere wrapper (`timeout`, `uv run`).
    """
    leader = os.getsid(0)
    return leader if leader not in (0, os.getpid()) else os.getppid()


def add(folder: Path, job: Job) -> None:
    """Note that a job uses a copy.

    Args:
        folder: with the users' files.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(0o700, exist_ok=True)
    files.write_atomic(folder / job.name, json.dumps(asdict(job)), private=True)


def of(folder: Path) -> dict[Path, Job | None]:
    """The users by their files; None where a file makes no sense."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    paths = (folder / name for name in names if not name.startswith("."))
    return {path: _read(path) for path in paths}


def _read(path: Path) -> Job | None:
    try:
        return parsed(json.loads(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def parsed(text: Mapping[str, Any]) -> Job | None:
    """A job, as `asdict` has written it; None where its process makes no sense.

    Raises:
        ValueError, LookupError, TypeError: it is no job at all.
    """
    who = holder.parse(json.dumps(text["holder"]))
    return None if who is None else Job(str(text["slurm"]), who, str(text["run"]))


def over(job: Job | None, alive: Alive) -> bool:
    """Whether a user is known to be gone."""
    if job is None:
        return True
    boot = holder.boot()
    if boot and not job.holder.host.startswith((boot, "unknown")):
        return True  # the machine has started anew since
    if job.slurm:
        return alive(job.slurm) is False
    return job.holder.host == holder.host() and holder.ended(job.holder)


def shown(job: Job | None) -> str:
    """In words."""
    if job is None:
        return "nobody that is known"
    if job.slurm:
        return f"job {job.slurm} of Slurm" + (f" (run {job.run})" if job.run else "")
    return holder.who(job.holder)
