"""`rankup status --live`: the monitor's view of a run, told by Slurm how the run is."""

from __future__ import annotations

import sys
from pathlib import Path

from ..base.files import user_path
from ..base.text import clean
from ..monitor.live.view import live
from ..monitor.live.watch import Run
from ..site import config, rundir
from ..slurm.client import Client
from . import attempts, meant, status
from .logfile import OUTPUT, log_of


def show_live(run: str) -> int:
    """Show a run until it has ended or the view is.

    Args:
        run: as `meant.locate` takes it, or a folder that holds a recording alone (`meant.bare`).

    Raises:
        UserError: there is no such run.
    """
    given = user_path(run, "RUN")
    if meant.bare(given):
        return live(given.resolve(), lambda: Run(given.resolve().name))
    here, warning = config.for_views(Path.cwd())
    if warning:
        print(f"warning: {clean(warning)}", file=sys.stderr)
    client = Client(timeout=attempts.TIMEOUT)
    path, task = meant.locate(here.runs, run, client)
    return live(meant.folder(path, task), lambda: _run(path, task, client))


def _run(path: Path, task: str | None, client: Client) -> Run:
    job = rundir.read(path)
    found = [one for one in attempts.of_run(path, job, client) if task in (None, one.task)]
    attempt = attempts.newest(found)
    log = path / OUTPUT
    if attempt is not None and attempt.job is not None:
        log = log_of(path, attempt.job.partition("_")[0], attempt.task)
    name = job.id if task is None else f"{job.id} task {task}"
    return Run(name, job.name, attempt or attempts.NEW, status.steps(job), log)
