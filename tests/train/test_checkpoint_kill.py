"""Invariant 4 while checkpoints are written in a thread: a kill -9 leaves a whole one."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from rankup.runtime.world import World, setup
from rankup.train.saver import Saver
from tests.pool import RankPool

from . import crash
from .test_checkpoint_async import Filled

pytestmark = pytest.mark.usefixtures("forks")
WIDTH = 400


def _save_for_ever(rank: int, root: Path) -> None:
    torch.set_num_threads(1)
    setup()
    filled, saver = Filled(WIDTH), Saver(root, 2)
    for step in range(1, 10**6):
        filled.save(saver, step)


def _restore(world: World, root: Path) -> int:
    return Filled(WIDTH).restored(root)


def _kill(ranks: RankPool, root: Path, seed: int) -> int:
    """Kill one of two ranks, then the other, at a moment of the writing; the step found whole."""
    draw = random.Random(seed)
    processes = crash.start(2, _save_for_ever, root)
    deadline = time.monotonic() + 150
    while not any(root.glob("*/COMPLETE")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.3))
    crash.kill([processes[draw.randrange(2)]])
    time.sleep(draw.choice([0, 0.05]))
    crash.kill(processes)
    steps = ranks.run(draw.choice([1, 2]), _restore, root)
    newest = sorted(path.parent.name for path in root.glob("*/COMPLETE"))[-1]
    assert f"step-{steps[0]:08d}" == newest
    return steps[0]


@pytest.mark.slow
def test_kills_at_ten_moments(ranks: RankPool, tmp_path: Path) -> None:
    for seed in range(1, 11):
        assert _kill(ranks, tmp_path / str(seed), seed) >= 1
