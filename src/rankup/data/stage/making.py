"""A copy that is not there yet is made: begun, filled, compared, published; or nothing of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ...base import holder, lock
from ...base.amounts import size
from ...base.errors import RunFailed, UserError
from ...base.files import no_space
from ..pack.progress import Progress
from . import choosing, copying, find, keeping, place, room, users, waiting
from .choosing import Ask
from .find import Copy
from .part import Part
from .plan import Plan, complete, part_of, planned


@dataclass(frozen=True)
class Staged:
    """A copy that is ready.

    Attributes:
        source: real path of what it is a copy of.
        path: the copy, a file or folder with the same name.
        size: bytes of data that are in it.
        total: bytes of data that the source has.
        seconds: that copying took; 0 where it was there.
        shared: it was there, or another process has made it.
        checked: each sample was compared with the hash that was packed with it.
    """

    source: Path
    path: Path
    size: int
    total: int
    seconds: float
    shared: bool
    checked: bool


def there(entry: Path, ask: Ask) -> Copy | None:
    """The copy that can be shared."""
    copy = find.read(entry)
    if copy is None or copy.source != ask.source:
        return None
    try:
        why = find.changed(copy)
    except OSError as error:
        if copy.whole:
            return copy
        raise UserError(
            f"{copy.source} cannot be seen ({error.strerror}), and only {size(copy.size)} of its "
            f"{size(copy.total)} are staged"
        ) from None
    if why:
        ask.say(f"{why} since {copy.source} was staged: it is copied anew")
        return None
    if copy.size < part_of(copy.total, ask.fraction):
        others = [one for one in keeping.living(entry, ask.alive) if one.name != ask.job.name]
        if not others:
            return None
        ask.say(
            f"of {copy.source} {size(copy.size)} of {size(copy.total)} are staged, and others use "
            f"them: it stays at that"
        )
    return copy


def shared(copy: Copy, ask: Ask) -> Staged:
    """Use a copy that is there."""
    if ask.to is not None and copy.folder.parent != place.folder_of(ask.to).resolve():
        ask.say(
            f"{ask.source} is staged already in {copy.folder.parent.parent}, and so not in "
            f"{ask.to} ({ask.options.to}): release it first"
        )
    users.add(copy.folder / find.USERS, ask.job)
    return _staged(copy, 0.0, shared=True)


def _staged(copy: Copy, seconds: float, *, shared: bool) -> Staged:
    return Staged(copy.source, copy.root, copy.size, copy.total, seconds, shared, copy.checked)


def made(entry: Path, ask: Ask, held: lock.Held) -> Staged:
    """Copy a source that is not there yet; the lock of the entry is held."""
    plan = planned(ask.source, ask.fraction)
    base = choosing.base(entry, ask, plan)
    folder = place.ours(base) / entry.name
    if folder == entry:
        return _tried(entry, folder, base, ask, plan, held)
    with lock.held(folder, ask.say, waiting.QUICK, doing="staging") as own:
        copy = there(folder, ask)  # of processes that have another home
        if copy is None:
            keeping.clear(folder)
        keeping.remove(entry)  # the list of users of an older copy
        entry.symlink_to(folder)  # now, so that those who wait see how far it is
        if copy is not None:
            return shared(copy, ask)
        try:
            return _tried(entry, folder, base, ask, plan, own)
        except lock.LockLost:
            raise
        except BaseException:
            held.check()
            entry.unlink(missing_ok=True)
            raise


def _tried(entry: Path, folder: Path, base: Path, ask: Ask, plan: Plan, held: lock.Held) -> Staged:
    try:
        return _copied(folder, base, ask, plan, held)
    except lock.LockLost:
        raise  # no failure of the copy, which another process makes
    except (UserError, RunFailed, OSError) as error:
        waiting.note_failure(entry, error)
        raise


def _copied(folder: Path, base: Path, ask: Ask, plan: Plan, held: lock.Held) -> Staged:
    start = time.monotonic()
    part = Part(plan.index, ask.source, folder / find.PART / ask.source.name, plan.sizes, plan.cuts)
    progress = Progress("staging", plan.size, len(plan.index), quiet=ask.quiet)
    try:
        held.check()
        _begin(part, folder, base, ask, plan)
        ask.fill(part, progress)
        complete(plan, part, folder, copying.threads())
        held.check()
        (folder / find.PART).rename(folder / find.DATA)
        copy = Copy(
            folder,
            ask.source,
            plan.size,
            plan.total,
            plan.seen,
            part.checked,
            holder.myself(),
        )
        find.write(copy)
    except lock.LockLost:
        raise  # what is there is another process's by now
    except BaseException as error:
        held.check()  # of a process that stood still the error may be just that
        full = isinstance(error, OSError) and no_space(error)
        now = replace(room.room(base, os.environ, ask.reserve), promised=0) if full else None
        part.close()
        taken = keeping.remove(folder)
        if now is not None:
            raise RunFailed(
                f"{base} on node {os.uname().nodename} was full after {size(taken)} of "
                f"{size(plan.needed)} of {ask.source} ({'; '.join(room.numbers(now))}): what was "
                f"copied is removed. Others write there too: make space, stage a part of it "
                f"({ask.options.fraction}), or choose another place ({ask.options.to} DIR)"
            ) from None
        raise
    finally:
        part.close()
        progress.close()
    return _staged(copy, time.monotonic() - start, shared=False)


def _begin(part: Part, folder: Path, base: Path, ask: Ask, plan: Plan) -> None:
    """Make the empty files of a copy: from now on its bytes are promised to it."""
    # Two copies that begin at once must not both count on the same room.
    with lock.held(folder.parent / "room", ask.say, waiting.QUICK, doing="counting"):
        here = room.room(base, os.environ, ask.reserve)
        if here.fits < plan.needed:
            raise UserError(choosing.refusal(ask, plan, [here]))
        folder.mkdir(0o700, exist_ok=True)
        # Already now, so that a release finds also what was interrupted.
        users.add(folder / find.USERS, ask.job)
        part.begin()
