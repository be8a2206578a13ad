"""Idle time of a pipeline's ranks: by the clock, against the formulas.

Claim `pipeline.bubble`: 1 - the bubble, measured to computed, of the schedule that is worst off;
four ranks whose stages sleep 20 ms forward and 20 ms back, so that two cores are enough. Of the
steps the least disturbed one counts: whatever else wakes up delays a hand-over, and with it all.
Gaps below 10 ms are the time to hand a chunk over, not the schedule's. It runs in the environment
it is started from: the peer is a formula.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from _ranks import run_ranks
from common import claim, machine, parse_effort, table
from rankup.parallel.pipeline.cut import balance, links
from rankup.parallel.pipeline.run import Pipeline
from rankup.parallel.pipeline.schedule import Span, placement
from rankup.parallel.pipeline.stage import carve
from rankup.train.timeline import bubble, idle

SLEEP = 0.02  # seconds, forward and backward alike
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
    spans: list[Span] = []
    cpu = torch.device("cpu")
    pipeline = Pipeline(stages, dist.group.WORLD, cpu, schedule, record=spans.append)
    batches, weights = [(torch.ones(1, 2),)] * chunks, [1.0] * chunks
    for _ in range(spec["steps"]):
        spans.clear()
        dist.barrier()
        pipeline.step(batches, weights, lambda model, batch: model(*batch).sum())
        steps: list[list[Span]] = [[] for _ in range(ranks)]
        dist.all_gather_object(steps, spans)
        if rank == 0:
            line = {"spans": [asdict(span) for step in steps for span in step]}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def measured(schedule: str, chunks: int, steps: int) -> float:
    """Return the bubble of the step that was disturbed least, as a share of all ranks' time."""
    spec = {"schedule": schedule, "chunks": chunks, "steps": steps + 1}
    lines = run_ranks("pipeline.py", RANKS, spec)[1:]  # the first step finds out the shapes
    return min(idle([Span(**span) for span in line["spans"]], SLEEP / 2) for line in lines)


def main() -> None:
    effort = parse_effort(__doc__ or "")
    print(f"{machine('torch')}\n", flush=True)
    rows, found = [], []
    cases = [case for case in CASES if case[1] == 8] if effort.quick else CASES
    for schedule, chunks in cases:
        theory = bubble(schedule, RANKS, chunks)
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
