"""Styles of tensor parallelism beside torch's: for norms, dropout and embeddings on a cut sequence.

A plan maps patterns of module names to styles, torch's `ColwiseParallel` and `RowwiseParallel` and
these. What flows between modules is *whole* (every rank has all of it), cut by *features* (a slice
of the last dimension) or a *part of the sequence* (a slice of dimension 1).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel

from ...base.errors import UserError

SEQUENCE = Shard(1)


class Replicated(ParallelStyle):
    """Parameters that every rank has whole, here and in all modules inside.

    They become DTensors; while the module runs, it sees the ordinary tensors in them. Any forward
    works so, also one that reads the weights of modules inside it.

    Args:
        parts: ranks compute on different parts, of the sequence or of the features, so that their
            gradients add up; else all compute the same.
        deep: also the modules inside.

    Attributes:
        deferred: gradients stay a rank's own until `finish_gradients` adds up all of a step in one
            message; else a gradient says itself (`Partial`) that it is not added up yet.
    """

    def __init__(self, *, parts: bool = False, deep: bool = True) -> None:
        super().__init__()
        self.parts, self.deep, self.deferred = parts, deep, False

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        owners = list(module.modules()) if self.deep else [module]
        for owner in owners:
            _replicate(owner, device_mesh)
        gradient: Placement = Partial() if self.parts and not self.deferred else Replicate()
        if type(module) in (nn.LayerNorm, nn.RMSNorm):
            # A function of Python's: of a `partial` Dynamo makes a graph for each block.
            def normalize(x: torch.Tensor) -> torch.Tensor:
                return _norm(module, gradient, x)

            module.forward = normalize  # type: ignore[assignment, method-assign]
            return module
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


def _norm(module: Any, gradient: Placement, x: torch.Tensor) -> torch.Tensor:
    """What a norm computes; where it is checkpointed and compiled no parameter may be exchanged."""

    def local(parameter: torch.Tensor | None) -> torch.Tensor | None:
        if not isinstance(parameter, DTensor):
            return parameter
        whole: torch.Tensor = parameter.to_local(grad_placements=[gradient])
        return whole

    weight = local(module.weight)
    if isinstance(module, nn.LayerNorm):
        bias = local(module.bias)
        return F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    return F.rms_norm(x, module.normalized_shape, weight, module.eps)


def _replicate(module: nn.Module, device_mesh: DeviceMesh) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        whole = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(whole, parameter.requires_grad))


class PositionsToSequence(Replicated):
    """An embedding that every rank has, looked up for the rank's part of the sequence alone."""

    def __init__(self) -> None:
        super().__init__(parts=True)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        super()._apply(module, device_mesh)
        inner, rank, size = module.forward, device_mesh.get_local_rank(), device_mesh.size()

        @functools.wraps(inner)
        def forward(positions: torch.Tensor) -> Any:
            check_length(positions, size)
            return inner(positions.chunk(size, dim=SEQUENCE.dim)[rank])

        module.forward = forward  # type: ignore[assignment, method-assign]
        return module


class EmbeddingToSequence(RowwiseParallel):
    """An embedding cut by rows, whose sum over the ranks is handed out in parts of the sequence."""

    def __init__(self) -> None:
        super().__init__(input_layouts=Replicate(), output_layouts=SEQUENCE)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def look(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            check_length(inputs[0], device_mesh.size())

        module.register_forward_pre_hook(look)
        return super()._apply(module, device_mesh)


class GatherSequence(ParallelStyle):
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


def check_length(tokens: torch.Tensor, size: int) -> None:
    """Raises:
    UserError: the sequence does not come out even over the tensor-parallel ranks.
    """
    if tokens.ndim < 2 or tokens.shape[1] % size:
        raise UserError(
            f"tensor parallelism over {size} ranks cuts dimension 1, the sequence, into "
            f"equal parts; the model got token numbers of shape {tuple(tokens.shape)}. Take a "
            f"sequence length that is a multiple of {size}, or another --tp"
        )


class PartOfDropout(ParallelStyle):
    """A dropout of which a rank has a part: it draws the mask of the whole, and uses its own part.

    The ranks of a tensor-parallel group start a micro-batch from the same random state. So they
    leave it in the same one, drop what a single rank would, and no generator is touched, which
    could not be compiled.

    Args:
        dim: along which a rank has a part: 1, the sequence, or -1, the features.
    """

    def __init__(self, dim: int = SEQUENCE.dim) -> None:
        super().__init__()
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
