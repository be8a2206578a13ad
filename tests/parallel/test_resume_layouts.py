"""A run goes on under any other strategy and number of ranks, as if it had never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool
from tests.train.runs import Report, losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD

LIFE = 3  # steps; an epoch has four
OPTIONS = replace(SGD, momentum=0.9, lr=0.05, checkpoint_every=LIFE)
# Name -> ranks, and what is asked for.
LAYOUTS = {
    "one": (1, {}),
    "ddp": (2, {"strategy": "ddp"}),
    "fsdp": (2, {"strategy": "fsdp"}),
    "fsdp of 3": (3, {"strategy": "fsdp"}),
    "cp": (2, {"cp": 2}),
    "tp": (2, {"strategy": "tp"}),
    "pp": (2, {"strategy": "pp"}),
    "interleaved": (2, {"strategy": "pp", "pp_schedule": "interleaved"}),
    "shard x tp": (4, {"shard": 2, "tp": 2}),
    "3d": (4, {"strategy": "3d"}),
}


def _train(
    world: World, directory: Path, options: TrainOptions, layers: int, resume: bool
) -> Report:
    return train_task(world, SmallLM(options, layers, tied=True), options, directory, resume)


def _run(ranks: RankPool, directory: Path, name: str, steps: int, layers: int = 3) -> Report:
    size, asked = LAYOUTS[name]
    options = replace(OPTIONS, steps=steps, **asked)  # type: ignore[arg-type]
    resume = directory.exists()
    report: Report = ranks.run(size, _train, directory, options, layers, resume, timeout=200)[0]
    return report


def _assert_goes_on(ranks: RankPool, root: Path, first: str, then: list[str]) -> None:
    _run(ranks, root / "whole", "one", LIFE * (1 + len(then)))
    for steps, name in enumerate([first, *then], 1):
        report = _run(ranks, root / "split", name, LIFE * steps)
        assert not report.error
    ours, theirs = losses(root / "split"), losses(root / "whole")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=0)


def test_from_one_strategy_to_the_next(ranks: RankPool, tmp_path: Path) -> None:
    _assert_goes_on(ranks, tmp_path, "fsdp", ["pp", "cp", "one"])


def test_another_model_is_refused_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    _run(ranks, tmp_path / "run", "ddp", LIFE)
    report = _run(ranks, tmp_path / "run", "pp", 2 * LIFE, layers=4)
    assert "is of another model" in report.error
    assert "blocks.3.attention.query.weight: absent in the checkpoint" in report.error


@pytest.mark.slow
def test_from_one_way_to_share_to_the_next(ranks: RankPool, tmp_path: Path) -> None:
    """Each of the others comes once, with a plain process on the way."""
    then = ["interleaved", "shard x tp", "one", "3d", "ddp", "tp"]
    _assert_goes_on(ranks, tmp_path, "fsdp of 3", then)
