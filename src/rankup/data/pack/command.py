"""`rankup pack`: the order of it all, from the words of the command line to its exit code."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base import lock
from ...base.amounts import duration, size
from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, RunFailed, UserError
from ...base.text import say
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from ..pool import Interrupted, interruptible
from ..verified import SourceDamaged, SourceProblem
from . import checks, journal, report, write
from .journal import Pack
from .layout import LAYOUTS, Layout, plan
from .source import Request, checked, differences, files_before, root, scanned

Quota = Callable[[Path], list[str]]


def pack(request: Request, quota: Quota = lambda path: []) -> int:
    """Turn a source into a container, and return the command's exit code.

    0: OUT is complete. 2: it cannot be made as asked. 1: it could not be made now, and what is done
    is kept for `--resume`: a source that changed, no space, a worker that was killed. 130, 143:
    Ctrl-C or SIGTERM, kept as well.

    Args:
        quota: lines about the user's quota where OUT will be.

    Raises:
        UserError: the words of the request do not make sense, or OUT is nowhere to be written.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise UserError(
            f"this Slurm step has {tasks} tasks, and one alone packs, with all cores it has: start "
            "it by `srun -n 1 --cpus-per-task N`, or without srun"
        )
    of = Pack(request)
    checked(request, of.container)
    _make_folder(of)
    try:
        with interruptible() as of.watch:
            if of.request.dry_run:
                _preview(of, quota)
            else:
                _lead(of, quota)
    except BrokenPipeError:  # nobody reads what --json or --dry-run print: as with any verb
        raise
    except (UserError, OSError, RunFailed, SourceProblem, Interrupted, KeyboardInterrupt) as error:
        message, code = _failure(error, of)
        say(message)
        return code
    return 0


def _lead(of: Pack, quota: Quota) -> None:
    """Make the container, and say so."""
    started = time.monotonic()
    with lock.held(of.out, say, doing="packing", wait=False) as held:
        interrupted = of.watch

        def watch() -> None:
            interrupted()
            held.check()

        of.watch = watch
        done = _there(of)
        if done is not None:
            of.remove()  # killed while it was cleared away
            of.say(f"{of.out} is complete already, with {done['samples']} samples")
        else:
            # Of an earlier pack there may be only names left to give.
            copied = 0 if of.index.is_file() else _made(of, quota, started)
            write.publish(of)
            done = report.read(of.named(of.report))
            of.remove()
            seconds = time.monotonic() - started
            speed = f", {size(copied)} read at {size(copied / seconds)}/s" if copied else ""
            of.say(f"done: {of.out}, {size(done['bytes'])} in {duration(seconds)}{speed}")
            for line in report.lines_after(done, of.named(of.report)):
                of.say(line)
    if of.request.as_json:
        print(json.dumps(done, indent=2), flush=True)


def _made(of: Pack, quota: Quota, started: float) -> int:
    """Make everything but the last names; return the bytes of the source that were read for it."""
    request = of.request
    fresh = not of.source.is_file()
    original = scanned(request) if fresh else indexes.load(of.source)
    notes: list[dict[str, Any]] = []
    if fresh and request.bad != "keep":
        original, notes = write.without_damaged(of, original)
    source, base, copied = original, root(request), -1
    layout = _layout(of, source)
    planned = report.before(of, source, layout)
    for line in report.lines_before(request.source, planned, quota(of.out.parent)):
        of.say(line)
    report.fits(planned, layout, journal.allocated(of.data))
    with report.missing_space(of, planned["bytes"]):
        if fresh:
            of.make()
            of.note(notes)
            indexes.save(source, of.source)
        if request.resize is not None:
            source, copied = _resized(of, source)
            base, layout = of.part, _layout(of, source, resized=True)
        if layout is not None:
            layout, hashes, read = write.fill(of, source, base, layout)
            index = write.hashed(layout, hashes, of.data)
        else:
            index, read = write.stream(of, source, base)
        index = write.complete(index, of.data, files_before(original))
        of.watch()
        done = report.after(of, planned, original, index, time.monotonic() - started)
        write.save(of, index, done)
    return read if copied < 0 else copied


