"""How long the ranks of a pipeline wait: by the clock, against the formulas.

Claim `pipeline.bubble`: 1 - the bubble, measured to computed, of the schedule that is worst off;
four ranks whose stages sleep 20 ms forward and 20 ms back, so that two cores are enough. Of the
steps the least disturbed one counts: whatever else wakes up delays a hand-over, and with it all.
Gaps below 10 ms are the time to hand a chunk over, not the schedule's. It runs in the environment
it is started from: the peer is a formula.
"""

from __future__ import annotations

from _pipeline_rank import SLEEP
from _strategies_team import run_ranks
from common import arguments, claim, machine, table
from rankup.parallel.pipeline.timeline import Span, bubble, idle

RANKS = 4
CASES = [
    (schedule, chunks) for schedule in ("gpipe", "1f1b", "interleaved") for chunks in (4, 8, 16)
]


def measured(schedule: str, chunks: int, steps: int) -> float:
    """The bubble of the step that was disturbed least, as a share of all ranks' time."""
    spec = {"schedule": schedule, "chunks": chunks, "steps": steps + 1}
    lines = run_ranks("_pipeline_rank.py", RANKS, spec)[1:]  # the first one looks for shapes
    return min(idle([Span(**span) for span in line], SLEEP / 2) for line in lines)


def main() -> None:
    effort = arguments(__doc__ or "")
    print(f"{machine(())}\n", flush=True)
    rows, found = [], []
    for schedule, chunks in CASES:
        theory, clock = (
            bubble(schedule, RANKS, chunks),
            measured(schedule, chunks, 2 * effort.rounds),
        )
        rows.append(
            [schedule, str(chunks), f"{theory:.3f}", f"{clock:.3f}", f"{clock / theory:.2f}"]
        )
        found.append(((1 - clock) / (1 - theory), 1 - clock, 1 - theory, f"{schedule}, {chunks}"))
    table(["schedule", "chunks", "bubble by formula", "by the clock", "ratio"], rows)
    _, ours, peer, name = min(found)
    print(claim("pipeline.bubble", ours, peer, "share of the time in which ranks compute", name))


if __name__ == "__main__":
    main()
