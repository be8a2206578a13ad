"""The run that a user means, and the folders that belong to it."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

from ..base.errors import UserError
from ..base.files import user_path
from ..base.text import clean
from ..monitor.lines import FOLDER
from ..site import config, rundir
from ..site.config import Config
from ..slurm import parse
from ..slurm.client import Client, SlurmError, is_ours

# A view that waits half a minute for a busy controller helps nobody.
TIMEOUT = 10.0
_METRICS = "metrics.jsonl"


def here() -> tuple[Config, Client]:
    """Return the settings of this folder, for verbs that look at runs or end them, and a Slurm."""
    found, warning = config.for_views(Path.cwd())
    if warning:
        print(f"warning: {clean(warning)}", file=sys.stderr)
    return found, Client(timeout=TIMEOUT)


def locate(runs: Path, run: str, client: Client | None = None) -> tuple[Path, str | None]:
    """A run's directory, and the array's task where `run` means one ("123_4", `<run>/array/4`).

    Where `client` is given, Slurm is asked for the folder of a job that no run in `runs` has.

    Raises:
        UserError: there is no such run.
    """
    given = user_path(run, "RUN")
    if given.is_dir() and not (given / rundir.JOB).is_file():
        array = _array_of(given)
        if array is not None:
            return array, given.resolve().name
    match = re.fullmatch(r"\d+(?:_(\d+))?", run)
    task = match[1] if match else None
    try:
        return rundir.find(runs, run), task
    except UserError:
        if match is None or client is None or (path := _folder_of(client, run)) is None:
            raise
        return path, task


def folder(path: Path, task: str | None) -> Path:
    """Return the folder of that task of an array; the run's own folder without one."""
    return path if task is None else path / "array" / task


def bare(path: Path) -> bool:
    """Return True for a folder with a recording that is no run of ours, nor a task of one.

    That is what a sampler leaves that was started by hand, or that plays a recording.
    """
    if (path / rundir.JOB).exists() or _array_of(path) is not None:
        return False
    return any((path / FOLDER).glob("*.jsonl")) or (path / _METRICS).is_file()


def _array_of(path: Path) -> Path | None:
    """The run that a task's folder belongs to."""
    folder = path.resolve()
    run = folder.parent.parent
    return run if folder.parent.name == "array" and (run / rundir.JOB).is_file() else None


def _folder_of(client: Client, job_id: str) -> Path | None:
    """The run directory that one of this user's jobs works in."""
    with suppress(SlurmError):
        for record in client.show(job_id):
            folder, uid = record.get("WorkDir", ""), parse.user_number(record.get("UserId", ""))
            path = Path(folder)
            if is_ours(uid, folder, path) and (path / rundir.JOB).is_file():
                return path.resolve()
    return None
