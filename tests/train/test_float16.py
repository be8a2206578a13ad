"""float16: the loss is scaled, and a gradient that overflows costs one update, on all ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.runtime.world import World
from rankup.train.optimizer import LossScale
from rankup.train.options import TrainOptions
from tests.parallel.tasks import SmallLM
from tests.pool import RankPool

from .runs import Report, losses, records, sample_at, train_images, train_task

N = 48
OPTIONS = TrainOptions(
    *(24, 4, 8), optimizer="sgd", lr=0.05, schedule="constant", seed=1, precision="fp16"
)
STEEP = {"n": N, "events": {sample_at(OPTIONS, N, 2, 13): "steep"}}


def _train(world: World, directory: Path, options: TrainOptions) -> Report:
    return train_task(world, SmallLM(options), options, directory, False)


def _steps(directory: Path, name: str) -> list[Any]:
    return [record[name] for record in records(directory) if "loss_scale" in record]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"strategy": "fsdp"},
        {"dp": 2, "shard": 2},
        {"strategy": "tp"},
        {"strategy": "pp"},
        pytest.param({"tp": 2, "pp": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_layout_is_nearly_the_run_in_float32(
    ranks: RankPool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    options = TrainOptions(12, 2, 6, optimizer="sgd", lr=0.05, seed=7, clip=0.5, valid_every=6)
    ranks.run(1, _train, tmp_path / "float32", options)
    world_size = 4 if len(layout) == 2 else 2
    halved = replace(options, precision="fp16", **layout)
    ranks.run(world_size, _train, tmp_path / "float16", halved)
    found, expected = losses(tmp_path / "float16"), losses(tmp_path / "float32")
    assert found == pytest.approx(expected, rel=1e-3)
    assert found != pytest.approx(expected, rel=1e-6), "it was not computed in half"
    assert _steps(tmp_path / "float16", "loss_scale") == [65536.0] * 6


@pytest.mark.parametrize("layout", [{}, {"strategy": "fsdp"}], ids=["ddp", "fsdp"])
def test_an_overflow_on_one_rank_is_skipped_by_all_and_noted(
    ranks: RankPool, tmp_path: Path, layout: dict[str, Any]
) -> None:
    """The run goes on; stopped and resumed, it is the same run with the same scale."""
    options = replace(OPTIONS, **layout)
    reports = ranks.run(3, train_images, tmp_path / "whole", options, STEEP)
    assert [report.error for report in reports] == ["", "", ""]
    skipped, scales = (_steps(tmp_path / "whole", name) for name in ("skipped", "loss_scale"))
    first = skipped.index(True)
    assert skipped.count(True) == 4, "once in each epoch of two steps"
    assert scales[first : first + 2] == [65536.0, 32768.0]
    assert records(tmp_path / "whole")[first]["grad_norm"] is None
    ranks.run(3, train_images, tmp_path / "parts", replace(options, steps=4), STEEP)
    ranks.run(3, train_images, tmp_path / "parts", options, STEEP, True)
    assert scales == _steps(tmp_path / "parts", "loss_scale")
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_a_loss_that_overflows_ends_the_run(ranks: RankPool, tmp_path: Path) -> None:
    """No scale helps a forward."""
    shape = {"n": N, "events": {sample_at(OPTIONS, N, 2, 13): "nan"}}
    reports = ranks.run(2, train_images, tmp_path, OPTIONS, shape)
    assert all("step 2: the loss on rank 1 on " in report.error for report in reports)


@pytest.mark.parametrize("asked", [{"strategy": "diloco"}, {"compress": "bf16"}], ids=str)
def test_what_cannot_leave_a_step_out_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"--precision fp16 .* give --precision bf16"):
        replace(OPTIONS, **asked)


def test_a_rank_without_a_gradient_has_nothing_to_scale() -> None:
    frozen = nn.Parameter(torch.zeros(1))
    LossScale().unscale([frozen])
    assert frozen.grad is None
