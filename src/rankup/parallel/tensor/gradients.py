"""Gradients that are sums over the tensor-parallel ranks, brought together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

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
