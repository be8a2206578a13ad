"""Gradients of a model that lies in parts on many ranks: brought together, their norm, clipped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from ..runtime.state import local
from .layout import Layout
from .mesh import Mesh

Key = tuple[dist.ProcessGroup, torch.dtype]


@torch.no_grad()
def finish_gradients(model: nn.Module) -> None:
    """Give every gradient the placements of its parameter, in place, once a step.

    A parameter that each rank applied to its own part of the sequence has a gradient that is still
    to be added up (`Partial`). All of those travel in one all-reduce. Under `fully_shard`, which
    adds them up itself, there is nothing left to do.
    """
    pending: dict[Key, list[tuple[nn.Parameter, DTensor, torch.Tensor]]] = {}
    for parameter in model.parameters():
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements == parameter.placements:
            continue
        whole = parameter.placements == (Replicate(),)
        if whole and gradient.placements == (Partial(),):
            local = gradient.to_local()
            key = (gradient.device_mesh.get_group(), local.dtype)
            pending.setdefault(key, []).append((parameter, gradient, local))
        else:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    for (group, _), parts in pending.items():
        flat = torch.cat([local.reshape(-1) for _, _, local in parts])
        dist.all_reduce(flat, group=group)
        sums = flat.split([local.numel() for _, _, local in parts])
        for (parameter, gradient, local), total in zip(parts, sums, strict=True):
            parameter.grad = DTensor.from_local(
                total.view_as(local), gradient.device_mesh, [Replicate()], run_check=False
            )


def global_norm(
    parameters: Iterable[nn.Parameter], mesh: Mesh, copies: Collection[int] = ()
) -> torch.Tensor:
    """Norm of the gradient over every axis of the mesh, a scalar equal on all ranks.

    One small all-reduce, where ranks hold parts. What several hold alike is counted once: ranks of
    the data and tensor axes that a parameter is not cut over each bring their fraction of it.

    Args:
        copies: `id`s of parameters that another stage holds too, and counts.
    """
    layout = mesh.at_step if mesh.together else Layout()
    by_share: dict[int, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is None or id(parameter) in copies:
            continue
        parts = 1
        if isinstance(parameter.grad, DTensor):
            over, placements = parameter.grad.device_mesh, parameter.grad.placements
            # Whatever is not whole is cut; FSDP's strided shards are no `Shard` to torch.
            cut = (dim for dim, how in enumerate(placements) if not how.is_replicate())
            parts = math.prod(over.size(dim) for dim in cut)
        alike = layout.world_size // (layout.pp * parts)
        by_share.setdefault(alike, []).append(local(parameter.grad))
    total = torch.zeros((), dtype=torch.float64, device=mesh.world.device)
    for alike, gradients in by_share.items():
        norms = torch.stack(torch._foreach_norm([g for g in gradients if g.numel()] or [total]))
        total += norms.to(total.device, torch.float64).square().sum() / alike
    if mesh.together:
        dist.all_reduce(total, group=mesh.step_group)
    return total.sqrt()


def clip(parameters: Iterable[nn.Parameter], norm: torch.Tensor, limit: float) -> None:
    """Scale gradients of the given norm down to `limit`, as `clip_grad_norm_` does."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = local(parameter.grad)
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, dtype), gradients in alike.items():
        torch._foreach_mul_(gradients, factor.to(device, dtype))
