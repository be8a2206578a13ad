"""A recipe's training with compressed gradients, beside the same without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool
from tests.train.runs import losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD


def _train(world: World, directory: Path, options: TrainOptions) -> str:
    return train_task(world, SmallLM(options), options, directory, False).error


@pytest.mark.slow
def test_losses_are_near_those_without(ranks: RankPool, tmp_path: Path) -> None:
    """Batches are dealt unevenly; after 12 steps int8 is within 1 %."""
    found = {}
    for name in ("none", "int8", "powersgd:4"):
        options = replace(SGD, steps=12, valid_every=12, checkpoint_every=12, compress=name)
        assert ranks.run(2, _train, tmp_path / name, options) == ["", ""]
        found[name] = losses(tmp_path / name)
    plain = found.pop("none")
    bounds = {"int8": 0.01, "powersgd:4": 0.1}
    for name, run in found.items():
        assert run[-1] < run[0]
        assert run[-1] == pytest.approx(plain[-1], rel=bounds[name]), name
