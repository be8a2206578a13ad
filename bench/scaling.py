"""How much of the second rank arrives: 1 → 2 ranks of one thread each, the same global batch.

Claim `scaling.2`: tokens/s of rankup on 2 ranks against DDP by hand on 2 ranks, in the same rounds,
of a model where compute dominates. Beside it both against the machine's own ceiling, two runs of
one rank at the same time that know nothing of each other, and against twice the speed of one rank;
and the same for a model where the exchange dominates. All processes stay alive and take turns;
those whose turn it is not sleep. Warm as in `overhead.py`.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _ranks import Team, claimed, write_text
from common import Effort, machine, median, paired, parse_effort, ratios, spread, table

OURS, HAND = "rankup", "by hand"
CEILING = "two separate runs at once"
ALONE = "one rank, times two"


@dataclass(frozen=True)
class Case:
    """A model and the global batch it is trained with at both world sizes."""

    name: str
    options: dict[str, Any]
    claim: str | None = None


COMPUTE = {"vocab": "byte", "seq_len": 128, "layers": 4, "dim": 128, "heads": 4}
EXCHANGE = {"vocab": "word", "seq_len": 32, "layers": 1, "dim": 128, "heads": 4}
CASES = (
    Case(
        "compute dominates",
        {**COMPUTE, "global_batch": 16, "micro_batch": 8, "warmup": 100},
        "scaling.2",
    ),
    Case("the exchange dominates", {**EXCHANGE, "global_batch": 4, "micro_batch": 2, "warmup": 9}),
)


def size(directory: Path, options: dict[str, Any]) -> str:
    """Return the model in words: parameters, bytes exchanged and operations per step."""
    from rankup.recipes.language_model import LanguageModel
    from rankup.recipes.options import TOKENS, LanguageModelOptions

    task = LanguageModel(LanguageModelOptions(**options), directory / TOKENS)
    model = task.build_model()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    tokens = options["global_batch"] * options["seq_len"]
    flops = task.flops_per_unit(model) * tokens
    return (
        f"{options['layers']} layers of width {options['dim']}, {numbers / 1e6:.2f} M parameters, "
        f"{tokens} tokens per step: {4 * numbers / 1e6:.1f} MB exchanged for {flops / 1e9:.1f} "
        "GFLOP"
    )


def measure(case: Case, effort: Effort) -> tuple[str, dict[str, list[float]]]:
    """Return the model in words, and tokens/s of each contestant, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, case.options, 100 * case.options["global_batch"])
        with (
            closing(Team(1, directory, options, [OURS])) as one,
            closing(Team(1, directory, options, [OURS])) as other,
            closing(Team(2, directory, options, [OURS, HAND])) as two,
        ):
            tokens = options["global_batch"] * options["seq_len"]

            def at_once(steps: int) -> float:
                one.start(OURS, steps)
                other.start(OURS, steps)
                return tokens / one.finish().seconds + tokens / other.finish().seconds

            turns = {
                OURS: lambda steps: tokens / two.slice(OURS, steps).seconds,
                HAND: lambda steps: tokens / two.slice(HAND, steps).seconds,
                CEILING: at_once,
                ALONE: lambda steps: 2 * tokens / one.slice(OURS, steps).seconds,
            }
            for turn in turns.values():  # builds everything
                turn(3)
            steps = max(4, round(2 * effort.slice_seconds * turns[OURS](3) / tokens))
            rates: dict[str, list[float]] = {name: [] for name in turns}
            for number in range(effort.rounds):
                for contestant in random.Random(number).sample(list(turns), len(turns)):
                    rates[contestant].append(turns[contestant](steps))
            return size(directory, options), rates


def claim_of(case: Case, what: str, rates: dict[str, list[float]]) -> str:
    """Print a case; return its claim line, empty where it makes none."""
    print(f"{case.name}: {what}")
    rows = []
    for name, values in rates.items():
        shares = [f"{median(ratios(values, rates[peer])):.3f}" for peer in (HAND, CEILING, ALONE)]
        quartiles = spread(ratios(values, rates[HAND]))
        rows.append([name, f"{median(values):,.0f}", *shares, quartiles])
    table(["", "tokens/s", "to DDP by hand", "to the ceiling", "of ideal", "quartiles"], rows)
    if case.claim is None:
        return ""
    ours, hand, ceiling = rates[OURS], rates[HAND], rates[CEILING]
    note = (
        f"{what}; 2 ranks each; against two separate runs of one rank at once: rankup "
        f"{paired(ours, ceiling)}, DDP by hand {paired(hand, ceiling)}; of twice one rank: rankup "
        f"{paired(ours, rates[ALONE])}, DDP by hand {paired(hand, rates[ALONE])}, two separate "
        f"runs {paired(ceiling, rates[ALONE])}"
    )
    seconds = {name: [1 / rate for rate in rates[name]] for name in (OURS, HAND)}
    return claimed(case.claim, seconds, OURS, HAND, note, unit="tokens/s")


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(machine("torch") + "\n", flush=True)
    cases = [case for case in CASES if case.claim or not effort.quick]
    lines = [claim_of(case, *measure(case, effort)) for case in cases]
    print("\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
