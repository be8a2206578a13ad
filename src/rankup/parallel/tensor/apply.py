"""A plan applied to a model, or to the part of it that a rank holds."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from ...base.errors import UserError
from .held import Held
from .styles import style_of
from .words import Plan, named, uncovered


def apply(model: nn.Module, plan: Plan, tp_mesh: DeviceMesh) -> None:
    """Cut `model` over `tp_mesh` in place; afterwards each parameter is a DTensor on it.

    Call `check` with the whole model first: here patterns that find nothing are those of other
    pipeline stages. Works on meta tensors; real ones must be equal on all ranks, and nothing is
    sent. What is tied stays tied.

    Args:
        tp_mesh: one axis.
    """
    ties = _ties(model)
    words = named(model, plan)
    for name, word in words.items():
        module = model.get_submodule(name)
        parallelize_module(module, tp_mesh, style_of(word, module), src_data_rank=None)
    for _, module in list(uncovered(model, words)):
        deep = isinstance(module, nn.MultiheadAttention)  # it reads weights of its child
        if not any(isinstance(p, DTensor) for p in module.parameters(recurse=False)):
            style = Held(partial=False, deep=deep)
            parallelize_module(module, tp_mesh, style, src_data_rank=None)
    _tie(ties)


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
                    f"both modules words that cut alike (embedding and loss-parallel do)"
                )
            other._parameters[local] = first
