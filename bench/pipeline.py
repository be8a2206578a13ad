"""Idle time of a pipeline's ranks: by the clock, against the formulas.

Claim `pipeline.bubble`: 1 - the bubble, measured to computed, of the schedule that is worst off;
four ranks whose stages sleep 0.1 s forward and 0.1 s back, so that two cores are enough. What a
step took beyond its sleep is waiting, the time to hand chunks over included. Of the steps the
least disturbed one counts: whatever else wakes up delays a hand-over, and with it all. It runs in
the environment it is started from: the peer is a formula.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from _ranks import run_ranks
from common import claim, machine, parse_effort, table
from rankup.parallel.choices import stages_per_rank
from rankup.parallel.pipeline.cut import balance, links
from rankup.parallel.pipeline.run import Pipeline, placement
from rankup.parallel.pipeline.stage import carve

SLEEP = 0.1  # seconds, forward and backward alike: a hand-over is short beside it
RANKS = 4
CASES = [
    (schedule, chunks) for schedule in ("gpipe", "1f1b", "interleaved") for chunks in (4, 8, 16)
]


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP)
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP)
        return grad


class Sleeper(nn.Linear):
    """A stage that needs no core of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Sleep.apply(super().forward(x))
        return result


def run_rank() -> None:
    """Take steps of stages that sleep; rank 0 prints who computed when, a line per step."""
    spec = json.loads(sys.argv[-1])
    schedule, chunks = spec["schedule"], spec["chunks"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    rank, ranks = dist.get_rank(), dist.get_world_size()
    where = placement(schedule, ranks)
    model = nn.Sequential(*(Sleeper(2, 2) for _ in where))
    held = [stage for stage, place in enumerate(where) if place == rank]
    stages = carve(model, links(model), balance([1.0] * len(where), len(where)), held)
    cpu = torch.device("cpu")
    pipeline = Pipeline(stages, dist.group.WORLD, cpu, schedule)
    batches, weights = [(torch.ones(1, 2),)] * chunks, [1.0] * chunks
    for _ in range(spec["steps"]):
        dist.barrier()
        began = time.perf_counter()
        pipeline.step(batches, weights, lambda model, batch: model(*batch).sum())
        dist.barrier()
        if rank == 0:
            slept = 2 * SLEEP * chunks * len(held)
            idle = 1 - slept / (time.perf_counter() - began)
            print(json.dumps({"idle": idle}), flush=True)
    dist.destroy_process_group()


def measured(schedule: str, chunks: int, steps: int) -> float:
    """Return the bubble of the step that was disturbed least, as a share of all ranks' time."""
    spec = {"schedule": schedule, "chunks": chunks, "steps": steps + 1}
    lines = run_ranks("pipeline.py", RANKS, spec)[1:]  # the first step finds out the shapes
    return min(float(line["idle"]) for line in lines)


def bubble(schedule: str, chunks: int) -> float:
    """Return the share of the time in which a rank waits where all stages take equally long and
    messages no time: GPipe (Huang et al., 2019), 1F1B and interleaved (Narayanan et al., 2021)."""
    fill = RANKS - 1
    return fill / (chunks * stages_per_rank(schedule) + fill)


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(f"{machine('torch')}\n", flush=True)
    rows, found = [], []
    cases = [case for case in CASES if case[1] == 8] if effort.quick else CASES
    for schedule, chunks in cases:
        theory = bubble(schedule, chunks)
        clock = measured(schedule, chunks, 2 * effort.rounds)
        shares = [f"{theory:.3f}", f"{clock:.3f}", f"{clock / theory:.2f}"]
        rows.append([schedule, str(chunks), *shares])
        found.append(((1 - clock) / (1 - theory), 1 - clock, 1 - theory, f"{schedule}, {chunks}"))
    table(["schedule", "chunks", "bubble by formula", "by the clock", "ratio"], rows)
    _, ours, peer, name = min(found)
    note = f"{name} chunks, the best of {2 * effort.rounds} steps"
    print(claim("pipeline.bubble", ours, peer, "share of the time in which ranks compute", note))


if __name__ == "__main__":
    if "--rank" in sys.argv:
        run_rank()
    else:
        main()
