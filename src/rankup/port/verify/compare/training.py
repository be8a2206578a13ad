"""Checks 1 and 2: losses and gradients as the original's, the same parameters on all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..protocol import Event, Journal, Seen
from ..verdict import Result, differs

_LOSS = 1e-4  # relative: float32 sums in another order
_GRADIENT = 2e-3
_OPTION = 1e-6
_ROUNDS = 1.5  # times: one more or less is a matter of rounding
_MOVED = 0.1  # of the way: Adam makes steps of the noise in a gradient that is zero


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
    if text := _options(original.ranks[0], port.ranks[0]):
        return differs("other options", text)
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
    text = _rounds(original.ranks[0], port.ranks[0]) or _moved(original.ranks[0], port.ranks[0])
    wrong = differs("otherwise later", text) if text else None
    return _gradients(original, port) or wrong or Result("same", f"{len(ours)} losses, {worst:.0e}")


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
    return Result("same", f"{counts[0]} losses")


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


def _gradients(original: Seen, port: Seen) -> Result | None:
    """Compare the gradients of optimizer steps, and those that are clipped before them."""
    ours, theirs = original.ranks[0].of("step", "clip"), port.ranks[0].of("step", "clip")
    if [one["event"] for one in ours] != [one["event"] for one in theirs]:
        ours, theirs = original.ranks[0].of("step"), port.ranks[0].of("step")
    if len(ours) != len(theirs):
        text = f"rank 0 made {len(theirs)} optimizer steps, the original {len(ours)}"
        return differs(f"{len(theirs)} for {len(ours)} steps", text)
    sizes = [one["gradient"] for one in ours if isinstance(one["gradient"], float)]
    floor = 1e-6 * max(sizes, default=0.0)
    step = 1
    for mine, its in zip(ours, theirs, strict=True):
        one, other = mine["gradient"], its["gradient"]
        comparable = isinstance(one, float) and isinstance(other, float)
        if comparable and abs(one - other) > _GRADIENT * abs(one) + floor:
            ratio = other / one if one else float("inf")
            clipped = " before it is clipped" if mine["event"] == "clip" else ""
            return differs(
                f"gradient x {ratio:.3g}",
                f"optimizer step {step}: the losses are equal, but the gradient has length "
                f"{other:.6g}{clipped} on rank 0 where the original's has {one:.6g} "
                f"({ratio:.3g} times): {_why(ratio, port.world)}",
            )
        step += mine["event"] == "step"
    return None


def _options(original: Journal, port: Journal) -> str:
    """Compare the learning rates: a schedule of another length may show in no loss so early."""
    pairs = zip(original.of("step"), port.of("step"), strict=False)
    for number, (mine, its) in enumerate(pairs, 1):
        for (name, one), (other, value) in zip(mine["options"], its["options"], strict=False):
            if name == other and abs(one - value) > _OPTION * abs(one):
                return (
                    f"optimizer step {number}: {name} is {value:.6g} where the original's is "
                    f"{one:.6g}: it is scaled, or its schedule has another length or other steps"
                )
    return ""


def _rounds(original: Journal, port: Journal) -> str:
    """Compare the lengths of loops that were cut: what a port leaves out there is not seen here."""
    pairs = zip(original.of("rounds"), port.of("rounds"), strict=False)
    for mine, its in pairs:
        if max(mine["number"], its["number"]) >= _ROUNDS * min(mine["number"], its["number"]):
            return (
                f"the loop at {mine['where']}, which verify cuts short, has {mine['number']} "
                f"rounds, that of the port at {its['where']} {its['number']}: with all ranks on "
                "one batch as many are needed as on one GPU"
            )
    return ""


def _moved(original: Journal, port: Journal) -> str:
    """Compare what training has made of models, those without an optimizer included."""
    for mine in original.of("moved"):
        size = math.dist(mine["last"], mine["first"])
        far = [
            math.dist(one["last"], mine["last"])
            for one in port.of("moved")
            if one["shapes"] == mine["shapes"]
            and math.dist(one["first"], mine["first"]) <= _LOSS * math.hypot(*mine["first"])
        ]
        most = _MOVED * size + _LOSS * math.hypot(*mine["last"])
        if far and math.isfinite(most) and not min(far) <= most:
            return (
                f"at the end the parameters of {mine['model']} are not the original's, by "
                f"{min(far) / size if size else math.inf:.0%} of what its training has changed: an "
                "average, a copy or a last step is computed otherwise"
            )
    return ""


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
        texts.append(_decided(rank, journal, first))
        wrong += [text for text in texts if text]
    if not wrong:
        wrong = [text for rank, one in enumerate(others, 1) if (text := _at_end(rank, one, first))]
    if wrong:
        return differs("apart", *wrong)
    return Result("same", f"{len(first.of('step'))} steps")


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


def _decided(rank: int, journal: Journal, first: Journal) -> str:
    """Compare the numbers by which the learning rate is lowered later."""
    for one, other in zip(first.of("plateau"), journal.of("plateau"), strict=False):
        if _apart(one["value"], other["value"]) > _LOSS:
            return (
                f"ReduceLROnPlateau ({other['where']}) is given {other['value']:.6g} on rank "
                f"{rank} and {one['value']:.6g} on rank 0: their learning rates part in time"
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
