"""`rankup pack`: the order of it all, from the words of the command line to its exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base import lock
from ...base.amounts import size
from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ...base.text import clean, say
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from ..verified import SourceDamaged, SourceProblem
from . import checks, finish, journal, report, write
from .context import Pack, Step, shape
from .layout import LAYOUTS, Layout, plan
from .progress import duration
from .request import Request, Target, asked, checked, differences, target
from .source import files_before, root, scanned

Quota = Callable[[Path], list[str]]


class Interrupted(Exception):  # noqa: N818 - it is what happened
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def pack(request: Request, quota: Quota | None = None) -> int:
    """Turn a source into a container, and return the command's exit code.

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
    step = Step.of(os.environ)
    if step.task and (request.dry_run or goal.container not in LAYOUTS):
        return 0  # the first task does it alone
    _make_folder(request, goal, quiet=request.as_json or step.task > 0)
    try:
        with _signals() as watch:
            of = Pack(request, goal, step, watch, quota or (lambda path: []))
            if request.dry_run:
                _preview(of)
            elif step.task:
                write.help_to_fill(of)
            else:
                _lead(of)
    except (UserError, OSError, RunFailed, SourceProblem, Interrupted, KeyboardInterrupt) as error:
        message, code = _failure(error, goal)
        say(message)
        return code
    return 0


def _lead(of: Pack) -> None:
    """Make the container, and say so."""
    started = time.monotonic()
    with lock.held(of.goal.out, say, doing="packing", wait=False) as held:
        interrupted = of.watch

        def watch() -> None:
            interrupted()
            held.check()

        of = replace(of, watch=watch)
        before, done = _there(of)
        if done is not None:
            if before is not None or of.work.part.is_dir():
                of.work.remove()  # killed while it was cleared away
            of.say(f"{of.goal.out} is complete already, with {done['samples']} samples")
        else:
            copied = 0 if _is_saved(of, before) else _made(of, before is not None, started)
            finish.publish(of.work)
            done = report.read(of.goal.report)
            if done is None:
                raise RunFailed(f"{of.goal.report} cannot be read; {of.goal.out} is complete")
            of.work.remove()
            seconds = time.monotonic() - started
            speed = f", {size(copied)} read at {size(copied / seconds)}/s" if copied else ""
            of.say(f"done: {of.goal.out}, {size(done['bytes'])} in {duration(seconds)}{speed}")
            for line in report.lines_after(done, of.goal.report):
                of.say(line)
    if of.request.as_json:
        print(json.dumps(done, indent=2))


def _made(of: Pack, begun: bool, started: float) -> int:
    """Make everything but the last names; return the bytes of the source that were read for it."""
    request, goal, work = of.request, of.goal, of.work
    original = work.load_source() if begun else None
    fresh = original is None
    notes: list[dict[str, Any]] = []
    if original is None:
        original = scanned(request)
        if request.bad != "keep":
            original, notes = write.without_damaged(of, original)
    source, base = original, root(request)
    told, layout = _planned(of, source)
    for line in report.lines_before(request.source, told, of.quota(goal.out.parent)):
        of.say(line)
    report.fits(told, journal.allocated(work.data))
    with report.missing_space(work, lambda: told["bytes"] or report.index_bytes(original)):
        if fresh:
            work.make(asked(request, goal))
            work.note(notes)
            indexes.save(source, work.source)
        read = -1
        if request.resize is not None:
            source, read = _resized(of, source)
            base = work.part
        if goal.container in LAYOUTS:
            layout = layout or plan(goal.container, source, shape(request))
            layout, hashes, copied = write.fill(of, source, base, layout)
            index = finish.hashed(layout, hashes, work.data)
        else:
            index, copied = write.stream(of, source, base)
        index = finish.complete(work.data, index, files_before(original), of.workers, of.watch)
        of.watch()
        done = _report(of, original, index, told, time.monotonic() - started)
        finish.save(work, index, done, fsync=request.fsync)
    return copied if read < 0 else read


def _preview(of: Pack) -> None:
    """Print what a pack would do.

    Raises:
        UserError: it would be refused.
    """
    request, goal = of.request, of.goal
    _, whole = _there(of)
    if whole is not None:
        print(json.dumps(whole, indent=2) if request.as_json else f"{goal.out} is complete already")
        return
    told, _ = _planned(of, scanned(request))
    lines = of.quota(goal.out.parent)
    if request.as_json:
        print(json.dumps({**told, "free": report.free(goal.out), "quota": lines}, indent=2))
    else:
        print("\n".join(report.lines_before(request.source, told, lines)))
    report.fits(told, journal.allocated(goal.part))


def _planned(of: Pack, source: Index) -> tuple[dict[str, Any], Layout | None]:
    """Return what is to be said before the pack, and the layout where it is known then.

    Raises:
        UserError: a file would be larger than this process may write.
    """
    request, goal = of.request, of.goal
    known = goal.container in LAYOUTS and request.resize is None
    layout = plan(goal.container, source, shape(request)) if known else None
    told = report.before(request, goal, source, layout)
    report.within_limit(goal.out, int(layout.sizes.max()) if layout is not None else told["bytes"])
    return told, layout


