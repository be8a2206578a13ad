"""`rankup logs`: the end of a run's log without what is harmless, and the cause of a failure."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import UserError
from ..base.text import clean
from ..site import rundir
from . import cause, meant
from .logfile import harmless, say, tail_bytes, tail_lines

# The cause is asked for at the end of a job, where it has to be quick: what only a look from
# outside needs is imported there.
if TYPE_CHECKING:
    from .attempts import Attempt

LINES = 40


def show(
    run: str = "last",
    *,
    following: bool = False,
    lines: int = LINES,
    raw: bool = False,
    only_cause: bool = False,
) -> int:
    """Print the log of a run's newest attempt; 0, or with `following` the job's exit code.

    Args:
        run: id, Slurm job id, `last`, or directory; a file is a plain log of Slurm or torchrun.
        following: go on until the run has ended.
        lines: how many.
        raw: leave nothing out; into a pipe the bytes are those of the file.
        only_cause: the last words of a failed run and nothing else.

    Raises:
        UserError: there is no such run.
    """
    file = Path(run)
    try:
        if file.is_file():
            if following:
                raise UserError(f"{run} is a log of no run of ours: `tail -f` follows it")
            from .explain import show as explain

            return explain(file, lines=lines, raw=raw, only_cause=only_cause)
        path = _locate(run)
        if only_cause:
            _show_cause(path)
            return 0
        if following:
            from .follow import follow

            return follow(path, lines=lines, raw=raw)
        _show_tail(path, lines, raw)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _locate(run: str) -> Path:
    # Inside a job, where this has to be quick, the run is given as a folder.
    if (Path(run) / rundir.JOB).is_file():
        return Path(run).resolve()
    here, client = meant.here()
    return meant.locate(here.runs, run, client)


def _show_cause(path: Path) -> None:
    attempt = None
    if not _inside(path):
        attempt = _attempt(path)
        if attempt is not None and attempt.state == "COMPLETED":
            say(f"{path.name} did not fail")
            return
        if attempt is not None and attempt.live:
            say(f"{path.name} has not ended. {attempt.words}")
            return
    found = cause.of_run(path, attempt.job if attempt else None)
    if found:
        say(cause.shown(found))
    elif attempt is not None:
        say(f"{_named(attempt)}: {attempt.state}. {clean(attempt.words)}")
    else:
        say(
            "no rank, torchrun or Slurm has left a word about the cause in "
            f"{path / 'log'}; the lines above may tell"
        )


def _show_tail(path: Path, lines: int, raw: bool) -> None:
    attempt = _attempt(path)
    file, start = cause.newest_log(path, rundir.records(path))
    if file is not None and raw and not sys.stdout.isatty():
        sys.stdout.flush()
        _copy(file, lines)
        return
    if not (path / "log").is_dir():
        say(f"note: {path / 'log'} is not there: whatever was printed is gone")
    if file is None:  # an older run on this machine
        start, file = 0, path / "log" / "torchrun.log"
        if attempt is not None and attempt.job is None:
            say("note: a local run's output went to its terminal; these are torchrun's remarks")
    shown = [clean(line) for line in tail_lines(file, 0 if raw else start)]
    if not raw:
        kinds = [harmless(line) for line in shown]
        for words in dict.fromkeys(filter(None, kinds)) if lines else ():
            say(f"harmless: {words} ({kinds.count(words)} lines)")
        shown = [line for line, words in zip(shown, kinds, strict=True) if not words]
    shown = shown[-lines:] if lines else []
    for line in shown:
        say(line)
    if attempt is None:
        say("this run has not been started")
    elif attempt.live:
        if attempt.state == "PENDING":
            say(f"{_named(attempt)} waits: {clean(attempt.words)}")
        elif not shown and lines and attempt.job is not None:
            say(_silent(attempt))
    elif attempt.failed and not raw:
        _say_why(path, attempt, shown)


def _silent(attempt: Attempt) -> str:
    from .status import clock

    where = f" on {', '.join(attempt.nodes[:4])}{', …' if len(attempt.nodes) > 4 else ''}"
    since = f" since {clock(attempt.started)}" if attempt.started else ""
    doing = (
        f"runs{where if attempt.nodes else ''}{since}"
        if attempt.state == "RUNNING"
        else attempt.state
    )
    return clean(f"{_named(attempt)} {doing}; nothing printed yet")


def _say_why(path: Path, attempt: Attempt, shown: list[str]) -> None:
    found = cause.of_run(path, attempt.job)
    text = (
        cause.shown(found)
        if found
        else f"{_named(attempt)}: {attempt.state}. {clean(attempt.words)}"
    )
    # The job script has asked for the cause itself, so that it stands in the log.
    last = text.splitlines()[-1]
    if not any(last == line for line in shown[-3:]):
        say("")
        say(text)


def _attempt(path: Path) -> Attempt | None:
    from ..slurm.client import Client
    from . import attempts

    client = Client(timeout=meant.TIMEOUT)
    try:
        found = attempts.of_run(path, rundir.read(path), client)
    except rundir.ArrayError:
        raise
    except UserError as error:  # the log is there all the same
        say(f"rankup: {error}")
        return None
    return attempts.last_job(found) or attempts.newest(found)


def _inside(path: Path) -> bool:
    """Return True in a job of the run itself."""
    job = os.environ.get("SLURM_JOB_ID")
    known = {record["job"] for record in rundir.records(path)}
    return job is not None and (job in known or "RANKUP_RUN_DIR" in os.environ)


def _copy(file: Path, lines: int) -> None:
    """The last lines of a file as they are."""
    for line in tail_bytes(file)[-lines:] if lines else []:
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _named(attempt: Attempt) -> str:
    return f"job {attempt.job}" if attempt.job else "the run"
