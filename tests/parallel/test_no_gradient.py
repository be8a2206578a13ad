"""A parameter that no loss depends on: in every layout as in one process, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel

from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.parallel.tensor.styles import Replicated
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.pool import RankPool
from tests.train.runs import Report, final_model, losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD

# What decays moves by itself as soon as it has a gradient, be it of zeros.
OPTIONS = replace(SGD, steps=4, weight_decay=0.1, momentum=0.9, valid_every=4, checkpoint_every=4)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
}
SPARE = ("blocks.0.feed_forward.gate.weight", "blocks.0.spare.weight", "blocks.0.spare.bias")
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"strategy": "fsdp"}),
    "3d": (4, {"strategy": "3d"}),
    "shard x tp": (4, {"shard": 2, "tp": 2}),
}


class Spare(SmallLM):
    """Beside what a block uses, a linear map that tp leaves whole, and one that it cuts."""

    without: tuple[str, ...] = ()  # what is not trained

    def build_model(self) -> nn.Module:
        model = super().build_model()
        block = model.get_submodule("blocks.0")
        block.spare = nn.Linear(3, 3)
        block.feed_forward.gate = nn.Linear(16, 64, bias=False)  # type: ignore[union-attr]
        for name in self.without:
            model.get_parameter(name).requires_grad_(False)
        plan = model.tensor_plan()  # type: ignore[operator]
        gate = ColwiseParallel()
        more = {"blocks.0.feed_forward.gate": gate, "blocks.0.spare": Replicated()}
        model.tensor_plan = lambda: {**plan, **more}
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        for group in optimizer.param_groups:
            # AdamW would make whole steps of gradients that are nothing but rounding.
            group["eps"] = 1e-3
        return optimizer


class Frozen(Spare):
    """The way out that the refusal of ddp names."""

    without = SPARE


def _train(world: World, directory: Path, options: TrainOptions, kind: type[Spare]) -> Report:
    return train_task(world, kind(options, 2), options, directory, False)


def _start(world: World, kind: type[Spare]) -> dict[str, torch.Tensor]:
    """The weights that every layout starts with."""
    built = build(kind(OPTIONS, 2).build_model, Mesh(Layout(), world), OPTIONS.seed, Choices())
    return {name: p.detach().clone() for name, p in built.model.named_parameters()}


def _assert_same(
    ranks: RankPool, root: Path, size: int, options: TrainOptions, kind: type[Spare]
) -> None:
    reference = replace(options, strategy=None, dp=None, shard=None, tp=None, pp=None)
    [alone] = ranks.run(1, _train, root / "one", replace(reference, pp_schedule="1f1b"), kind)
    reports = ranks.run(size, _train, root / "split", options, kind, timeout=200)
    assert [report.error for report in (alone, *reports)] == [""] * (size + 1)
    ours, theirs = torch.tensor(losses(root / "split")), torch.tensor(losses(root / "one"))
    assert len(theirs) == 4
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    [before] = ranks.run(1, _start, kind)
    here, there = final_model(root / "split"), final_model(root / "one")
    assert list(here) == list(there) == list(before)
    largest = max(float(value.abs().max()) for value in there.values())
    for name, value in there.items():
        assert torch.equal(value, before[name]) == (name in SPARE), name
        if name in SPARE:
            assert torch.equal(here[name], before[name]), name
        assert float((here[name] - value).abs().max()) <= 1e-5 * largest, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp"])
def test_it_stays_as_it_was(ranks: RankPool, tmp_path: Path, name: str) -> None:
    size, asked = LAYOUTS[name]
    options = replace(OPTIONS, **OPTIMIZERS["adamw"], **asked)
    _assert_same(ranks, tmp_path, size, options, Spare)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shard x tp", "3d"])
def test_in_every_layout(ranks: RankPool, tmp_path: Path, name: str) -> None:
    size, asked = LAYOUTS[name]
    optimizer = list(OPTIMIZERS)[list(LAYOUTS).index(name) % len(OPTIMIZERS)]
    options = replace(OPTIONS, **OPTIMIZERS[optimizer], **asked)
    _assert_same(ranks, tmp_path, size, options, Spare)


def test_ddp_names_it_and_the_way_out_works(ranks: RankPool, tmp_path: Path) -> None:
    """DDP would wait for a gradient that never comes, and exchange none."""
    options = replace(OPTIONS, strategy="ddp")
    [error] = {r.error for r in ranks.run(2, _train, tmp_path / "refused", options, Spare)}
    assert error.startswith(f"RunFailed: the loss does not depend on {', '.join(SPARE)}, ")
    assert "freeze what is not used (requires_grad_(False))" in error
    _assert_same(ranks, tmp_path, 2, options, Frozen)
