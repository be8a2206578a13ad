"""What cannot be trained as asked is said in words, on every rank, and ends nobody's process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankup
from rankup.base.errors import UserError
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool
from tests.train.runs import Report, final_model, train_images, train_task

from .tasks import SmallLM
from .test_same_run import SGD


class _Unused(SmallLM):
    """A model with a part that no loss depends on."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.spare = nn.Linear(3, 3)
        return model


class _Packed(SmallLM):
    """A model that torch's own attention is part of."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.blocks["0"].attention = nn.MultiheadAttention(16, 4)
        return model


def _train(world: World, directory: Path, options: TrainOptions, kind: type[SmallLM]) -> Report:
    return train_task(world, kind(options), options, directory, False)


def _refused(ranks: RankPool, root: Path, kind: type[SmallLM], **asked: Any) -> str:
    reports = ranks.run(2, _train, root, replace(SGD, steps=2, **asked), kind)
    [error] = {report.error for report in reports}
    return str(error)


def test_unused_parameters_are_named(ranks: RankPool, tmp_path: Path) -> None:
    error = _refused(ranks, tmp_path, _Unused)
    assert error.startswith("RunFailed: the loss does not depend on spare.weight, spare.bias")


def test_what_a_sharded_model_does_not_use_stays_as_it_was(ranks: RankPool, tmp_path: Path) -> None:
    assert _refused(ranks, tmp_path, _Unused, strategy="fsdp") == ""
    state = final_model(tmp_path)
    assert state["spare.weight"].isfinite().all()


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        (_Packed, {"strategy": "tp"}, "MultiheadAttention"),
        (_Unused, {"strategy": "pp"}, "spare"),
        (SmallLM, {"tp": 2, "pp": 2}, "is 4 ranks, and there are 2"),
        (SmallLM, {"strategy": "pp", "pp_schedule": "1f2b"}, "unknown pipeline schedule '1f2b'"),
        (SmallLM, {"offload": True}, "--offload keeps shards"),
    ],
    ids=["packed attention", "a part in no link", "sizes", "schedule", "offload"],
)
def test_refused(
    ranks: RankPool, tmp_path: Path, kind: type[SmallLM], asked: dict[str, Any], words: str
) -> None:
    error = _refused(ranks, tmp_path, kind, **asked)
    assert error.startswith("UserError: ")
    assert words in error


def test_batch_norm_over_stages_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(SGD, strategy="pp", steps=2)
    [report, _] = ranks.run(2, train_images, tmp_path, options)
    assert "--pp cannot keep the running statistics of batch norm (first_norm and 1 more)" in (
        report.error
    )


@pytest.mark.parametrize("strategy", ["local-sgd", "diloco"])
def test_a_strategy_that_needs_a_loop_of_its_own(strategy: str) -> None:
    with pytest.raises(UserError, match="needs a loop of its own, which the recipes have"):
        rankup.parallelize(
            lambda: torch.nn.Linear(2, 2),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            strategy=strategy,
        )
