"""`rankup check` of a script before it runs: what would fail stops it, the rest is said."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from ..base.errors import UserError
from ..base.findings import Finding
from ..base.text import clean
from ..site.rundir import Job

SYNTAX = "RK100"
_LINES = 4  # of findings; `rankup check` has them all


def before_submit(job: Job, ranks: int, wanted: bool) -> list[str]:
    """What to say about the script of a job on so many ranks.

    Raises:
        UserError: Python cannot read it, so the job would end at once.
    """
    if job.kind != "script" or not wanted:
        return []
    found = _found(Path(job.target))
    broken = next((one for one in found if one.code == SYNTAX), None)
    if broken is not None:
        raise UserError(
            f"{broken.place}: {broken.message}; the job would end at once. {broken.todo}".rstrip()
            + " (--no-check submits it all the same)"
        )
    return _lines(found, Path(job.target)) if ranks > 1 else []


def beside(job: Job, ranks: int, wanted: bool) -> None:
    """The same beside a run on this machine, whose start waits for the compiler alone.

    Raises:
        UserError: Python cannot read the script.
    """
    if job.kind != "script" or not wanted:
        return
    script = Path(job.target)
    try:
        compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{script}:{error.lineno}" if isinstance(error, SyntaxError) else str(script)
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UserError(
            f"{place}: {message}; no rank was started (--no-check starts them all the same)"
        ) from None
    if ranks < 2:
        return
    threading.Thread(target=_say, args=(Path(job.target),), daemon=True).start()


def _say(path: Path) -> None:
    try:
        lines = _lines([one for one in _found(path) if one.code != SYNTAX], path)
    except Exception as error:  # it takes nothing from the run
        lines = [f"note: {path.name} was not checked: {type(error).__name__}: {error}"]
    if lines:
        print("\n".join(map(clean, lines)), file=sys.stderr, flush=True)


def _found(path: Path) -> tuple[Finding, ...]:
    from ..port.check import check  # not for each command that starts a run

    return check([path])


def _lines(found: Iterable[Finding], path: Path) -> list[str]:
    """A few lines: the errors first, then how to see all of it."""
    found = sorted(found, key=lambda one: one.level != "error")
    if not found:
        return []
    shown = [f"{one.level}: {one.place}: {one.message} [{one.code}]" for one in found[:_LINES]]
    more = f"{len(found) - _LINES} more, and " if len(found) > _LINES else ""
    return [*shown, f"note: {more}what to do: rankup check {path}"]
