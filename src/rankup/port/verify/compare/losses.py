"""Check 1: the loss over the whole batch, and the gradient that is stepped with."""

from __future__ import annotations

from collections.abc import Sequence

from ..journals import Event, Seen
from ..verdict import Result, differs

_LOSS = 1e-4  # relative: float32 sums in another order
_GRADIENT = 2e-3
_CHECK = "losses"


def compare(original: Seen, port: Seen) -> Result:
    """Each backward's loss and each step's gradient of a port against the original's."""
    ours = original.ranks[0].of("backward")
    theirs = [journal.of("backward") for journal in port.ranks]
    for rank, events in enumerate(theirs):
        if len(events) != len(ours):
            return differs(
                _CHECK,
                port.world,
                f"rank {rank} called backward {len(events)} times, the original {len(ours)} times "
                f"over the same {len(ours)} batches"
                + (": it draws other batches" if events else ": it does not train"),
                f"{len(events)} for {len(ours)}",
            )
    worst = 0.0
    for number, mine in enumerate(ours):
        parts = [events[number] for events in theirs]
        if not isinstance(mine["loss"], float):
            continue
        found = together(parts)
        if found is None:
            return differs(_CHECK, port.world, _not_finite(number, mine, parts), "not finite")
        apart = min(_apart(mine["loss"], one) for one in found)
        if apart > _LOSS:
            return differs(
                _CHECK, port.world, _explain(number, mine, parts, found[0]), f"{apart:.1e} apart"
            )
        worst = max(worst, apart)
    return _gradients(original, port, len(ours), worst)


def together(parts: Sequence[Event]) -> list[float] | None:
    """The loss over all ranks' parts: their mean, weighed by samples or units, or their sum.

    A loss that is itself a sum belongs to no weights; whether its gradient is right is seen by the
    gradient. None: one of them is no finite number.
    """
    if not all(isinstance(one["loss"], float) for one in parts if _weight(one)):
        return None
    weights = [_weight(one) for one in parts]
    counted = [(one["loss"], weight) for one, weight in zip(parts, weights, strict=True) if weight]
    total = sum(weight for _, weight in counted)
    if not total:
        return [sum(one["loss"] for one in parts) / len(parts)]
    mean = sum(loss * weight for loss, weight in counted) / total
    return [mean, sum(loss for loss, _ in counted)]


def _weight(event: Event) -> float:
    units = event["units"]
    return float(event["samples"] if units is None else units)


def _gradients(original: Seen, port: Seen, count: int, worst: float) -> Result:
    ours = original.ranks[0].of("step")
    theirs = port.ranks[0].of("step")
    if len(ours) != len(theirs):
        text = f"rank 0 made {len(theirs)} optimizer steps, the original {len(ours)}"
        return differs(_CHECK, port.world, text, f"{len(theirs)} for {len(ours)} steps")
    sizes = [one["gradient"] for one in ours if isinstance(one["gradient"], float)]
    floor = 1e-6 * max(sizes, default=0.0)
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=True), 1):
        one, other = mine["gradient"], its["gradient"]
        if not (isinstance(one, float) and isinstance(other, float)):
            continue
        if abs(one - other) > _GRADIENT * abs(one) + floor:
            ratio = other / one if one else float("inf")
            return differs(
                _CHECK,
                port.world,
                f"optimizer step {number}: the losses are equal, but the gradient has length "
                f"{other:.6g} on rank 0 where the original's has {one:.6g} "
                f"({ratio:.3g} times): {_why(ratio, port.world)}",
                f"gradient x {ratio:.3g}",
            )
    return Result(_CHECK, port.world, "proved", f"{count} losses, {worst:.0e}")


def _why(ratio: float, world: int) -> str:
    if world > 1 and abs(ratio * world - 1) < 0.05:
        return "a loss that is a sum over samples is averaged over the ranks"
    if world > 1 and abs(ratio / world - 1) < 0.05:
        return "gradients are added up over the ranks where their mean is wanted"
    return "the ranks' gradients are not put together, or not weighed by their samples"


def _explain(number: int, mine: Event, parts: Sequence[Event], found: float) -> str:
    shown = ", ".join(f"{one['loss']:.6g} over {_weight(one):g}" for one in parts)
    text = (
        f"backward {number + 1} ({mine['where']}): the original's loss is {mine['loss']:.6g}, the "
        f"port's {found:.6g} over all ranks (each: {shown})"
    )
    if number == 0:
        return f"{text}; it is the first one, so the batches or the loss itself differ"
    return f"{text}; those before were equal, so an optimizer step or a batch differs"


def _not_finite(number: int, mine: Event, parts: Sequence[Event]) -> str:
    shown = ", ".join(str(one["loss"]) for one in parts)
    return f"backward {number + 1}: the original's loss is {mine['loss']:.6g}, the ranks' {shown}"


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(abs(one), 1e-6)
