"""Check 7: rank 1 is killed in the middle, and rank 0 does not go on as if nothing were."""

from __future__ import annotations

from ..journals import Seen
from ..verdict import Result, differs

_CHECK = "killed"


def compare(run: Seen | None) -> Result:
    """How the run ended in which rank 1 was killed."""
    if run is None:
        return Result(_CHECK, 2, "not seen", "failed")
    if not run.ranks[1].of("killed"):
        return Result(_CHECK, 2, "not seen", "ended before")
    rest = run.outcome.ranks[0]
    if rest.finished or rest.code == 0:
        return differs(
            _CHECK,
            2,
            "rank 1 was killed after an optimizer step, and rank 0 trained on to its end, alone, "
            "and ended with code 0: nothing in its training waits for the other",
            "rank 0 goes on",
        )
    if rest.code is None or run.outcome.why == "time":
        return differs(
            _CHECK,
            2,
            f"rank 1 was killed, and rank 0 still ran after {run.outcome.patience:.0f} s, also "
            "after SIGTERM: it catches what should end it",
            "rank 0 hangs",
        )
    return Result(_CHECK, 2, "proved", f"in {run.outcome.patience:.1f} s")
