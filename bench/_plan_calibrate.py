"""`bench/plan.py --calibrate`: predictions for CPU ranks of this machine, calibrated in this run.

The recipe `language-model` is measured in three sizes under every layout of `ROWS`; how far each is
from its prediction is printed, and one claim: the median |log error|. On a machine that others use,
`--cpu-clock` counts seconds of the processor in calibration and runs alike; waiting, and so the
bubble of a pipeline, is then in neither.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from _ranks import Team, write_text
from common import ROOT, machine, table
from rankup.plan.calibrate import machines_of
from rankup.plan.command import layout_of
from rankup.plan.estimate import Estimate, estimate
from rankup.plan.machine import Machine
from rankup.plan.target import Sizes, find
from rankup.recipes.options import LanguageModelOptions

SIZES = (
    {"layers": 3, "dim": 192, "heads": 4, "micro_batch": 8},
    {"layers": 4, "dim": 256, "heads": 8, "micro_batch": 4},
    {"layers": 6, "dim": 320, "heads": 8, "micro_batch": 8},
)
# Ranks and strategy: five layouts beside the single rank.
STRATEGIES = {1: ("ddp",), 2: ("ddp", "fsdp", "tp", "pp"), 4: ("ddp", "fsdp", "hsdp")}
ROWS = tuple((ranks, strategy) for ranks, several in STRATEGIES.items() for strategy in several)
MODEL = {"vocab": "byte", "seq_len": 64, "global_batch": 32, "dropout": 0.1}
_STEPS, _SLICES = 3, 3


@dataclass(frozen=True)
class Point:
    """A layout of a size, predicted and measured in seconds of a step."""

    size: str
    ranks: int
    strategy: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return math.log(self.predicted / self.measured)


def main(cpu_clock: bool, quick: bool) -> None:
    """Calibrate, measure, print."""
    print(f"{machine('torch')}\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machines = calibrated(folder, cpu_clock)
        points = []
        for number, size in enumerate(SIZES):
            options = write_text(folder / str(number), {**MODEL, **size}, 64 * 32)
            for ranks, strategy in ROWS[: 4 if quick else None]:
                points.append(
                    measured(folder / str(number), options, ranks, strategy, machines, cpu_clock)
                )
                print(f"{points[-1]}, error {points[-1].error:+.2f}", flush=True)
    shown = [(f"{one.predicted:.4f}", f"{one.measured:.4f}", f"{one.error:+.1%}") for one in points]
    rows = [
        [one.size, str(one.ranks), one.strategy, *words]
        for one, words in zip(points, shown, strict=True)
    ]
    table(["layers x dim", "ranks", "strategy", "predicted", "measured s", "error"], rows)
    errors = [abs(one.error) for one in points]
    claim = {"claim": "plan.calibrated", "n": len(points), "median": round(median(errors), 4)}
    claim |= {"mean": round(mean(errors), 4), "most": round(max(errors), 4)}
    print(json.dumps({**claim, "clock": "cpu" if cpu_clock else "wall"}))


def calibrated(folder: Path, cpu_clock: bool) -> dict[int, Machine]:
    """Run the job of `rankup plan --calibrate` on four ranks, of one thread each as the runs."""
    out = folder / "measured.json"
    job = ROOT / "src" / "rankup" / "recipes" / "measure.py"
    words = ["run", "--local", "--no-monitor", "--no-check", "--nproc", "4", "--out"]
    words += [str(folder / "run"), str(job), str(out), "--threads", "1"]
    words += ["--cpu-clock"] if cpu_clock else []
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-m", "rankup", *words], check=True, env=environment)
    return machines_of(json.loads(out.read_text()))


def measured(
    folder: Path,
    options: dict[str, Any],
    ranks: int,
    strategy: str,
    machines: dict[int, Machine],
    cpu_clock: bool,
) -> Point:
    """Predict and measure one point."""
    given = {**options, "strategy": strategy}
    asked = LanguageModelOptions(**given)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    shape = find("language-model", words, Sizes()).shape
    found = estimate(shape, layout_of(asked, ranks, asked.layout(ranks, ranks)), machines[ranks])
    with closing(Team(ranks, folder, given, ["rankup"])) as team:
        team.slice("rankup", 2)
        slices = [team.slice("rankup", _STEPS) for _ in range(_SLICES)]
    if cpu_clock:
        seconds = median(max(rank["cpu"] for rank in one.ranks) for one in slices)
    else:
        seconds = median(one.seconds for one in slices)
    size = f"{options['layers']} x {options['dim']}"
    return Point(size, ranks, strategy, _predicted(found, cpu_clock), seconds)


def _predicted(found: Estimate, cpu_clock: bool) -> float:
    waiting = sum(term.seconds for term in found.terms if term.name == "bubble")
    return found.seconds - (waiting if cpu_clock else 0.0)
