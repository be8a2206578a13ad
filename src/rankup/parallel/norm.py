"""The norm of all gradients of a model that lies in parts on many ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ..runtime.state import local
from .mesh import Mesh


def global_norm(
    parameters: Iterable[nn.Parameter], mesh: Mesh, copies: Collection[int] = ()
) -> torch.Tensor:
    """Norm of the gradient over every axis of the mesh, a scalar equal on all ranks.

    One small all-reduce. What several ranks hold alike is counted once: ranks of the data and
    tensor axes that a parameter is not cut over each bring their fraction of it.

    Args:
        copies: `id`s of parameters that another stage holds too, and counts.
    """
    layout = mesh.at_step
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
