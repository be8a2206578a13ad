"""The schedules' names, and how many stages each has on a rank. No torch here: a wrong name is
said before a job waits for its ranks."""

from __future__ import annotations

from ...base.errors import UserError, nearest

# Our words for torch's schedules.
OURS = {
    "naive": "GPipe",  # with one chunk at a time
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
}
SEVERAL = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
# Stages go down the ranks and up again, so that one rank holds the first and the last.
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
VIRTUAL = 2  # stages per rank, where a schedule takes several


def torch_name(name: str) -> str:
    """torch's name of a schedule, given that or ours.

    Raises:
        UserError: it is neither; names the nearest.
    """
    theirs = {known.lower(): known for known in ("GPipe", "1F1B", *SEVERAL)}
    found = OURS.get(name.lower()) or theirs.get(name.lower())
    if found is None:
        hint = nearest(name, {*OURS, *SEVERAL})
        raise UserError(f"unknown pipeline schedule {name!r}; {hint}")
    return found


def stages_per_rank(name: str, virtual: int = VIRTUAL) -> int:
    """Stages that one rank holds: `virtual` where the schedule takes several, else one."""
    known = torch_name(name)
    if known not in SEVERAL:
        return 1
    if known in V_SHAPED:
        return 2
    if virtual < 1:
        raise UserError(f"{virtual} pipeline stages per rank were asked for; give 1 or more")
    return virtual
