"""Python's garbage collector: during a run all ranks collect together, or none does."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.task import Batch
from tests.parallel.tasks import SmallLM
from tests.parallel.test_same_run import SGD
from tests.pool import RankPool

from .runs import train_task

# One micro-batch for each of two ranks.
OPTIONS = replace(SGD, steps=120, global_batch=4, micro_batch=2, valid_every=120)


class Littered(SmallLM):
    """Makes more garbage in a step than Python lets lie by itself; notes when it is collected."""

    def __init__(self, options: TrainOptions) -> None:
        super().__init__(options, 1, n=240)
        self.steps = 0
        self.collected: list[int] = []

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        optimizer.register_step_post_hook(self._count)
        return optimizer

    def _count(self, *_: object) -> None:
        self.steps += 1

    def note(self, phase: str, _: object) -> None:
        if phase == "start" and 2 < self.steps < OPTIONS.steps:
            self.collected.append(self.steps)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        for _ in range(5000):
            ring: list[object] = []
            ring.append(ring)
        return super().loss(model, batch)


def _train(world: World, directory: Path, strategy: str) -> tuple[list[int], bool, int]:
    options = replace(OPTIONS, strategy=strategy, sync_every="epoch")
    task = Littered(options)
    gc.callbacks.append(task.note)
    try:
        assert train_task(world, task, options, directory, False).error == ""
    finally:
        gc.callbacks.remove(task.note)
    return task.collected, gc.isenabled(), gc.get_freeze_count()


@pytest.mark.parametrize("strategy", ["ddp", "local-sgd"])
def test_ranks_collect_together_and_leave_the_collector_as_it_was(
    ranks: RankPool, tmp_path: Path, strategy: str
) -> None:
    """Also within a round of 60 steps, behind which they meet."""
    assert ranks.run(2, _train, tmp_path, strategy) == [([50, 100], True, 0)] * 2
