"""A plan applied to a model, or to the part of it that a rank holds, module by module."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

from ...base.errors import UserError
from .plan import Plan, named, uncovered
from .styles import Replicated


def apply(model: nn.Module, plan: Plan, tp_mesh: DeviceMesh, deferred: bool = False) -> set[str]:
    """Cut `model` over `tp_mesh` in place; afterwards each parameter is a DTensor on it.

    Call `check` with the whole model first: here patterns that find nothing are those of other
    pipeline stages. Works on meta tensors; real ones must be equal on all ranks, and nothing is
    sent. What is tied stays tied.

    Args:
        tp_mesh: one axis.
        deferred: see `Replicated`; for a loop that finishes gradients once a step.

    Returns:
        Names of the parameters whose gradients `finish_gradients` has to add up.
    """
    ties = _ties(model)
    everyone = model.named_parameters(remove_duplicate=False)
    trained = {name: p.requires_grad for name, p in everyone}
    styles, partial = named(model, plan), set[str]()
    for name, style in styles.items():
        module = model.get_submodule(name)
        own = dict(module.named_parameters(recurse=False))
        if isinstance(style, Replicated):
            style.deferred = deferred
            if style.parts and deferred:
                partial |= {of for of, _ in module.named_parameters(name)}
        parallelize_module(module, tp_mesh, style, src_data_rank=None)
        if hasattr(module, "cut_beside"):
            _cut_beside(module, own, tp_mesh)
    for _, module in list(uncovered(model, styles)):
        deep = isinstance(module, nn.MultiheadAttention)  # it reads weights of its child
        if not any(isinstance(p, DTensor) for p in module.parameters(recurse=False)):
            parallelize_module(module, tp_mesh, Replicated(deep=deep), src_data_rank=None)
    _tie(ties)
    for name, parameter in model.named_parameters():  # torch's styles let all be trained
        parameter.requires_grad_(trained[name])
    return partial


def _cut_beside(module: nn.Module, own: Mapping[str, nn.Parameter], tp_mesh: DeviceMesh) -> None:
    """Cut what a linear map has beside its weight as the map itself says, and not as torch does.

    Args:
        own: the module's parameters as they were.
    """
    weight = module.weight
    assert isinstance(weight, DTensor)
    (how,) = weight.placements
    found = module.cut_beside(how.dim if isinstance(how, Shard) else None)  # type: ignore[operator]
    for name, dim in found.items():
        place = Replicate() if dim is None else Shard(dim)
        cut = distribute_tensor(own[name], tp_mesh, [place], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(cut))


_Place = tuple[nn.Module, str, str]


def _ties(model: nn.Module) -> list[list[_Place]]:
    """Parameters that stand in several places: module, local name, full name of each."""
    places: dict[nn.Parameter, list[_Place]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                full = f"{prefix}.{name}" if prefix else name
                places.setdefault(parameter, []).append((module, name, full))
    return [found for found in places.values() if len(found) > 1]


def _tie(ties: list[list[_Place]]) -> None:
    for (module, name, full), *others in ties:
        first = module._parameters[name]
        assert isinstance(first, DTensor)
        for other, local, other_full in others:
            second = other._parameters[local]
            assert isinstance(second, DTensor)
            if second.placements != first.placements:
                raise UserError(
                    f"tensor plan: {full} and {other_full} are one parameter, but the plan cuts "
                    f"the one {first.placements[0]} and the other {second.placements[0]}; give "
                    f"both modules styles that cut alike: an embedding RowwiseParallel where the "
                    f"head is ColwiseParallel"
                )
            other._parameters[local] = first


def loss_context(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """Stands round forward, loss and backward: `F.cross_entropy` then never gathers the logits.

    Where the model gives its logits as a DTensor, cut by classes. It must not be entered twice.
    """
    cut = (s for s in plan.values() if isinstance(s, ColwiseParallel) and not s.use_local_output)
    context: contextlib.AbstractContextManager[None] = (
        loss_parallel() if any(True for _ in cut) else contextlib.nullcontext()
    )
    return context


def plain(loss: torch.Tensor) -> torch.Tensor:
    """The loss as an ordinary tensor, the same on every tensor-parallel rank; differentiable."""
    if not isinstance(loss, DTensor):
        return loss
    whole: torch.Tensor = loss.full_tensor()
    return whole
