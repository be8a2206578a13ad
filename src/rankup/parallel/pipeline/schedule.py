"""torch's stages and schedules around ours, so that they take any batch and any loss.

torch cuts tensors into chunks and passes those on. Here it is given the chunks' numbers: the first
stage and the loss look up what belongs to a number.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from ..choices import stages_per_rank, torch_name
from ..sharded import sharded_parts
from .stage import StageModule


class Entry(nn.Module):
    """What torch's stage calls: a stage, the first one on what belongs to a number.

    It hides the stage's modules from torch, which else exchanges the gradients of sharded ones
    itself, once per call of a schedule, and clears them as it looks for shapes.
    """

    def __init__(
        self,
        stage: StageModule,
        args_of: Callable[[int], tuple[Any, ...]],
    ) -> None:
        super().__init__()
        self._stage = (stage,)  # in a tuple, it is no submodule
        self._args_of = args_of

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._stage[0].parameters(recurse)

    def forward(self, *values: Any) -> Any:
        (stage,) = self._stage
        if stage.is_first:
            values = self._args_of(int(values[0]))
        return stage(*values)


class Stage(PipelineStage):
    """torch's stage, which also exchanges sharded gradients once.

    Args:
        backwards_left: backwards of a stage to come in this step, over all calls of schedules.
    """

    def __init__(
        self,
        entry: Entry,
        stage: StageModule,
        device: torch.device,
        group: dist.ProcessGroup,
        backwards_left: Callable[[int], int],
    ) -> None:
        super().__init__(entry, stage.index, stage.count, device, group=group)
        self._module = (stage,)
        self._backwards_left = backwards_left

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        if not self.has_backward:
            return
        if self._backwards_left(self.stage_index) == 0:
            exchange(self._module[0])
        super().backward_one_chunk(  # type: ignore[no-untyped-call]
            bwd_chunk_id, loss=loss, full_backward=full_backward, last_backward=last_backward
        )


# FSDP2 under a pipeline: parameters are gathered once per step, gradients summed once.
#
# A stage's forward and backward run many times per step. Were each a collective, ranks with more
# chunks, or chunks of another shape, would wait for ranks that have none. So from the first forward
# of a step on the parameters stay whole, gradients add up unreduced, and the last backward alone
# exchanges them: what the data ranks do together does not depend on how many chunks each has.


def hold(stage: nn.Module) -> None:
    """From now on parameters stay whole and gradients are not exchanged."""
    for module in sharded_parts(stage):
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)
        module.set_requires_gradient_sync(False, recurse=False)
        module.set_is_last_backward(False)


def exchange(stage: nn.Module) -> None:
    """The backward that comes next sums the gradients.

    Parameters stay whole also in it: what one block gave back, FSDP would gather again for a
    neighbour that it takes for the next.
    """
    for module in sharded_parts(stage):
        module.set_requires_gradient_sync(True, recurse=False)
        module.set_is_last_backward(True)


def placement(name: str, pp: int) -> tuple[int, ...]:
    """For each stage of the model, in order, the place on the pp axis of the rank that holds it.

    Interleaved schedules deal the stages in rounds, as cards.
    """
    return tuple(range(pp)) * stages_per_rank(name)


def padded(name: str, chunks: int, pp: int) -> int:
    """The next number of chunks that the schedule can run, `chunks` or a little more."""
    if torch_name(name) == "Interleaved1F1B":
        while chunks % max(1, chunks // pp):
            chunks += 1
    return chunks


class Schedule:
    """One schedule for a number of chunks of equal shape.

    Args:
        chunks: how many; some schedules need a few more, see `padded`.
        loss_of: (output of the last stage, number of the chunk) -> loss to run backward from.
    """

    def __init__(
        self,
        name: str,
        chunks: int,
        stages: Sequence[Stage],
        loss_of: Callable[[Any, int], torch.Tensor],
    ) -> None:
        called = torch_name(name)
        self.chunks = padded(name, chunks, stages[0].group_size)
        # 1F1B keeps fewer chunks alive than GPipe, if there are more chunks than stages; torch
        # refuses it below that, where the two differ in nothing but name.
        if called == "1F1B" and self.chunks < stages[0].num_stages:
            called = "GPipe"
        self._stages = stages
        kind: Any = get_schedule_class(called)
        self._torch = kind(
            list(stages) if len(stages) > 1 else stages[0],
            n_microbatches=self.chunks,
            loss_fn=lambda output, index: loss_of(output, int(index)),
            scale_grads=False,
        )
        takes = inspect.signature(kind.step).parameters
        # Outputs are not needed here; versions of torch that cannot leave them out merge them.
        self._options = {"return_outputs": False} if "return_outputs" in takes else {}

    def run(self, train: bool) -> None:
        """All chunks forward and, in training, backward."""
        numbers = torch.arange(self.chunks)
        first = any(stage.is_first for stage in self._stages)
        last = any(stage.is_last for stage in self._stages)
        step = self._torch.step if train else self._torch.eval
        with warnings.catch_warnings():
            # Where an activation is no leaf torch says that it keeps its gradient; it may.
            warnings.filterwarnings("ignore", message=".*retain_grad.*")
            step(*([numbers] if first else []), target=numbers if last else None, **self._options)
        for stage in self._stages:
            stage.clear_runtime_states()  # or the last outputs stay in memory until the next step
