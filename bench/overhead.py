"""Steps per second of rankup's training loop against the same loop written by hand.

Claims `overhead.1` and `overhead.2`: at 1 and at 2 ranks of one thread each. The peer of a claim is
the quicker of the two loops by hand; accelerate, Fabric and the Lightning Trainer are shown beside.
What the loops do alike is said in `_loops.py`. Warm: processes, text, optimizer state, and two
steps before each slice; validation, checkpoints and start-up lie outside the counted steps.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    Effort,
    Team,
    arguments,
    claim,
    enter_environment,
    machine,
    median,
    spread,
    table,
    write_text,
)

HAND = ("by hand", "by hand, overlapped")
MODEL = {"vocab": "byte", "seq_len": 64, "layers": 2, "dim": 64, "heads": 4, "micro_batch": 8}


@dataclass(frozen=True)
class Case:
    """A row group of the table: `micro_batches` per rank and step, of `model`."""

    world_size: int
    micro_batches: int
    model: dict[str, Any]
    claim: str | None = None

    @property
    def contestants(self) -> list[str]:
        # On one rank there is nothing to overlap.
        hand = HAND if self.world_size > 1 else HAND[:1]
        return ["rankup", *hand, "accelerate", "Fabric", "Lightning Trainer"]

    @property
    def options(self) -> dict[str, Any]:
        global_batch = self.model["micro_batch"] * self.micro_batches * self.world_size
        return {**self.model, "global_batch": global_batch, "warmup": 100, "dropout": 0.1}


CASES = (
    Case(1, 4, MODEL, "overhead.1"),
    Case(2, 4, MODEL, "overhead.2"),
    Case(1, 1, {**MODEL, "micro_batch": 16}),
    Case(2, 1, {**MODEL, "micro_batch": 16}),
)


def measure(case: Case, effort: Effort) -> dict[str, list[float]]:
    """Seconds per step of each contestant, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, case.options, 160 * case.options["global_batch"])
        with closing(Team(case.world_size, directory, options, case.contestants)) as ranks:
            for contestant in case.contestants:  # builds everything
                ranks.slice(contestant, 20)
            step = ranks.slice("rankup", 20)
            steps = max(20, round(effort.slice_seconds / step))
            seconds: dict[str, list[float]] = {contestant: [] for contestant in case.contestants}
            for number in range(effort.rounds):
                turns = random.Random(number).sample(case.contestants, len(case.contestants))
                for contestant in turns:
                    seconds[contestant].append(ranks.slice(contestant, steps))
    return seconds


def show(case: Case, seconds: dict[str, list[float]]) -> str:
    """Print a case; its claim line, empty where it makes none."""
    peer = min((name for name in seconds if name in HAND), key=lambda name: median(seconds[name]))

    def ratios(name: str) -> list[float]:
        pairs = zip(seconds[name], seconds[peer], strict=True)
        return [theirs / own for own, theirs in pairs]

    noun = "micro-batch" if case.micro_batches == 1 else "micro-batches"
    step = f"{median(seconds[peer]) * 1e3:.1f} ms"
    model = case.model
    what = (
        f"{case.world_size} rank{'s' * (case.world_size > 1)}, {case.micro_batches} {noun} of "
        f"{model['micro_batch']} x {model['seq_len']} bytes per rank, {model['layers']} layers of "
        f"width {model['dim']}: steps of {step}"
    )
    print(what)
    rows = [
        [
            name,
            f"{1 / median(values):.1f}",
            f"{median(ratios(name)):.3f}",
            spread(ratios(name)),
        ]
        for name, values in seconds.items()
    ]
    table(["", "steps/s", f"to {peer}", "quartiles"], rows)
    if case.claim is None:
        return ""
    rates = {name: 1 / median(values) for name, values in seconds.items()}
    others = ", ".join(
        f"{name} {median(ratios(name)):.2f}" for name in seconds if name not in ("rankup", peer)
    )
    note = (
        f"{what}; peer {peer}; median of {len(seconds[peer])} interleaved slices; paired ratio "
        f"{median(ratios('rankup')):.3f} ({spread(ratios('rankup'))}); to the same peer: {others}"
    )
    return claim(case.claim, rates["rankup"], rates[peer], "steps/s", note)


def main() -> None:
    effort = arguments(__doc__ or "")
    enter_environment()
    print(machine() + "\n", flush=True)
    cases = [case for case in CASES if case.claim or not effort.quick]
    lines = [show(case, measure(case, effort)) for case in cases]
    print("\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
