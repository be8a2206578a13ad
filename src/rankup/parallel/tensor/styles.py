"""A plan's word -> what torch's tensor parallelism does to the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from ...base.errors import UserError
from .draws import OwnDraws
from .held import Held
from .words import Word

SEQUENCE = Shard(1)


def style_of(word: Word, module: nn.Module) -> ParallelStyle:
    """The style that a word means for this module."""
    if isinstance(module, nn.Dropout) and word.name in ("sequence", "dropout"):
        return OwnDraws()
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
    "dropout": OwnDraws,
}
