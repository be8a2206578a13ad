"""bfloat16: computed in 16 bits, kept and updated in float32, the same run in each layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.task import Batch
from tests.pool import RankPool
from tests.train.runs import final_model, losses, train_task

from .tasks import SmallLM
from .test_same_run import SGD

OPTIONS = replace(SGD, momentum=0.9, clip=0.0, precision="bf16", steps=6, valid_every=6)
ADAMW = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}
# A number in bfloat16 is right to 2^-9. Each operator rounds alike wherever it is computed, and
# sums over ranks are in float32.
WITHIN, WEIGHTS_WITHIN = 1e-3, 2**-8


@dataclass(frozen=True)
class Kinds:
    """Types of numbers, each as a set of words.

    Attributes:
        computing: of the weights that a block multiplies with.
        logits: that reach the loss; all of them in float32 would be most of a small model's memory.
        kept, gradients, state: of parameters, gradients and optimizer state between the steps.
    """

    computing: set[str] = field(default_factory=set)
    logits: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    gradients: set[str] = field(default_factory=set)
    state: set[str] = field(default_factory=set)


class Looked(SmallLM):
    """Notes the types of numbers where they are used."""

    def __init__(self, options: TrainOptions) -> None:
        super().__init__(options, 2)
        self.kinds = Kinds()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().build_optimizer(model)
        parameters = list(model.parameters())

        def look(*_: Any) -> None:
            self.kinds.kept.update(str(p.dtype) for p in parameters)
            self.kinds.gradients.update(str(p.grad.dtype) for p in parameters if p.grad is not None)
            state = [v for kept in optimizer.state.values() for v in kept.values()]
            self.kinds.state.update(str(v.dtype) for v in state if isinstance(v, torch.Tensor))

        optimizer.register_step_post_hook(look)
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        up = model.get_submodule("blocks.1.feed_forward.up")
        hook = up.register_forward_pre_hook(
            lambda module, _: self.kinds.computing.add(str(module.weight.dtype))
        )

        def noted(tokens: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = model(tokens)
            self.kinds.logits.add(str(logits.dtype))
            return logits

        try:
            return super().loss(noted, batch)  # type: ignore[arg-type]
        finally:
            hook.remove()


def _train(world: World, directory: Path, options: TrainOptions) -> Kinds:
    task = Looked(options)
    assert train_task(world, task, options, directory, False).error == ""
    return task.kinds


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (2, {"strategy": "fsdp"}),
        pytest.param(2, {"strategy": "fsdp", **ADAMW}, marks=pytest.mark.slow),
        (2, {"strategy": "ddp"}),
        pytest.param(4, {"dp": 2, "shard": 2, "zero": "2"}, marks=pytest.mark.slow),
    ],
    ids=["fsdp", "adamw", "ddp", "hsdp, zero 2"],
)
def test_half(ranks: RankPool, tmp_path: Path, size: int, asked: dict[str, Any]) -> None:
    options = replace(OPTIONS, **asked)
    alone = replace(options, strategy=None, dp=None, shard=None, zero="3")
    ranks.run(1, _train, tmp_path / "full", replace(alone, precision="fp32"), timeout=200)
    ranks.run(1, _train, tmp_path / "one", alone, timeout=200)
    whole, half = {"torch.float32"}, {"torch.bfloat16"}
    for kinds in ranks.run(size, _train, tmp_path / "split", options, timeout=200):
        assert kinds == Kinds(half, half, whole, whole, whole)
    ours, theirs, full = (
        torch.tensor(losses(tmp_path / name)) for name in ("split", "one", "full")
    )
    torch.testing.assert_close(ours, theirs, rtol=WITHIN, atol=0)
    assert not torch.allclose(ours, full, rtol=1e-5, atol=0), "it was not computed in half"
    assert len(theirs) == 6
    assert theirs[-1] < theirs[0]
    here, there = final_model(tmp_path / "split"), final_model(tmp_path / "one")
    assert list(here) == list(there)
    largest = max(float(value.abs().max()) for value in there.values())
    for name, value in there.items():
        assert here[name].dtype == torch.float32
        if options.optimizer == "sgd":
            assert float((here[name] - value).abs().max()) <= WEIGHTS_WITHIN * largest, name


def _stages(world: World, directory: Path, options: TrainOptions) -> None:
    assert train_task(world, SmallLM(options), options, directory, False).error == ""


@pytest.mark.slow
def test_half_in_sharded_stages(ranks: RankPool, tmp_path: Path) -> None:
    """Stages pass activations on in bfloat16."""
    ranks.run(1, _stages, tmp_path / "one", OPTIONS, timeout=200)
    ranks.run(4, _stages, tmp_path / "split", replace(OPTIONS, pp=2, shard=2), timeout=200)
    ours, theirs = (torch.tensor(losses(tmp_path / name)) for name in ("split", "one"))
    torch.testing.assert_close(ours, theirs, rtol=WITHIN, atol=0)


LONGER = replace(OPTIONS, momentum=0.0, steps=20, valid_every=20)


@pytest.fixture(scope="module")
def alone(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """Losses of one rank."""
    root = tmp_path_factory.mktemp("alone")
    ranks.run(1, _stages, root, LONGER, timeout=200)
    return torch.tensor(losses(root))


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (3, {"strategy": "ddp"}),
        (2, {"strategy": "fsdp"}),
        pytest.param(2, {"strategy": "tp"}, marks=pytest.mark.slow),
        pytest.param(2, {"strategy": "pp"}, marks=pytest.mark.slow),
        pytest.param(4, {"strategy": "hsdp"}, marks=pytest.mark.slow),
        pytest.param(4, {"tp": 2, "shard": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"pp": 2, "shard": 2}, marks=pytest.mark.slow),
        pytest.param(4, {"cp": 2, "dp": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda asked: " ".join(map(str, asked.values())) if isinstance(asked, dict) else None,
)
def test_all_layouts_are_the_same_run(
    ranks: RankPool, tmp_path: Path, alone: torch.Tensor, size: int, asked: dict[str, Any]
) -> None:
    ranks.run(size, _stages, tmp_path, replace(LONGER, **asked), timeout=200)
    torch.testing.assert_close(torch.tensor(losses(tmp_path)), alone, rtol=WITHIN, atol=0)
