"""One small model in every layout, made with plain torch, and steps that are the same in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from rankup.runtime.state import of_model, parts

SIZES = {
    "plain": 1, "compiled": 1, "ddp": 2, "fsdp": 2, "tp": 2, "pp": 2, "hsdp": 4, "fsdp tp": 4,
    "pp fsdp": 4,
}  # fmt: skip
# One of each way to hold a model; the others are of these.
SMALL = ("plain", "ddp", "fsdp", "tp", "pp")


class Net(nn.Module):
    """Tied weights, a buffer, odd sizes that do not divide, a parameter without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 5)
        self.up = nn.Linear(5, 6)
        self.down = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.unused = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.down(torch.relu(self.up(self.tokens(tokens))))))


@dataclass
class Split:
    """A model in some layout and how to train it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    copies: dict[str, str] = field(default_factory=dict)


def make(layout: str, optimizer: str = "adamw", seed: int = 0) -> Split:
    """The model on this rank."""
    torch.manual_seed(seed)
    model: Any = Net()
    copies: dict[str, str] = {}
    world = dist.get_world_size()
    if layout == "compiled":
        model = torch.compile(model)
    elif layout == "ddp":
        model = DistributedDataParallel(model, find_unused_parameters=True)
    elif layout == "fsdp":
        _shard(model, init_device_mesh("cpu", (world,)))
    elif layout == "hsdp":
        names = ("dp_replicate", "dp_shard")
        _shard(model, init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names))
    elif layout == "tp":
        _cut(model, init_device_mesh("cpu", (world,)))
    elif layout == "fsdp tp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        _cut(model, mesh["tp"])
        _shard(model, mesh["dp"])
    elif layout in ("pp", "pp fsdp"):
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("pp", "dp"))
        if mesh.get_coordinate()[0] == 0:  # type: ignore[index]
            del model.down, model.norm, model.head, model.unused
        else:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            del model.tokens, model.up, model.seen
            copies = {"head.weight": "tokens.weight"}
        if layout == "pp fsdp":
            fully_shard(model, mesh=mesh["dp"])
    parameters = list(model.parameters())
    made: torch.optim.Optimizer
    if optimizer == "adamw":
        made = torch.optim.AdamW(parameters, lr=0.1, foreach=False)
    else:
        made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)
    return Split(model, made, copies)


def advance(split: Split, steps: range) -> None:
    """Steps with gradients drawn by (step, canonical name), so that they are equal everywhere."""
    held = of_model(split.model, split.copies)
    for step in steps:
        for parameter in split.model.parameters():
            name = held.names[id(parameter)]
            if name == "unused":
                continue
            seed = sum(map(ord, name)) * 100 + step
            draw = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            gradient = torch.zeros_like(parameter)
            for part, offset in parts(gradient):
                at = zip(offset, part.shape, strict=True)
                part.copy_(draw[tuple(slice(o, o + n) for o, n in at)])
            parameter.grad = gradient
        split.optimizer.step()
        split.optimizer.zero_grad()
        for name, buffer in split.model.named_buffers():
            if name.endswith("seen"):
                buffer += 1


def expected(steps: int, optimizer: str = "adamw") -> dict[str, torch.Tensor]:
    """The state dict after so many steps of the model that nobody has split."""
    split = make("plain", optimizer)
    advance(split, range(steps))
    return split.model.state_dict()


def assert_equal(found: Mapping[str, Any], wanted: Mapping[str, torch.Tensor]) -> None:
    """The same names and, bit for bit, values."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), f"{name}: {found[name]} instead of {value}"


def _shard(model: nn.Module, mesh: Any) -> None:
    for part in (model.up, model.down):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _cut(model: nn.Module, mesh: Any) -> None:
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
