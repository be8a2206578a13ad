"""FSDP2: each parameter lives in parts over the data axes, and is whole only while it is used."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from .mesh import Mesh

# What holds modules side by side, and leaves the calling to others.
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts a model consists of: what its outermost lists of modules hold.

    Each is called as a whole, so it is what is sharded, recomputed and compiled by itself.
    """
    return list(_blocks(model))


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, CONTAINERS):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from _blocks(child)


def shard(
    roots: list[nn.Module],
    units: list[nn.Module],
    mesh: Mesh,
    *,
    half: bool,
    offload: bool,
    reshard: bool,
) -> None:
    """Shard `units` and what is left of `roots` over the mesh's data axes, in place.

    Gradients become sums over the data axes: the loss has been divided by the global count.

    Args:
        roots: the models, or a rank's pipeline stages.
        units: blocks that are gathered one at a time.
        half: gather and compute in bfloat16; gradients are added up in float32.
        offload: keep parts, gradients and optimizer state in host memory.
        reshard: give a block's memory back between its forward and its backward.
    """
    over = mesh.device_mesh["dp_shard"]
    if mesh.at_step.dp_replicate > 1:
        over = mesh.device_mesh["dp_replicate", "dp_shard"]
    precision = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if half
        else MixedPrecisionPolicy()
    )
    pinned = mesh.world.device.type == "cuda"
    policy = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
    for module in [*units, *roots]:
        fully_shard(
            module,
            mesh=over,
            mp_policy=precision,
            offload_policy=policy,
            reshard_after_forward=reshard,
        )
    for root in roots:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                _sum_gradients(module)


def _sum_gradients(module: FSDPModule) -> None:
    # A factor other than the group's size is a reduction that NCCL alone has, unless forced to sum;
    # and gloo's mean was a sum before torch 2.11.
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_gradient_divide_factor(1.0)
    else:
        module.set_reduce_scatter_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
