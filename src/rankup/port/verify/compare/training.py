"""Checks 1 and 2: losses and gradients as the original's, the same parameters on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol import Event, Journal, Seen
from ..verdict import Result, differs

_LOSS = 1e-4  # relative: float32 sums in another order
_GRADIENT = 2e-3


def losses(original: Seen, port: Seen) -> Result:
    """Compare each backward's loss and each step's gradient with the original's."""
    ours = original.ranks[0].of("backward")
    theirs = [journal.of("backward") for journal in port.ranks]
    for rank, events in enumerate(theirs):
        if len(events) != len(ours):
            return differs(
                f"{len(events)} for {len(ours)}",
                f"rank {rank} called backward {len(events)} times, the original {len(ours)} times "
                f"over the same {len(ours)} batches"
                + (": it draws other batches" if events else ": it does not train"),
            )
    worst = 0.0
    for number, mine in enumerate(ours):
        parts = [events[number] for events in theirs]
        if not isinstance(mine["loss"], float):
            continue
        found = over_all(parts)
        if found is None:
            return differs("not finite", _not_finite(number, mine, parts))
        apart = min(_apart(mine["loss"], one) for one in found)
        if apart > _LOSS:
            text = _explain(number, mine, parts, found[0])
            return differs(f"{apart:.1e} apart", text)
        worst = max(worst, apart)
    return _gradients(original, port, len(ours), worst)


def same_number(port: Seen) -> Result:
    """Compare how often the ranks of a free run call backward, whatever they draw at random."""
    counts = [len(journal.of("backward")) for journal in port.ranks]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            text = (
                f"with random numbers of its own rank {rank} called backward {count} times, rank 0 "
                f"{counts[0]} times: something that a rank computes or draws by itself decides"
            )
            return differs(f"{count} for {counts[0]}", text)
    return Result("proved", f"{counts[0]} losses")


def over_all(parts: Sequence[Event]) -> list[float] | None:
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
        return differs(f"{len(theirs)} for {len(ours)} steps", text)
    sizes = [one["gradient"] for one in ours if isinstance(one["gradient"], float)]
    floor = 1e-6 * max(sizes, default=0.0)
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=True), 1):
        one, other = mine["gradient"], its["gradient"]
        if not (isinstance(one, float) and isinstance(other, float)):
            continue
        if abs(one - other) > _GRADIENT * abs(one) + floor:
            ratio = other / one if one else float("inf")
            return differs(
                f"gradient x {ratio:.3g}",
                f"optimizer step {number}: the losses are equal, but the gradient has length "
                f"{other:.6g} on rank 0 where the original's has {one:.6g} "
                f"({ratio:.3g} times): {_why(ratio, port.world)}",
            )
    return Result("proved", f"{count} losses, {worst:.0e}")


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


def parameters(port: Seen) -> Result:
    """The parameters of all ranks against rank 0's: initial ones, after each step, at the end."""
    if port.world < 2:
        return Result("-")
    first, *others = port.ranks
    wrong = []
    for rank, journal in enumerate(others, 1):
        texts = [_initial(rank, journal, first), _steps(rank, journal, first)]
        wrong += [text for text in texts if text]
    if not wrong:
        wrong = [text for rank, one in enumerate(others, 1) if (text := _at_end(rank, one, first))]
    if wrong:
        return differs("apart", *wrong)
    return Result("proved", f"{len(first.of('step'))} steps")


def _initial(rank: int, journal: Journal, first: Journal) -> str:
    """Compare the values that a rank had before verify gave all ranks the original's."""
    ours = {one["optimizer"]: one["sums"] for one in first.of("initial")}
    for event in journal.of("initial"):
        sums = ours.get(event["optimizer"]) or event["sums"]
        if sums != event["sums"]:
            pairs = zip(sums, event["sums"], strict=False)
            other = sum(one != its for one, its in pairs)
            return (
                f"before the first step {other} of {len(sums)} parameters of optimizer "
                f"{event['optimizer']} have other values on rank {rank} than on rank 0: the model "
                "is not wrapped, or was given random values behind the wrap"
            )
    return ""


def _steps(rank: int, journal: Journal, first: Journal) -> str:
    ours, theirs = first.of("step"), journal.of("step")
    if len(ours) != len(theirs):
        return f"rank {rank} made {len(theirs)} optimizer steps, rank 0 {len(ours)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one["parameters"] != other["parameters"]:
            return (
                f"after optimizer step {number} rank {rank} has other parameters than rank 0: "
                "the model is not wrapped, or this part of it is trained around the wrapper"
            )
    return ""


def _at_end(rank: int, journal: Journal, first: Journal) -> str:
    """Compare all models, also those that no optimizer steps, and their buffers."""
    ours, theirs = _models(first), _models(journal)
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return ""
    for one, other in zip(ours, theirs, strict=True):
        if one != other:
            return f"at the end rank {rank} has other parameters or buffers of {one[0]} than rank 0"
    return ""


def _models(journal: Journal) -> list[tuple[str, int]]:
    return [(name, value) for event in journal.of("models") for name, value in event["found"]]
