"""`rankup pack`, from the words of the command line to its exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from ...base import lock
from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ...base.text import clean, say
from .reader import DAMAGED, SourceProblem
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
        UserError: the words of the request do not make sense, or OUT is nowhere to be written.
    """
    goal = target(request.out, request.to)
    checked(request, goal.container)
    of = team(os.environ, goal)
    if of is not None and request.dry_run:
        if of.task > 0:
            return 0  # one summary is enough
        of = None
    _folder(request, goal, quiet=request.as_json or (of is not None and of.task > 0))
    if of is None:
        return _ended(request, goal, None, quota or _nothing)
    with alive(of):
        code = _ended(request, goal, of, quota or _nothing)
    if of.task == 0 and code == 0:
        dismiss(of)
    return code


def _nothing(path: Path) -> list[str]:
    return []


def _ended(request: Request, goal: Target, of: Team | None, quota: Quota) -> int:
    """The exit code; what a failure has to say is said."""
    try:
        return _run(request, goal, of, quota)
    except (
        *(UserError, OSError, RunFailed),
        *(SourceProblems, SourceProblem, Interrupted, KeyboardInterrupt),
    ) as error:
        message, code = _told(error, goal)
        if of is not None:
            fail(of, message, code)
        if not (isinstance(error, Failed) and error.task == 0):  # task 0 has said it itself
            say(message)
        return code
    except BaseException as error:  # a bug, no memory: the others must not wait for this one
        if of is not None:
            fail(of, f"{type(error).__name__}: {error}", EXIT_FAILED)
        raise


def _run(request: Request, goal: Target, of: Team | None, quota: Quota) -> int:
    # What is only needed once the request is known to make sense.
    from . import lead

    if request.dry_run:
        lead.preview(request, goal, quota)
        return 0
    if of is not None and of.task > 0:
        lead.follow(request, goal, of)
        return 0
    with lock.held(goal.out, say, doing="packing", wait=False) as held:
        tidy(goal, of)
        report = lead.lead(request, goal, of, held.check, quota)
    if request.as_json:
        print(json.dumps(report, indent=2))
    return 0


def _folder(request: Request, goal: Target, quiet: bool) -> None:
    """Make the folder that OUT is to be in, if it is not there; say so, as it may be a slip.

    Raises:
        UserError: it cannot be written to.
    """
    folder = goal.out.parent
    there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    try:
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if request.dry_run:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return  # which may be what --resume is about; what is missing is said where it is known
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): choose another place for OUT"
        ) from None
    finally:
        if there != folder and not quiet:
            print(clean(f"{folder} is not there yet: it is made"), flush=True)


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
    if goal.container == "squashfs":
        kept = f"{goal.part} is kept; with --resume the image is written from its beginning"
    if isinstance(error, KeyboardInterrupt | Interrupted):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        after = kept if there else "before anything was written"
        return f"interrupted; {after}", 128 + number
    if isinstance(error, SourceProblems | SourceProblem):
        found = error.found if isinstance(error, SourceProblems) else [str(error)]
        if all(one.endswith(DAMAGED) for one in found):
            return (
                f"the source is damaged:\n{shown(found)}\nrestore it and use --resume; or get what "
                "is sound with `rankup inspect SOURCE --extract DIR`, and pack that",
                EXIT_FAILED,
            )
        return (
            f"the source is not as it was when it was scanned:\n{shown(found)}\n"
            f"put it back and use --resume, or remove {goal.part} and pack anew",
            EXIT_FAILED,
        )
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.EFBIG:  # HDF5 adds addresses
        text = f"{goal.out}: no file may be so large here (ulimit -f, or the file system's limit)"
    return f"{text}; {kept}" if there else text, EXIT_FAILED
