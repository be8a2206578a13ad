"""The run that a user means."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ..base.errors import UserError
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


def locate(runs: Path, run: str, client: Client | None = None) -> Path:
    """A run's directory.

    Where `client` is given, Slurm is asked for the folder of a job that no run in `runs` has.

    Raises:
        UserError: there is no such run.
    """
    try:
        return rundir.find(runs, run)
    except UserError:
        if client is None or not run.isdecimal() or (path := _folder_of(client, run)) is None:
            raise
        return path


def bare(path: Path) -> bool:
    """Return True for a folder with a recording that is no run of ours.

    That is what a sampler leaves that was started by hand, or that plays a recording; and what a
    task of an array of version 0.2 has left.
    """
    if (path / rundir.JOB).exists():
        return False
    return any((path / FOLDER).glob("*.jsonl")) or (path / _METRICS).is_file()


def _folder_of(client: Client, job_id: str) -> Path | None:
    """The run directory that one of this user's jobs works in."""
    with suppress(SlurmError):
        for record in client.show(job_id):
            folder, uid = record.get("WorkDir", ""), parse.user_number(record.get("UserId", ""))
            path = Path(folder)
            if is_ours(uid, folder, path) and (path / rundir.JOB).is_file():
                return path.resolve()
    return None
