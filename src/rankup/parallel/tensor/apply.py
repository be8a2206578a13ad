"""A plan applied to a model, or to the part of it that a rank holds, word by word."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from ...base.errors import UserError
from .words import Plan, Word, named, uncovered

SEQUENCE = Shard(1)


def apply(model: nn.Module, plan: Plan, tp_mesh: DeviceMesh) -> None:
    """Cut `model` over `tp_mesh` in place; afterwards each parameter is a DTensor on it.

    Call `check` with the whole model first: here patterns that find nothing are those of other
    pipeline stages. Works on meta tensors; real ones must be equal on all ranks, and nothing is
    sent. What is tied stays tied.

    Args:
        tp_mesh: one axis.
    """
    ties = _ties(model)
    everyone = model.named_parameters(remove_duplicate=False)
    trained = {name: p.requires_grad for name, p in everyone}
    words = named(model, plan)
    for name, word in words.items():
        module = model.get_submodule(name)
        own = dict(module.named_parameters(recurse=False))
        parallelize_module(module, tp_mesh, style_of(word, module), src_data_rank=None)
        if hasattr(module, "cut_beside"):
            _cut_beside(module, own, tp_mesh)
    for _, module in list(uncovered(model, words)):
        deep = isinstance(module, nn.MultiheadAttention)  # it reads weights of its child
        if not any(isinstance(p, DTensor) for p in module.parameters(recurse=False)):
            style = Held(partial=False, deep=deep)
            parallelize_module(module, tp_mesh, style, src_data_rank=None)
    _tie(ties)
    for name, parameter in model.named_parameters():  # torch's styles let all be trained
        parameter.requires_grad_(trained[name])


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
                    f"both modules words that cut alike (embedding and loss-parallel do)"
                )
            other._parameters[local] = first


def is_loss_parallel(plan: Plan) -> bool:
    """Return True if the model gives its logits as a DTensor, cut by classes."""
    return any(text.startswith("loss-parallel") for text in plan.values())


def loss_context(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """Stands round forward, loss and backward: `F.cross_entropy` then never gathers the logits.

    It must not be entered twice.
    """
    if not is_loss_parallel(plan):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = loss_parallel()
    return context


def plain(loss: torch.Tensor) -> torch.Tensor:
    """The loss as an ordinary tensor, the same on every tensor-parallel rank; differentiable."""
    if not isinstance(loss, DTensor):
        return loss
    whole: torch.Tensor = loss.full_tensor()
    return whole


def style_of(word: Word, module: nn.Module) -> ParallelStyle:
    """The style that a word means for this module."""
    if isinstance(module, nn.Dropout) and word.name == "sequence":
        return PartOfDraws(SEQUENCE.dim)
    return _STYLES[word.name]()


class ToSequence(ParallelStyle):
    """An embedding that every rank has, looked up for the rank's part of the sequence alone."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            whole = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(whole, parameter.requires_grad))

        def take(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            check_length(inputs[0], device_mesh)
            whole = DTensor.from_local(inputs[0], device_mesh, [Replicate()], run_check=False)
            return (whole.redistribute(placements=[SEQUENCE]), *inputs[1:])

        def give(_: nn.Module, __: tuple[Any, ...], output: DTensor) -> torch.Tensor:
            local: torch.Tensor = output.to_local()
            return local

        module.register_forward_pre_hook(take)
        module.register_forward_hook(give)
        return module


class RowsToSequence(RowwiseParallel):
    """An embedding cut by rows, whose sum over the ranks is handed out in parts of the sequence."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate(), output_layouts=SEQUENCE)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def look(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            check_length(inputs[0], device_mesh)

        module.register_forward_pre_hook(look)
        return super()._apply(module, device_mesh)


class Gather(ParallelStyle):
    """Bring the parts of the sequence together in front of a module.

    What is inside gets a DTensor, so that the gradients of several maps are added up before the
    one reduce-scatter of the backward.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            part = DTensor.from_local(inputs[0], device_mesh, [SEQUENCE], run_check=False)
            return (part.redistribute(placements=[Replicate()]), *inputs[1:])

        module.register_forward_pre_hook(gather)
        return module


def check_length(tokens: torch.Tensor, mesh: DeviceMesh) -> None:
    """Raises:
    UserError: the sequence does not come out even over the tensor-parallel ranks.
    """
    if tokens.ndim < 2 or tokens.shape[1] % mesh.size():
        raise UserError(
            f"tensor parallelism over {mesh.size()} ranks cuts dimension 1, the sequence, into "
            f"equal parts; the model got token numbers of shape {tuple(tokens.shape)}. Take a "
            f"sequence length that is a multiple of {mesh.size()}, or another --tp"
        )


class Held(ParallelStyle):
    """Parameters become DTensors; while the module runs, it sees the ordinary tensors in them.

    Any forward works so, also one that reads the weights of modules inside it.

    Args:
        partial: ranks compute on different parts, so that their gradients add up.
        deep: also the modules inside.
    """

    def __init__(self, *, partial: bool, deep: bool = True) -> None:
        self.partial = partial
        self.deep = deep

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        owners = list(module.modules()) if self.deep else [module]
        for owner in owners:
            for name, parameter in list(owner.named_parameters(recurse=False)):
                whole = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
                owner.register_parameter(name, nn.Parameter(whole, parameter.requires_grad))
        gradient = Partial() if self.partial else Replicate()
        inner = module.forward

        # Not as hooks: what computes a forward a second time, in the backward, skips those.
        @functools.wraps(inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            held: list[tuple[nn.Module, str, Any]] = [
                (owner, name, parameter)
                for owner in owners
                for name, parameter in owner._parameters.items()
                if isinstance(parameter, DTensor)
            ]
            local: dict[int, torch.Tensor] = {}
            for _, _, parameter in held:  # one that stands twice is one tensor
                if id(parameter) not in local:
                    local[id(parameter)] = parameter.to_local(grad_placements=[gradient])
            for owner, name, parameter in held:
                owner._parameters[name] = local[id(parameter)]  # type: ignore[assignment]
            try:
                return inner(*args, **kwargs)
            finally:
                for owner, name, parameter in held:
                    owner._parameters[name] = parameter

        module.forward = forward  # type: ignore[method-assign]
        return module


class PartOfDraws(ParallelStyle):
    """A dropout of which a rank has a part: it draws the mask of the whole, and uses its own part.

    The ranks of a tensor-parallel group start a micro-batch from the same random state. So they
    leave it in the same one, drop what a single rank would, and no generator is touched, which
    could not be compiled.

    Args:
        dim: along which a rank has a part.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, nn.Dropout)
        inner = module.forward
        rank, size, dim = device_mesh.get_local_rank(), device_mesh.size(), self.dim

        @functools.wraps(inner)
        def forward(x: torch.Tensor) -> torch.Tensor:
            if not module.training or not 0.0 < module.p < 1.0:
                return inner(x)
            shape, mine = list(x.shape), x.shape[dim]
            shape[dim] = size * mine
            drawn = F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), module.p)
            # One byte a number is kept for the backward, and not the whole that it was cut from.
            kept = drawn.narrow(dim, rank * mine, mine) != 0
            return torch.where(kept, x, 0.0) * (1.0 / (1.0 - module.p))

        module.forward = forward  # type: ignore[assignment, method-assign]
        return module


_STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "column": ColwiseParallel,
    "column-gathered": lambda: ColwiseParallel(output_layouts=Replicate()),
    "row": RowwiseParallel,
    "row-split": lambda: RowwiseParallel(input_layouts=Replicate()),
    "row-sequence": lambda: RowwiseParallel(output_layouts=SEQUENCE),
    "embedding": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding-sequence": RowsToSequence,
    "embedding-column": lambda: ColwiseParallel(output_layouts=Replicate()),
    "positions-sequence": ToSequence,
    "sequence": lambda: SequenceParallel(use_local_output=True),
    "gather-sequence": Gather,
    "loss-parallel": lambda: ColwiseParallel(use_local_output=False),
    "loss-parallel-sequence": lambda: ColwiseParallel(
        input_layouts=SEQUENCE, use_local_output=False
    ),
    "replicate": lambda: Held(partial=False),
    "replicate-partial": lambda: Held(partial=True),
    "dropout": lambda: PartOfDraws(dim=-1),
}
