"""Check 2: after each step all ranks have the same parameters, to the last bit."""

from __future__ import annotations

from ..journals import Seen
from ..verdict import Result, differs

_CHECK = "parameters"


def compare(port: Seen) -> Result:
    """The checksums of all ranks against rank 0's."""
    if port.world < 2:
        return Result(_CHECK, port.world, "-")
    first = port.ranks[0].of("step")
    for rank, journal in enumerate(port.ranks[1:], 1):
        steps = journal.of("step")
        if len(steps) != len(first):
            text = f"rank {rank} made {len(steps)} optimizer steps, rank 0 {len(first)}"
            return differs(_CHECK, port.world, text, f"{len(steps)} for {len(first)} steps")
        for number, (one, other) in enumerate(zip(first, steps, strict=True), 1):
            if one["parameters"] != other["parameters"]:
                return differs(
                    _CHECK,
                    port.world,
                    f"after optimizer step {number} rank {rank} has other parameters than rank 0: "
                    "the model is not wrapped, or this part of it is trained around the wrapper",
                    f"apart at step {number}",
                )
    return _averages(port, len(first))


def _averages(port: Seen, steps: int) -> Result:
    """At the end also models that no optimizer steps: averaged copies, teachers."""
    found = [_models(journal.of("models")) for journal in port.ranks]
    for rank, models in enumerate(found[1:], 1):
        names = [name for name, _ in models]
        if names == [name for name, _ in found[0]] and models != found[0]:
            pairs = zip(found[0], models, strict=True)
            name = next(one[0] for one, other in pairs if one != other)
            text = f"at the end rank {rank} has another {name} than rank 0"
            return differs(_CHECK, port.world, text, "apart at the end")
    return Result(_CHECK, port.world, "proved", f"{steps} steps")


def _models(events: list) -> list[tuple[str, int]]:  # type: ignore[type-arg]
    return [(name, value) for event in events for name, value in event["found"]]