def _preview(of: Pack, quota: Quota) -> None:
    """Print what a pack would do.

    Raises:
        UserError: it would be refused.
    """
    done = _there(of)
    if done is not None:
        text = f"{of.out} is complete already"
        print(json.dumps(done, indent=2) if of.request.as_json else text, flush=True)
        return
    source = scanned(of.request)
    layout = _layout(of, source)
    planned = report.before(of, source, layout)
    lines = quota(of.out.parent)
    if of.request.as_json:
        text = json.dumps({**planned, "free": report.free(of.out), "quota": lines}, indent=2)
    else:
        text = "\n".join(report.lines_before(of.request.source, planned, lines))
    print(text, flush=True)
    report.fits(planned, layout, journal.allocated(of.part))


def _layout(of: Pack, source: Index, *, resized: bool = False) -> Layout | None:
    """Return the layout for a source; None where places are not known before the bytes."""
    if of.container not in LAYOUTS or (of.request.resize is not None and not resized):
        return None
    return plan(of.container, source, of.shape)


def _resized(of: Pack, source: Index) -> tuple[Index, int]:
    from . import spool  # of no use without --resize

    try:
        return spool.spooled(of, source)
    except UserError:
        # Of what was done nothing can be used: the source is to be mended, or asked for otherwise.
        if of.request.bad == "fail":
            of.remove()
        raise


def _there(of: Pack) -> dict[str, Any] | None:
    """Return the report of OUT where it is complete; None where there is something to be done.

    Raises:
        UserError: this pack is refused; nothing is ever overwritten.
    """
    before = of.before()
    saved = before is not None and of.index.is_file()
    if os.path.lexists(of.out) and not saved:
        return _whole(of)
    if before is not None and not of.request.resume:
        raise UserError(
            f"{of.part} is what an interrupted pack has left: add --resume to go on with it, or "
            "remove it to begin anew"
        )
    differs = differences(before, of.asked) if before is not None else ""
    if differs:
        raise UserError(
            f"{of.part} was begun otherwise: {differs}. Resume it as it was begun, or remove "
            f"{of.part} to begin anew"
        )
    if not saved:
        write.free(of)
        source = root(of.request)
        if source.is_dir() and of.out.resolve().is_relative_to(source.resolve()):
            raise UserError(
                f"OUT {of.out} lies inside of SOURCE {source}, of which it would be a part the "
                "next time; choose a place outside"
            )
    return None


def _whole(of: Pack) -> dict[str, Any]:
    """Return the report of OUT, which is there. With --resume and as asked for nothing is to do.

    Raises:
        UserError: it is something else, or not to be gone on with.
    """
    other = "it is not overwritten: remove it, or choose another name"
    try:
        count = len(indexes.load(of.named(of.index)))
    except (OSError, BadContainer):
        raise UserError(
            f"{of.out} exists, and is no complete container of rankup's; {other}"
        ) from None
    found = f"{of.out} exists, with {count} samples"
    if not of.request.resume:
        raise UserError(f"{found}; {other}")
    done = report.read(of.named(of.report))
    differs = differences(done["asked"], of.asked)
    if differs:
        raise UserError(f"{found}, and was made otherwise: {differs}; {other}")
    if of.part.is_dir() and not of.is_over():
        raise UserError(
            f"{found}, and {of.part} is what another pack has left, which was interrupted: "
            "move one of them away, or remove it"
        )
    return done


def _make_folder(of: Pack) -> None:
    """Make the folder that OUT is to be in, if it is not there; say so, as it may be a slip.

    Raises:
        UserError: it cannot be written to.
    """
    folder = of.out.parent
    there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    try:
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if of.request.dry_run:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): choose another place for OUT"
        ) from None
    finally:
        if there != folder:
            of.say(f"{folder} is not there yet: it is made")


def _failure(error: BaseException, of: Pack) -> tuple[str, int]:
    """Return what to say of a failure, and the exit code."""
    if isinstance(error, UserError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, lock.Taken):
        return f"another process is at it: {error}", EXIT_BAD_INPUT
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"OUT {of.out.name} is too long a name; choose a shorter one", EXIT_BAD_INPUT
    there = of.part.exists()
    kept = f"what is done is kept in {of.part}, and --resume goes on from there"
    if of.container not in LAYOUTS:
        kept = f"{of.part} is kept; with --resume the image is written from its beginning"
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
            f"put it back and use --resume, or remove {of.part} and pack anew",
            EXIT_FAILED,
        )
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.EFBIG:  # HDF5 adds addresses
        text = f"{of.out}: no file may be so large here (ulimit -f, or the file system's limit)"
    return f"{text}; {kept}" if there else text, EXIT_FAILED
