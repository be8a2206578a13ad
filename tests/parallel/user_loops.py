"""Single-GPU scripts with `parallelize` in them, as users would write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.utils.data import DataLoader, Dataset, TensorDataset

import rankup
from rankup.runtime.context import CONTEXT
from rankup.runtime.save import full_state
from rankup.runtime.world import World


class Stack(nn.Sequential):
    def tensor_plan(self) -> dict[str, ParallelStyle]:
        gathered = ColwiseParallel(output_layouts=Replicate())
        return {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": gathered}


def stack() -> nn.Module:
    return Stack(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def samples(n: int, seed: int) -> Dataset[tuple[torch.Tensor, ...]]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=draw)
    return TensorDataset(x, x[:, :3].sin() + x[:, 3:])


@dataclass(frozen=True)
class Script:
    """What a script does.

    Attributes:
        n: training samples; in batches of 5.
        held_out: validation samples; in batches of 4.
        accumulate: backwards of a step.
        clip: norm of the gradient at most, 0 for any.
        mode: of the model while it trains; False is that of an evaluation.
    """

    n: int = 22
    held_out: int = 9
    epochs: int = 2
    accumulate: int = 1
    clip: float = 0.0
    mode: bool = True
    model: Callable[[], nn.Module] = stack
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """Validation losses, gradient norms, and on rank 0 the weights."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def forget() -> None:
    """As in a process that has run nothing before."""
    CONTEXT.__init__()  # type: ignore[misc]


def run(world: World, script: Script, asked: dict[str, Any]) -> Result:
    """The script, in a layout."""
    forget()
    parallel = rankup.parallelize(script.model, script.optimizer, **asked, **script.options)
    model, optimizer = parallel
    train = rankup.shard(DataLoader(samples(script.n, 0), batch_size=5, shuffle=True))
    held_out = rankup.shard(DataLoader(samples(script.held_out, 1), batch_size=4), train=False)
    losses, norms = [], []
    for _ in range(script.epochs):
        model.train(script.mode)
        for number, (x, y) in enumerate(train):
            F.mse_loss(model(x), y).backward()
            if (number + 1) % script.accumulate == 0:
                if script.clip:
                    norms.append(float(parallel.clip_grad_norm_(script.clip)))
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        total, seen = 0.0, 0
        with torch.no_grad():
            for x, y in held_out:
                value = F.mse_loss(model(x), y)
                total += float(value) * len(y)
                seen += len(y)
        losses.append(rankup.mean(total, seen))
    return Result(losses, norms, full_state(model))


def alone(world: World, script: Script) -> Result:
    """The same without rankup, from the same weights and in the same order."""
    from rankup.runtime.keys import derive, reseed

    torch.manual_seed(derive(0, "construction"))
    model = script.model()
    optimizer = script.optimizer(model)
    reseed(derive(0, "draws", 0), torch.device("cpu"))
    train = DataLoader(samples(script.n, 0), batch_size=5, shuffle=True)
    losses, norms = [], []
    for _ in range(script.epochs):
        for number, (x, y) in enumerate(train):
            F.mse_loss(model(x), y).backward()
            if (number + 1) % script.accumulate == 0:
                if script.clip:
                    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), script.clip)))
                optimizer.step()
                optimizer.zero_grad()
        total = 0.0
        with torch.no_grad():
            for x, y in DataLoader(samples(script.held_out, 1), batch_size=4):
                total += float(F.mse_loss(model(x), y)) * len(y)
        losses.append(total / script.held_out)
    return Result(losses, norms, dict(model.state_dict()))


def assert_same(found: Result, wanted: Result, within: float = 1e-5) -> None:
    torch.testing.assert_close(found.losses, wanted.losses, rtol=within, atol=0)
    torch.testing.assert_close(found.norms, wanted.norms, rtol=within, atol=0)
    assert found.weights.keys() == wanted.weights.keys()
    largest = max(float(value.abs().max()) for value in wanted.weights.values())
    for name, value in wanted.weights.items():
        assert float((found.weights[name] - value).abs().max()) <= within * largest, name
