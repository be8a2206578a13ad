"""How much of the second rank arrives: 1 -> 2 ranks of one thread each, the same global batch.

Claim `scaling.2`: tokens/s of 2 ranks over twice the tokens/s of one, of a model where compute
dominates; the peer is the ideal, 1.0. Beside it a model where the exchange dominates, hand-written
DDP in both, and the machine's own ceiling: two runs of one rank that know nothing of each other,
at the same time, over twice one alone. All processes stay alive and take turns; those whose turn it
is not sleep. Warm as in `overhead.py`; validation, checkpoints and start-up are not counted.
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

CONTESTANTS = ("rankup", "by hand, overlapped")


@dataclass(frozen=True)
class Case:
    """A model and the global batch it is trained with at both world sizes."""

    name: str
    options: dict[str, Any]
    claim: str | None = None


CASES = (
    Case(
        "compute dominates",
        {
            "vocab": "byte",
            "seq_len": 128,
            "layers": 4,
            "dim": 128,
            "heads": 4,
            "global_batch": 64,
            "micro_batch": 8,
            "warmup": 100,
        },
        "scaling.2",
    ),
    Case(
        "the exchange dominates",
        {
            "vocab": "word",
            "seq_len": 32,
            "layers": 1,
            "dim": 128,
            "heads": 4,
            "global_batch": 4,
            "micro_batch": 2,
            "warmup": 100,
        },
    ),
)


def size(directory: Path, options: dict[str, Any]) -> str:
    """The model in words: parameters, bytes exchanged and floating-point operations per step."""
    from rankup.recipes.language_model import LanguageModel
    from rankup.recipes.options import LanguageModelOptions

    task = LanguageModel(LanguageModelOptions(**options), directory / "tokens")
    model = task.build_model()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    tokens = options["global_batch"] * options["seq_len"]
    flops = task.flops_per_unit(model) * tokens
    return (
        f"{options['layers']} layers of width {options['dim']}, {numbers / 1e6:.2f} M parameters, "
        f"{tokens} tokens per step: {4 * numbers / 1e6:.1f} MB exchanged for {flops / 1e9:.1f} "
        f"GFLOP, {flops / 4 / numbers:,.0f} FLOP per byte"
    )


def measure(case: Case, effort: Effort) -> tuple[str, dict[str, list[float]]]:
    """Size of the model, and part of the ideal by contestant, one value per round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        options = write_text(directory, case.options, 100 * case.options["global_batch"])
        what = size(directory, options)
        with (
            closing(Team(1, directory, options, CONTESTANTS)) as one,
            closing(Team(1, directory, options, CONTESTANTS[:1])) as other,
            closing(Team(2, directory, options, CONTESTANTS)) as two,
        ):
            for ranks in (one, other, two):
                for contestant in CONTESTANTS[: 1 if ranks is other else 2]:
                    ranks.slice(contestant, 3)
            step = one.slice("rankup", 3)
            steps = max(2, round(2 * effort.slice_seconds / step))
            parts: dict[str, list[float]] = {name: [] for name in (*CONTESTANTS, "ceiling")}
            tokens = options["global_batch"] * options["seq_len"]
            parts["tokens/s of 1"] = []
            for number in range(effort.rounds):
                alone = {}
                for contestant in random.Random(number).sample(CONTESTANTS, 2):
                    alone[contestant] = one.slice(contestant, steps)
                    parts[contestant].append(alone[contestant] / two.slice(contestant, steps) / 2)
                one.start("rankup", steps)
                other.start("rankup", steps)
                both = 1 / one.finish() + 1 / other.finish()
                parts["ceiling"].append(both * alone["rankup"] / 2)
                parts["tokens/s of 1"].append(tokens / alone["rankup"])
    return what, parts


def show(case: Case, what: str, parts: dict[str, list[float]]) -> str:
    """Print a case; its claim line, empty where it makes none."""
    rate = median(parts.pop("tokens/s of 1"))
    names = {"rankup": "rankup", CONTESTANTS[1]: "DDP by hand", "ceiling": "two separate runs"}
    print(f"{case.name}: {what}; {rate:,.0f} tokens/s on 1 rank")
    rows = [
        [names[name], f"{median(values):.3f}", spread(values), f"{2 * median(values):.2f}"]
        for name, values in parts.items()
    ]
    table(["1 -> 2 ranks", "of ideal", "quartiles", "speed-up"], rows)
    if case.claim is None:
        return ""
    note = (
        f"{what}; {len(parts['rankup'])} interleaved rounds, paired; DDP by hand "
        f"{median(parts[CONTESTANTS[1]]):.3f}; ceiling of the machine (two separate runs of one "
        f"rank at once) {median(parts['ceiling']):.3f}"
    )
    return claim(case.claim, median(parts["rankup"]), 1.0, "of ideal", note)


def main() -> None:
    effort = arguments(__doc__ or "")
    enter_environment()
    print(machine() + "\n", flush=True)
    lines = [show(case, *measure(case, effort)) for case in CASES]
    print("\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
