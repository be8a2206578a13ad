"""The way of a pack, as the process that leads it goes it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...base.amounts import size
from ...base.errors import UserError
from .. import indexes
from ..errors import BadContainer
from ..index import Index
from . import checks, finish, report, steps
from . import notes as saying
from . import summary as summaries
from . import work as state
from .layout import LAYOUTS, Layout, plan
from .progress import duration
from .request import Request, Target
from .slurm import Others, Team
from .source import files_before, root, scanned
from .space import missing_space, within_limit
from .steps import Pack
from .trees import allocated
from .work import Work
from .workers import Lost, Watch, signals

Quota = Callable[[Path], list[str]]


def lead(
    request: Request, goal: Target, of: Team | None, locked: Watch, quota: Quota
) -> dict[str, Any]:
    """Make the container, and give its report; where it was there already, the one it has.

    Args:
        locked: raises once the lock of OUT is lost.

    Raises:
        UserError: it cannot be made as asked.
        Interrupted, Lost, SourceProblems: it was interrupted; what is done is kept.
        OSError: it could not be read or written.
    """
    started = time.monotonic()
    work = Work(goal.part)
    before, whole = _there(request, goal, work)
    if whole is not None:
        if before is not None or work.part.is_dir():
            state.remove(work)  # killed while it was cleared away
        if not request.as_json:
            print(f"{goal.out} is complete already, with {whole['samples']} samples")
        return whole
    source = None
    finished = before is not None and finish.saved(work, goal)
    if before is not None and not finished:
        source = state.load_source(work)
    fresh = source is None and not finished
    if fresh:
        source = scanned(request)
    with signals() as came:
        others = Others(of) if of is not None else None

        def watch() -> None:
            came()
            locked()
            if others is not None:
                others.check()

        pack = Pack(request, goal, of, watch, quota)
        copied = _made(pack, source, fresh, started) if source is not None else 0
        finish.publish(work, goal)
    done = _report_of(goal)
    if done is None:
        raise Lost(f"{goal.report} cannot be read; {goal.out} itself is complete")
    state.remove(work)
    _told(pack, done, copied, time.monotonic() - started)
    return done


def preview(request: Request, goal: Target, quota: Quota) -> None:
    """Print what a pack would do.

    Raises:
        UserError: it would be refused.
    """
    work = Work(goal.part)
    _, whole = _there(request, goal, work)
    if whole is not None:
        print(json.dumps(whole, indent=2) if request.as_json else f"{goal.out} is complete already")
        return
    source = scanned(request)
    told, layout = _summary(request, goal, source)
    within_limit(goal.out, int(layout.sizes.max()) if layout is not None else told.bytes)
    lines = quota(goal.out.parent)
    if request.as_json:
        print(json.dumps({**_values(request, told), "quota": lines}, indent=2))
    else:
        print("\n".join(summaries.lines(told, lines)))
    summaries.fits(told, allocated(goal.part))


def follow(request: Request, goal: Target, of: Team) -> None:
    """A task other than the first: copy its units once there is something to copy to."""
    with signals() as came:
        others = Others(of)

        def watch() -> None:
            came()
            others.check()

        steps.follow(request, goal, of, watch)


def _made(pack: Pack, source: Index, fresh: bool, started: float) -> int:
    """Everything but the last names; bytes of the source that were read for it."""
    request, goal, work = pack.request, pack.goal, pack.work
    base = root(request)
    notes: list[dict[str, Any]] = []
    if fresh and request.bad != "keep":
        source, notes = steps.without_damaged(pack, source)
    original = source
    told, layout = _summary(request, goal, source)
    within_limit(goal.out, int(layout.sizes.max()) if layout is not None else told.bytes)
    for line in summaries.lines(told, pack.quota(goal.out.parent)):
        pack.say(line)
    summaries.fits(told, allocated(work.data))
    with missing_space(work, lambda: told.bytes or summaries.index_bytes(original)):
        if fresh:
            state.make(work, state.asked(request, goal))
            saying.write(work.noted, notes)
            indexes.save(source, work.source)
        copied = None
        if request.resize is not None:
            source, copied = _resized(pack, source)
            base = work.part
        if pack.streamed:
            index, read = steps.streamed(pack, source, base, files_before(original))
        else:
            layout = layout or plan(goal.container, source, steps.shape(request))
            index, read = steps.filled(pack, source, base, layout, files_before(original))
        pack.watch()
        done = _report(pack, original, index, told, time.monotonic() - started)
        finish.save(work, goal, index, done, fsync=request.fsync)
    return read if copied is None else copied


def _summary(
    request: Request, goal: Target, source: Index
) -> tuple[summaries.Summary, Layout | None]:
    """What is to be said before the pack, and the layout where it is known then."""
    known = goal.container in LAYOUTS and request.resize is None
    layout = plan(goal.container, source, steps.shape(request)) if known else None
    told = summaries.summary(request.source, source, layout, goal)
    if layout is None and request.resize is None:  # nothing of a SquashFS is compressed
        told = replace(told, bytes=told.source_bytes + summaries.index_bytes(source))
    return told, layout


def _values(request: Request, told: summaries.Summary) -> dict[str, Any]:
    """A summary as JSON values, named as in the report."""
    values = asdict(told)
    for name in ("source", "target", "samples", "source_bytes"):
        del values[name]
    return {
        "out": str(told.target.out),
        "container": told.target.container,
        "asked": state.asked(request, told.target),
        "splits": [{"name": name, "samples": count} for name, count in told.samples],
        "samples": sum(count for _, count in told.samples),
        "sample_bytes": told.source_bytes,
        **values,
    }


def _resized(pack: Pack, source: Index) -> tuple[Index, int]:
    try:
        return steps.spooled(pack, source)
    except UserError:
        # Of what was done nothing can be used: the source is to be mended, or asked for otherwise.
        if pack.request.bad == "fail":
            state.remove(pack.work)
        raise


def _report(
    pack: Pack, source: Index, index: Index, told: summaries.Summary, seconds: float
) -> dict[str, Any]:
    notes = list(saying.read(pack.work))
    problems = [one for one in notes if "sample" in one]
    problems += checks.listed(source, [one for one in notes if "row" in one])
    left_out = [one["left_out"] for one in notes if "left_out" in one]
    return report.report(
        told,
        index,
        problems,
        left_out,
        asked=state.asked(pack.request, pack.goal),
        seconds=seconds,
        tasks=pack.of.tasks if pack.of else 1,
        workers=pack.workers,
    )


def _told(pack: Pack, done: dict[str, Any], copied: int, seconds: float) -> None:
    speed = f", {size(copied)} read at {size(copied / seconds)}/s" if copied and seconds else ""
    pack.say(f"done: {pack.goal.out}, {size(done['bytes'])} in {duration(seconds)}{speed}")
    for line in report.lines(done, pack.goal.report):
        pack.say(line)


def _there(
    request: Request, goal: Target, work: Work
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What earlier packs have left: what a half-done one was asked, the report of a whole OUT.

    Raises:
        UserError: this pack is refused; nothing is ever overwritten.
    """
    asked = state.asked(request, goal)
    before = state.ours(work)
    finished = before is not None and finish.saved(work, goal)
    if os.path.lexists(goal.out) and not finished:
        return before, _whole(request, goal, work, asked)
    if before is not None and not request.resume:
        raise UserError(
            f"{goal.part} is what an interrupted pack has left: add --resume to go on with it, or "
            "remove it to begin anew"
        )
    if before is not None:
        state.same(before, asked, goal.part)
    if not finished:
        finish.free(goal)
        _outside(request, goal)
    return before, None


