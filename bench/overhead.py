"""Steps per second of rankup's training loop against the same loop written by hand.

Claims `overhead.1` and `overhead.2`: at 1 and at 2 ranks of one thread each. accelerate is shown
beside. `_loops.py` says what the loops have in common, `_ranks.py` how a slice is timed. Processes,
text and optimizer state are warm; validation, checkpoints and start-up lie outside the counted
steps.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ranks import Team, claimed, interleave, show_rates, write_text
from common import Effort, enter_environment, machine, median, paired, parse_effort

CONTESTANTS = ("rankup", "by hand", "accelerate")
MODEL = {"vocab": "byte", "seq_len": 64, "layers": 2, "dim": 64, "heads": 4, "micro_batch": 8}


@dataclass(frozen=True)
class Case:
    """A row group of the table: `micro_batches` per rank and step of `MODEL`.

    Attributes:
        claim: its name; None where the case is only shown.
    """

    world_size: int
    micro_batches: int
    claim: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        global_batch = 8 * self.micro_batches * self.world_size
        return {**MODEL, "global_batch": global_batch, "warmup": 100, "dropout": 0.1}

    def __str__(self) -> str:
        return (
            f"{self.world_size} rank{'s' * (self.world_size > 1)}, {self.micro_batches} "
            f"micro-batch{'es' * (self.micro_batches > 1)} of 8 x 64 bytes per rank, 2 layers of "
            "width 64"
        )


CASES = (Case(1, 4, "overhead.1"), Case(2, 4, "overhead.2"), Case(1, 1), Case(2, 1))


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Return the seconds per step of each contestant, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, case.options, 160 * case.options["global_batch"])
        with closing(Team(case.world_size, directory, options, CONTESTANTS)) as team:
            found = interleave(dict.fromkeys(CONTESTANTS, team), effort, least=20)
    return {name: [one.seconds for one in slices] for name, slices in found.items()}


def claim_of(case: Case, seconds: dict[str, list[float]]) -> str:
    """Print a case; return its claim line, empty where it makes none."""
    hand = seconds["by hand"]
    what = f"{case}: steps of {median(hand) * 1e3:.1f} ms"
    show_rates(seconds, "by hand", what)
    if case.claim is None:
        return ""
    note = f"{what}; accelerate {paired(hand, seconds['accelerate'])}"
    return claimed(case.claim, seconds, "rankup", "by hand", note)


def main() -> None:
    effort = parse_effort(__doc__ or "")
    enter_environment()
    print(machine("torch", "accelerate") + "\n", flush=True)
    cases = [case for case in CASES if case.claim or not effort.quick]
    lines = [claim_of(case, measure(case, effort)) for case in cases]
    print("\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
