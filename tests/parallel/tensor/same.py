"""A cut model held against the same model in one piece, on every rank."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle

from rankup.parallel.gradients import finish_gradients
from rankup.parallel.tensor.apply import apply, loss_context, plain
from rankup.parallel.tensor.plan import check, plan_of
from rankup.recipes.models.transformer import Shape, Transformer
from rankup.runtime.world import World

Loss = Callable[[nn.Module, tuple[torch.Tensor, ...]], torch.Tensor]
IGNORED = -100


def transformer(**changes: Any) -> Transformer:
    sizes: dict[str, Any] = {
        "vocab_size": 13, "seq_len": 8, "layers": 2, "dim": 16, "heads": 4, "dropout": 0.0,
    }  # fmt: skip
    return Transformer(Shape(**{**sizes, **changes}))


def text(seed: int, batch: int = 3, length: int = 8, vocab: int = 13) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    window = torch.randint(vocab, (batch, length + 1), generator=generator)
    targets = window[:, 1:].clone()
    targets[0, :3] = IGNORED
    return window[:, :-1].contiguous(), targets.contiguous()


def per_token(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The recipe's loss, word for word."""
    tokens, targets = batch
    logits = model(tokens).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def mesh_of(world: World, tp: int, shard: int = 1, replicate: int = 1) -> DeviceMesh:
    names = ("pp", "dp_replicate", "dp_shard", "tp")
    return init_device_mesh("cpu", (1, replicate, shard, tp), mesh_dim_names=names)


def split(
    model: nn.Module, mesh: DeviceMesh, given: Mapping[str, ParallelStyle] | None = None
) -> dict[str, ParallelStyle]:
    plan = plan_of(model, given)
    check(model, plan, mesh["tp"].size())
    apply(model, plan, mesh["tp"])
    return plan


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    over = mesh["dp_replicate", "dp_shard"]
    for block in getattr(model, "blocks", nn.ModuleDict()).values():
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    scale = max(float(wanted.abs().max()), 1e-12)
    return float((found - wanted).abs().max()) / scale


def assert_same(
    world: World,
    build: Callable[[], nn.Module],
    batches: Callable[[int], tuple[torch.Tensor, ...]],
    *,
    tp: int,
    shards: int = 1,
    replicas: int = 1,
    sharded: bool = False,
    given: Mapping[str, ParallelStyle] | None = None,
    loss: Loss = per_token,
    accumulate: int = 2,
    steps: int = 2,
    within: float = 1e-6,
    autocast: bool = False,
) -> nn.Module:
    """Losses, gradients and weights of some SGD steps; the cut model."""
    torch.manual_seed(0)
    # In double, so that what differs is an error and not the order of a sum.
    whole = build() if autocast else build().double()
    model = copy.deepcopy(whole)
    mesh = mesh_of(world, tp, shards, replicas)
    plan = split(model, mesh, given)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    if sharded:
        shard(model, mesh)
    data, rank = shards * replicas, world.rank // tp
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (whole, model)]
    half = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        wanted = [torch.zeros(()) for _ in range(data)]
        found = torch.zeros(())
        for micro in range(accumulate):
            for part in range(data):
                batch = batches(100 * step + 10 * micro + part)
                with half:
                    one = loss(whole, batch)
                (one / 10).backward()
                wanted[part] = wanted[part] + one.detach()
            with loss_context(plan):
                with half:
                    value = loss(model, batches(100 * step + 10 * micro + rank))
                value = plain(value)
                assert not isinstance(value, DTensor)
                (value / 10).backward()
            found = found + value.detach()
        finish_gradients(model)
        assert apart(found, wanted[rank]) <= within
        compare = dict(whole.named_parameters())
        for name, parameter in model.named_parameters():
            assert (parameter.grad is None) == (compare[name].grad is None), name
            if parameter.grad is not None:
                assert parameter.grad.placements == parameter.placements, name  # type: ignore[attr-defined]
                gap = apart(full(parameter.grad), compare[name].grad)  # type: ignore[arg-type]
                assert gap <= within, (step, name, gap)
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad(), loss_context(plan):
        batch = batches(7)
        assert apart(plain(loss(model, batch)), loss(whole, batch)) <= within
    for name, parameter in model.named_parameters():
        assert apart(full(parameter), compare[name]) <= within, name
    return model
