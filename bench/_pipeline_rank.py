"""A rank of `pipeline.py`: steps of stages that sleep; rank 0 prints who computed when."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rankup.parallel.pipeline.cut import balance, links
from rankup.parallel.pipeline.place import placement
from rankup.parallel.pipeline.run import Pipeline
from rankup.parallel.pipeline.stage import carve
from rankup.parallel.pipeline.timeline import Span

SLEEP = 0.02  # seconds, forward and backward alike


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


def main() -> None:
    spec = json.loads(sys.argv[1])
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
    pipeline = Pipeline(
        stages, dist.group.WORLD, torch.device("cpu"), schedule, record=spans.append
    )
    for _ in range(spec["steps"]):
        spans.clear()
        dist.barrier()
        pipeline.step(
            [(torch.ones(1, 2),)] * chunks, [1.0] * chunks, lambda model, batch: model(*batch).sum()
        )
        steps: list[list[Span]] = [[] for _ in range(ranks)]
        dist.all_gather_object(steps, spans)
        if rank == 0:
            print(json.dumps([asdict(span) for step in steps for span in step]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
