"""Which rank holds which stage, and how many chunks a schedule can run."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining.schedules import get_schedule_class

from ..choices import V_SHAPED, VIRTUAL, stages_per_rank, torch_name


def schedule_class(name: str) -> Any:
    """torch's class for a schedule's name; UserError for an unknown one."""
    return get_schedule_class(torch_name(name))


def placement(name: str, pp: int, virtual: int = VIRTUAL) -> tuple[int, ...]:
    """For each stage of the model, in order, the place on the pp axis of the rank that holds it.

    Interleaved schedules deal the stages in rounds, as cards; V-shaped ones turn at each end.
    """
    rounds = stages_per_rank(name, virtual)
    there = list(range(pp))
    if torch_name(name) in V_SHAPED:
        return tuple(there + there[::-1])
    return tuple(there * rounds)


def padded(name: str, chunks: int, pp: int) -> int:
    """The next number of chunks that the schedule can run, `chunks` or a little more."""
    known = torch_name(name)
    if known == "DualPipeV":
        return max(chunks, 2 * pp)
    if known in ("Interleaved1F1B", "InterleavedZeroBubble"):
        while chunks % max(1, chunks // pp):
            chunks += 1
    return chunks
