"""`rankup status --live`: the monitor's view of a run, told by Slurm how the run is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..base.files import user_path
from ..base.text import clean
from ..monitor.live import state
from ..monitor.live.state import State
from ..monitor.live.view import live
from ..site import config
from ..slurm.client import Client
from . import lives, meant
from .lives import Attempt
from .logfile import log_of


def show_live(run: str) -> int:
    """Show a run until it has ended or the view is.

    Args:
        run: as `meant.locate` takes it, or a folder that holds a recording alone (`meant.bare`).

    Raises:
        UserError: there is no such run.
    """
    given = user_path(run, "RUN")
    if meant.bare(given):
        return live(given.resolve())
    here, warning = config.for_views(Path.cwd())
    if warning:
        print(f"warning: {clean(warning)}", file=sys.stderr)
    client = Client(timeout=lives.TIMEOUT)
    path, task = meant.locate(here.runs, run, client)
    return live(meant.folder(path, task), lambda: _state(path, task, client))


def _state(path: Path, task: str | None, client: Client) -> State:
    job = lives.read_job(path)
    found = lives.of_run(path, job, client)
    life = _of(found, task)
    own = state.own(path)
    if life is None:
        return replace(own, state="NEW", words="It has not been started.", live=True)
    begin = life.started
    limit = state.time_limit(path) if life.job and life.live and begin is not None else None
    log = own.log
    if life.job is not None:
        log = log_of(path, life.job.partition("_")[0], life.task)
    return replace(
        own,
        id=own.id if task is None else f"{own.id} task {task}",
        state=life.state,
        words=life.words,
        # Of a run on another node nobody here knows; its samplers say whether it goes on.
        live=None if life.state == "UNKNOWN" else life.live,
        begin=begin,
        end=life.ended,
        limit=begin + limit if begin is not None and limit is not None else None,
        log=log,
    )


def _of(found: Sequence[Attempt], task: str | None) -> Attempt | None:
    mine = found if task is None else [life for life in found if life.task == task]
    return lives.newest(mine)