def _whole(request: Request, goal: Target, work: Work, asked: dict[str, Any]) -> dict[str, Any]:
    """The report of OUT, which is there. With --resume and as it is asked for nothing is to do.

    Raises:
        UserError: it is something else, or not to be gone on with.
    """
    try:
        count = len(indexes.load(goal.index))
    except (OSError, BadContainer):
        raise UserError(
            f"{goal.out} exists, and is no complete container of rankup's; it is not overwritten: "
            "remove it, or choose another name"
        ) from None
    found = f"{goal.out} exists, with {count} samples"
    other = "it is not overwritten: remove it, or choose another name"
    if not request.resume:
        raise UserError(f"{found}; {other}")
    kept = _report_of(goal)
    if kept is None:
        raise UserError(f"{found}, and {goal.report}, which says of what, cannot be read; {other}")
    differs = state.differences(kept["asked"], asked)
    if differs:
        raise UserError(f"{found}, and was made otherwise: {differs}; {other}")
    if work.part.is_dir() and not state.over(work):
        raise UserError(
            f"{found}, and {work.part} is what another pack has left, which was interrupted: move "
            "one of them away, or remove it"
        )
    return kept


def _report_of(goal: Target) -> dict[str, Any] | None:
    """The report that lies with a container; None where it cannot be read."""
    try:
        found = json.loads(goal.report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(found, dict) and isinstance(found.get("asked"), dict) and "samples" in found:
        return found
    return None


def _outside(request: Request, goal: Target) -> None:
    source = root(request)
    if source.is_dir() and goal.out.resolve().is_relative_to(source.resolve()):
        raise UserError(
            f"OUT {goal.out} lies inside of SOURCE {source}, of which it would be a part the next "
            "time; choose a place outside"
        )
