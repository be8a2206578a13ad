"""`rankup pack`, from the words of the command line to its exit code."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from ...base import lock
from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ...base.text import clean
from .reader import SourceProblem
from .request import Request, Target, checked, target
from .slurm import Failed, Team, alive, dismiss, fail, team, tidy
from .workers import Interrupted, SourceProblems, shown

Quota = Callable[[Path], list[str]]


def pack(request: Request, quota: Quota | None = None) -> int:
    """Turn a source into a container, and give the command's exit code.

    0: OUT is complete. 2: it cannot be made as asked. 1: it could not be made now, and what is done
    is kept for `--resume`: a source that changed, no space, a worker that was killed. 130, 143:
    Ctrl-C or SIGTERM, kept as well.

    Args:
        quota: lines about the user's quota where OUT will be.

    Raises:
        UserError: the words of the request do not make sense.
    """
    checked(request)
    goal = target(request.out, request.to)
    of = team(os.environ, goal)
    if of is not None and request.dry_run:
        if of.task > 0:
            return 0  # one summary is enough
        of = None
    with alive(of) if of is not None else nullcontext():
        try:
            return _run(request, goal, of, quota or (lambda path: []))
        except (
            *(UserError, OSError, RunFailed),
            *(SourceProblems, SourceProblem, Interrupted, KeyboardInterrupt),
        ) as error:
            message, code = _told(error, goal)
            if of is not None:
                fail(of, message, code)
            if not (isinstance(error, Failed) and error.task == 0):  # task 0 has said it itself
                _say(message)
            return code


def _run(request: Request, goal: Target, of: Team | None, quota: Quota) -> int:
    # What is only needed once the request is known to make sense.
    from . import lead

    if request.dry_run:
        lead.preview(request, goal, quota)
        return 0
    if of is not None and of.task > 0:
        lead.follow(request, goal, of)
        return 0
    with lock.held(goal.out, _say, doing="packing", wait=False) as held:
        tidy(goal, of)
        report = lead.lead(request, goal, of, held.check, quota)
    if of is not None:
        dismiss(of)
    if request.as_json and report is not None:
        print(json.dumps(report, indent=2))
    return 0


def _told(error: BaseException, goal: Target) -> tuple[str, int]:
    """What to say of a failure, and the exit code."""
    if isinstance(error, UserError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, lock.Taken):
        return f"another process is at it: {error}", EXIT_BAD_INPUT
    if isinstance(error, Failed):
        return str(error), error.code
    there = goal.part.exists()
    kept = f"what is done is kept in {goal.part}, and --resume goes on from there"
    if isinstance(error, KeyboardInterrupt | Interrupted):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        after = kept if there else "before anything was written"
        return f"interrupted; {after}", 128 + number
    if isinstance(error, SourceProblems | SourceProblem):
        found = error.found if isinstance(error, SourceProblems) else [str(error)]
        return (
            f"the source is not as it was when it was scanned:\n{shown(found)}\n"
            f"put it back and use --resume, or remove {goal.part} and pack anew",
            EXIT_FAILED,
        )
    return f"{error}; {kept}" if there else str(error), EXIT_FAILED


def _say(line: str) -> None:
    print("rankup: " + "\n".join(map(clean, line.split("\n"))), file=sys.stderr, flush=True)
