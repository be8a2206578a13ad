"""The way of a pack, as the process that leads it goes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...base.amounts import size
from ...base.errors import UserError
from ...base.files import write_json
from .. import index as indexes
from ..errors import BadContainer
from ..index import Index
from . import checks, finish, report, steps
from . import summary as summaries
from . import work as state
from .layout import LAYOUTS, plan
from .progress import duration
from .request import Request, Target
from .slurm import Others, Team
from .source import root, scanned
from .steps import Pack
from .work import Work
from .workers import Watch, signals

Quota = Callable[[Path], list[str]]


def lead(
    request: Request, goal: Target, of: Team | None, locked: Watch, quota: Quota
) -> dict[str, Any] | None:
    """Make the container, and give its report; None where it was there already.

    Args:
        locked: raises once the lock of OUT is lost.

    Raises:
        UserError: it cannot be made as asked.
        Interrupted, Lost, SourceProblems: it was interrupted; what is done is kept.
        OSError: it could not be read or written.
    """
    work, asked = Work(goal.part), state.asked(request, goal)
    before = state.ours(work)
    if os.path.lexists(goal.out) and not (before and finish.saved(work, goal)):
        _refuse_or_leave(request, goal, work)
        return None
    if before is not None and not request.resume:
        raise UserError(
            f"{goal.part} is what an interrupted pack has left: add --resume to go on with it, or "
            "remove it to begin anew"
        )
    if before is not None:
        state.same(before, asked, goal.part)
    source = state.load_source(work) if before is not None else None
    fresh = source is None
    if source is None:
        _outside(request, goal)
        source = scanned(request)
    with signals() as came:
        others = Others(of) if of is not None else None

        def watch() -> None:
            came()
            locked()
            if others is not None:
                others.check()

        return _made(Pack(request, goal, of, watch, quota), source, fresh)


def preview(request: Request, goal: Target, quota: Quota) -> None:
    """Print what a pack would do.

    Raises:
        UserError: it would be refused.
    """
    source = scanned(request)
    known = goal.container in LAYOUTS and request.resize is None
    layout = plan(goal.container, source, steps.shape(request)) if known else None
    told = summaries.summary(request.source, source, layout, goal)
    lines = quota(goal.out.parent)
    if request.as_json:
        values = {**asdict(told), "target": str(goal.out), "container": goal.container}
        print(json.dumps({**values, "quota": lines}, indent=2))
    else:
        print("\n".join(summaries.lines(told, lines)))
    summaries.fits(told, state.allocated(goal.part))


def follow(request: Request, goal: Target, of: Team) -> None:
    """A task other than the first: copy its units once there is something to copy to."""
    with signals() as came:
        others = Others(of)

        def watch() -> None:
            came()
            others.check()

        steps.follow(request, goal, of, watch)


def _made(pack: Pack, source: Index, fresh: bool) -> dict[str, Any]:
    started = time.monotonic()
    request, goal, work = pack.request, pack.goal, pack.work
    base = root(request)
    index = None
    if not fresh and finish.saved(work, goal):  # killed within the last two steps
        told = summaries.summary(request.source, source, None, goal)
        finish.publish(work, goal, None, fsync=request.fsync)
        index = indexes.load(indexes.place(goal.out))
    else:
        notes: list[dict[str, Any]] = []
        if fresh and request.bad != "keep":
            source, notes = steps.without_damaged(pack, source)
        original = source
        known = not pack.streamed and request.resize is None
        layout = plan(goal.container, source, steps.shape(request)) if known else None
        told = summaries.summary(request.source, source, layout, goal)
        for line in summaries.lines(told, pack.quota(goal.out.parent)):
            pack.say(line)
        summaries.fits(told, state.allocated(work.data))
        if fresh:
            state.make(work, state.asked(request, goal))
            state.note(work.noted, notes)
            indexes.save(source, work.source)
        if request.resize is not None:
            source, base = steps.spooled(pack, source), work.part
        if pack.streamed:
            index = steps.streamed(pack, source, base)
        else:
            layout = layout or plan(goal.container, source, steps.shape(request))
            index = steps.filled(pack, source, base, layout)
        pack.watch()
        finish.publish(work, goal, index, fsync=request.fsync)
        source = original
    done = _report(pack, source, index, told, time.monotonic() - started)
    state.remove(work)
    return done


def _report(
    pack: Pack, source: Index, index: Index, told: summaries.Summary, seconds: float
) -> dict[str, Any]:
    notes = list(state.notes(pack.work))
    problems = [one for one in notes if "sample" in one]
    problems += checks.listed(source, [one for one in notes if "row" in one])
    left_out = [one["left_out"] for one in notes if "left_out" in one]
    done = report.report(
        told,
        index,
        problems,
        left_out,
        asked=state.asked(pack.request, pack.goal),
        seconds=seconds,
        tasks=pack.of.tasks if pack.of else 1,
        workers=pack.workers,
    )
    with suppress(OSError):  # the container is complete, with or without it
        write_json(pack.goal.report, done)
    speed = size(told.source_bytes / seconds) if seconds > 0 else ""
    pack.say(f"done: {pack.goal.out}, {size(done['bytes'])} in {duration(seconds)}, {speed}/s")
    for line in report.lines(done, pack.goal.report):
        pack.say(line)
    return done


def _refuse_or_leave(request: Request, goal: Target, work: Work) -> None:
    """OUT is there. With --resume and a whole OUT there is nothing left to do.

    Raises:
        UserError: it is never overwritten.
    """
    try:
        count = len(indexes.load(indexes.place(goal.out)))
    except (OSError, BadContainer):
        raise UserError(
            f"{goal.out} exists, and is no complete container of rankup's; it is not overwritten: "
            "remove it, or choose another name"
        ) from None
    if not request.resume:
        raise UserError(
            f"{goal.out} exists, with {count} samples; it is not overwritten: remove it, or choose "
            "another name"
        )
    with suppress(UserError):  # of somebody else, by chance
        state.ours(work)
        state.remove(work)  # killed while it was cleared away
    if not request.as_json:
        print(f"{goal.out} is complete already, with {count} samples")


def _outside(request: Request, goal: Target) -> None:
    source = root(request)
    if source.is_dir() and goal.out.resolve().is_relative_to(source.resolve()):
        raise UserError(
            f"OUT {goal.out} lies inside of SOURCE {source}, of which it would be a part the next "
            "time; choose a place outside"
        )
