"""Where a copy goes: the first place that it fits into."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...base.amounts import size
from ...base.errors import UserError
from .. import spans
from . import keeping, place, room
from .copying import Fill
from .memory import Reserve
from .plan import Plan
from .room import Room
from .users import Alive, Job
from .waiting import Say


@dataclass(frozen=True)
class Options:
    """What the options are called, in which a refusal says what else there is to do."""

    to: str
    fraction: str
    reserve: str


OWN = Options("--to", "--fraction", "--reserve")
OF_RUN = Options("--stage-to", "--stage-fraction", "--stage-reserve")


@dataclass(frozen=True)
class Ask:
    """What `stage` was asked for."""

    source: Path
    to: Path | None
    fraction: float
    reserve: Reserve
    job: Job
    alive: Alive
    say: Say
    fill: Fill
    quiet: bool
    options: Options


def base(entry: Path, ask: Ask, plan: Plan) -> Path:
    """The first place that a copy fits into; leftovers of dead jobs make room for it.

    Raises:
        UserError: there is none.
    """
    bases, notes = _bases(entry, ask)
    for again in (False, True):
        rooms = [room.room(one, os.environ, ask.reserve) for one in bases]
        for one in rooms:
            if one.fits >= plan.needed:
                if one.base != bases[0]:
                    _say_other(rooms[0], one, ask, plan)
                return one.base
        if again:
            break
        done = keeping.clean(ask.alive, ask.to, ask.say)
        if not done:
            break
        for line in done:
            ask.say(f"to make room: {line}")
    raise UserError(refusal(ask, plan, rooms, notes))


def refusal(ask: Ask, plan: Plan, rooms: Sequence[Room], notes: Sequence[str] = ()) -> str:
    """What to say where a copy fits into none of these.

    Args:
        rooms: of the places that were tried.
        notes: why others were not.
    """
    part = f" ({plan.size / plan.total:.0%} of it)" if plan.size < plan.total else ""
    node = os.uname().nodename
    lines = [f"{plan.source} needs {size(plan.needed)}{part} on node {node}, and does not fit:"]
    for one in rooms:
        lines.append(f"  {one.base} has room for {size(one.fits)}")
        lines += [f"    {line}" for line in room.numbers(one)]
    lines += [f"  {note}" for note in notes]
    best = max((one.fits for one in rooms), default=0) - (plan.needed - plan.size)
    part_that_fits = int(100 * best / plan.total) / 100 if plan.total else 0.0
    options, advice = ask.options, []
    if part_that_fits >= 0.01:
        advice.append(
            f"stage a part of it ({options.fraction} {part_that_fits:.2f}; the rest is read from "
            f"the source)"
        )
    advice.append(f"name a disk of this node ({options.to} DIR)")
    if any(one.in_memory for one in rooms):
        advice.append(f"keep less for the job's processes ({options.reserve} SIZE)")
    advice.append("pack it smaller (rankup pack --resize), or do not stage it")
    return "\n".join(lines) + "\n" + "; or ".join(advice)


def _bases(entry: Path, ask: Ask) -> tuple[list[Path], list[str]]:
    """The places that come into question, and why others do not."""
    if ask.to is not None:
        place.ours(ask.to)
        return [ask.to], []
    home = entry.parent.parent
    temporary = os.environ.get("TMPDIR")
    if os.environ.get(place.VARIABLE) or not temporary or Path(temporary) == home:
        return [home], []
    other = Path(temporary)
    if not other.is_dir():
        return [home], [f"$TMPDIR is {other}, which is no folder"]
    kind = spans.network(other)
    if kind:
        return [home], [f"$TMPDIR ({other}) is on a network file system ({kind}): not used"]
    return [home, other], []


def _say_other(first: Room, chosen: Room, ask: Ask, plan: Plan) -> None:
    ask.say(
        f"{ask.source} needs {size(plan.needed)}, and {first.base} has room for "
        f"{size(first.fits)}: it is copied to {chosen.base}"
    )