def _resized(of: Pack, source: Index) -> tuple[Index, int]:
    try:
        from . import spool  # with Pillow

        return spool.spooled(of, source)
    except UserError:
        # Of what was done nothing can be used: the source is to be mended, or asked for otherwise.
        if of.request.bad == "fail":
            of.work.remove()
        raise


def _report(
    of: Pack, source: Index, index: Index, told: dict[str, Any], seconds: float
) -> dict[str, Any]:
    notes = of.work.notes()
    problems = [one for one in notes if "sample" in one]
    problems += checks.listed(source, [one for one in notes if "row" in one])
    left_out = [one["left_out"] for one in notes if "left_out" in one]
    return report.after(
        of.request,
        of.goal,
        told,
        index,
        {"problems": problems, "left_out": left_out},
        seconds=seconds,
        tasks=of.step.tasks,
        workers=of.workers,
    )


def _there(of: Pack) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return what earlier packs have left: what a half-done one was asked, a whole OUT's report.

    Raises:
        UserError: this pack is refused; nothing is ever overwritten.
    """
    request, goal, part = of.request, of.goal, of.work.part
    before = of.work.asked()
    saved = _is_saved(of, before)
    if os.path.lexists(goal.out) and not saved:
        return before, _whole(of)
    if before is not None and not request.resume:
        raise UserError(
            f"{part} is what an interrupted pack has left: add --resume to go on with it, or "
            "remove it to begin anew"
        )
    differs = differences(before, asked(request, goal)) if before is not None else ""
    if differs:
        raise UserError(
            f"{part} was begun otherwise: {differs}. Resume it as it was begun, or remove {part} "
            "to begin anew"
        )
    if not saved:
        finish.free(of.work)
        source = root(request)
        if source.is_dir() and goal.out.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"OUT {goal.out} lies inside of SOURCE {source}, of which it would be a part the "
                "next time; choose a place outside"
            )
    return before, None


def _is_saved(of: Pack, before: dict[str, Any] | None) -> bool:
    """Return True where an earlier pack has only names left to change."""
    return before is not None and of.work.index.is_file()


def _whole(of: Pack) -> dict[str, Any]:
    """Return the report of OUT, which is there. With --resume and as asked for nothing is to do.

    Raises:
        UserError: it is something else, or not to be gone on with.
    """
    goal = of.goal
    try:
        count = len(indexes.load(goal.index))
    except (OSError, BadContainer):
        raise UserError(
            f"{goal.out} exists, and is no complete container of rankup's; it is not overwritten: "
            "remove it, or choose another name"
        ) from None
    found = f"{goal.out} exists, with {count} samples"
    other = "it is not overwritten: remove it, or choose another name"
    if not of.request.resume:
        raise UserError(f"{found}; {other}")
    kept = report.read(of.goal.report)
    if kept is None:
        raise UserError(f"{found}, and {goal.report}, which says of what, cannot be read; {other}")
    differs = differences(kept["asked"], asked(of.request, goal))
    if differs:
        raise UserError(f"{found}, and was made otherwise: {differs}; {other}")
    if of.work.part.is_dir() and not of.work.is_over():
        raise UserError(
            f"{found}, and {of.work.part} is what another pack has left, which was interrupted: "
            "move one of them away, or remove it"
        )
    return kept


def _make_folder(request: Request, goal: Target, quiet: bool) -> None:
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


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM set a flag while the body runs; give what raises once it is set.

    Raises (the function given):
        Interrupted: a signal came.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise Interrupted(came[0])

    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failure(error: BaseException, goal: Target) -> tuple[str, int]:
    """Return what to say of a failure, and the exit code."""
    if isinstance(error, UserError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, lock.Taken):
        return f"another process is at it: {error}", EXIT_BAD_INPUT
    there = goal.part.exists()
    kept = f"what is done is kept in {goal.part}, and --resume goes on from there"
    if goal.container not in LAYOUTS:
        kept = f"{goal.part} is kept; with --resume the image is written from its beginning"
    if isinstance(error, KeyboardInterrupt | Interrupted):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        return f"interrupted; {kept if there else 'before anything was written'}", 128 + number
    if isinstance(error, SourceDamaged):
        return (
            f"the source is damaged:\n{checks.shown(error.args)}\nrestore it and use --resume; or "
            "get what is sound with `rankup inspect SOURCE --extract DIR`, and pack that",
            EXIT_FAILED,
        )
    if isinstance(error, SourceProblem):
        return (
            f"the source is not as it was when it was scanned:\n{checks.shown(error.args)}\n"
            f"put it back and use --resume, or remove {goal.part} and pack anew",
            EXIT_FAILED,
        )
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.EFBIG:  # HDF5 adds addresses
        text = f"{goal.out}: no file may be so large here (ulimit -f, or the file system's limit)"
    return f"{text}; {kept}" if there else text, EXIT_FAILED
