"""Gradients of a model that lies in parts on many ranks: brought together, their norm, clipped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from .mesh import Mesh


@torch.no_grad()
def finish_gradients(
    model: nn.Module, partial: Collection[str] = (), group: dist.ProcessGroup | None = None
) -> None:
    """Add gradients up over the tensor axis that each rank has of its own part, in place.

    All travel in one all-reduce: those named `partial`, which is right once a step, and any that
    says itself (`Partial`) that it is still to be added up.

    Args:
        group: the tensor axis.
    """
    pending: list[tuple[nn.Parameter, DTensor]] = []
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if name in partial or (
            parameter.placements == (Replicate(),) and gradient.placements == (Partial(),)
        ):
            pending.append((parameter, gradient))
        elif gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    for parts in _alike(pending):
        own = [gradient.to_local() for _, gradient in parts]
        flat = torch.cat([part.reshape(-1) for part in own])
        dist.all_reduce(flat, group=group or parts[0][1].device_mesh.get_group())
        sums = flat.split([part.numel() for part in own])
        for (parameter, gradient), part, total in zip(parts, own, sums, strict=True):
            assert isinstance(parameter, DTensor)
            parameter.grad = DTensor.from_local(
                total.view_as(part),
                gradient.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )


_Pending = list[tuple[nn.Parameter, DTensor]]


def _alike(pending: _Pending) -> Iterator[_Pending]:
    """Those of one type and device after the other."""
    kinds: dict[tuple[torch.dtype, torch.device], _Pending] = {}
    for parameter, gradient in pending:
        kinds.setdefault((gradient.dtype, gradient.device), []).append((parameter, gradient))
    yield from kinds.values()


def global_norm(
    parameters: Iterable[nn.Parameter], mesh: Mesh, copies: Collection[int] = ()
) -> torch.Tensor:
    """Norm of the gradient over every axis of the mesh, a scalar equal on all ranks.

    One small all-reduce, where ranks hold parts. What several hold alike is counted once: ranks of
    the data and tensor axes that a parameter is not cut over each bring their fraction of it.

    Args:
        copies: `id`s of parameters that another stage holds too, and counts.
    """
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
        alike = mesh.alike // parts
        gradient = parameter.grad
        own = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        by_share.setdefault(alike, []).append(own)
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
            gradient = parameter.grad
            gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, dtype), gradients in alike.items():
        torch._foreach_mul_(gradients, factor.to(device, dtype))
