"""`rankup demo`: the same run on one rank and on two, side by side."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..base.errors import UserError
from ..site import config, rundir
from .request import Request
from .run import run

# Four micro-batches to a batch; half a minute of one core, of which the second rank saves half.
_ARGS = (
    *("--vocab", "byte", "--seq-len", "128", "--layers", "4", "--dim", "256", "--heads", "4"),
    *("--global-batch", "16", "--micro-batch", "4", "--steps", "64", "--lr", "1e-3"),
    *("--warmup", "8", "--valid-every", "16", "--checkpoint-every", "32"),
)
# One thread per rank on both sides, so that two ranks have twice the cores of one.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Side:
    """What one of the two runs left in its `metrics.jsonl`."""

    ranks: int
    losses: list[float]
    valid_loss: float
    seconds: float
    tokens_per_s: float


def demo() -> int:
    """Train the small language model twice and print the table; the exit code."""
    runs, name = config.load(Path.cwd()).runs / "demo", rundir.new_id()
    sides = []
    for ranks in (1, 2):
        directory = runs / f"{name}-{ranks}"
        print(f"\n{ranks} rank{'s' if ranks > 1 else ''}, one thread each", file=sys.stderr)
        request = Request("language-model", _ARGS, ranks, str(directory), local=True)
        code = run(request, _ENVIRONMENT)
        if code:
            return code
        sides.append(read(directory, ranks))
    Console(width=None if sys.stdout.isatty() else 100).print(table(*sides))
    print(f"largest relative difference of the two loss curves: {difference(*sides):.1e}")
    if (os.cpu_count() or 1) < 2:
        print("this machine has one core: two ranks share it, so no time is saved")
    return 0


def read(directory: Path, ranks: int) -> Side:
    """Read a finished run's metrics."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps, final = lines[:-1], lines[-1]
    if not final.get("final") or len(steps) < 2:
        raise UserError(f"{directory} is not a finished run")
    rates = sorted(step["tokens_per_s"] for step in steps[1:])
    return Side(
        ranks,
        [step["loss"] for step in steps],
        final["valid_loss"],
        steps[-1]["time"] - steps[0]["time"],
        rates[len(rates) // 2],
    )


def difference(one: Side, other: Side) -> float:
    """Largest relative difference of two loss curves."""
    return max(abs(a - b) / abs(a) for a, b in zip(one.losses, other.losses, strict=True))


def table(one: Side, two: Side) -> Table:
    """The two runs in one table."""
    result = Table(title="the same run, only faster (one thread per rank on both sides)")
    for heading in ("ranks", "threads per rank", "first loss", "last loss", "valid loss"):
        result.add_column(heading, justify="right")
    for heading in ("tokens/s", "training time", "speed-up"):
        result.add_column(heading, justify="right")
    for side in (one, two):
        result.add_row(
            str(side.ranks),
            "1",
            f"{side.losses[0]:.5f}",
            f"{side.losses[-1]:.5f}",
            f"{side.valid_loss:.5f}",
            f"{side.tokens_per_s:,.0f}",
            f"{side.seconds:.1f} s",
            f"{one.seconds / side.seconds:.2f}",
        )
    return result
