"""A step of a pipelined model: chunks of a batch go through the stages and back."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...base.errors import UserError
from ..sharded import release
from .schedule import Entry, Schedule, Stage, hold, padded
from .stage import StageModule

Loss = Callable[[Any, Any], torch.Tensor]
Batch = tuple[torch.Tensor, ...]
# Each keeps buffers for the activations of its chunks; a run has a few shapes, as a rule.
_KEPT = 8


class Pipeline:
    """Runs the stages of a model that this rank and its peers on the pp axis hold.

    Make it when the stages' parameters are where they stay: after tensor parallelism, sharding and
    the draw of initial values. All ranks of the group call `step` and `evaluate` alike.

    Args:
        stages: those of this rank, ascending, as `schedule.placement` deals them.
        group: the ranks along the pp axis.
        schedule: gpipe, 1f1b or interleaved.
    """

    def __init__(
        self,
        stages: Sequence[StageModule],
        group: dist.ProcessGroup,
        device: torch.device,
        schedule: str = "1f1b",
    ) -> None:
        self.stages, self.group, self.device = list(stages), group, device
        self.schedule = schedule
        self.has_last = any(stage.is_last for stage in self.stages)
        self._schedules: OrderedDict[tuple[Any, ...], Schedule] = OrderedDict()
        # What the chunks of the call under way are looked up in.
        self._batches: list[Batch] = []
        self._weights: list[float] = []
        self._loss: Loss | None = None
        self._losses: dict[int, torch.Tensor] = {}
        self._left: Counter[int] = Counter()

    def step(
        self, batches: Sequence[Batch], weights: Sequence[float], loss: Loss
    ) -> list[torch.Tensor]:
        """Forward and backward of `weight * loss` for each batch; gradients add up in `.grad`.

        Each batch is one chunk. Neighbours of equal shape are in flight together; where the shape
        changes, as at the short end of an epoch, the pipeline runs empty in between. Gradients
        are summed over the data axes once, in the last backward, so data ranks need not have
        equally many chunks, but each at least one (of weight zero, if need be).

        Args:
            batches: the same ones on all ranks of the group.
            loss: (model, batch) -> a tensor without dimensions. It calls the model once, with
                positional arguments.

        Returns:
            The losses, detached and without their weights, in order; empty on ranks that do not
            hold the last stage.

        Raises:
            ValueError: no batches, or not as many weights.
        """
        if not batches or len(batches) != len(weights):
            raise ValueError(
                f"a step needs a weight for each of its batches, one or more; "
                f"there are {len(batches)} batches and {len(weights)} weights"
            )
        return self._run(list(batches), list(weights), loss, train=True)

    def evaluate(self, batches: Sequence[Batch], loss: Loss) -> list[torch.Tensor]:
        """The losses of the batches, without gradients; empty where the last stage is elsewhere.

        Where parameters are sharded, each data rank needs at least one batch.
        """
        if not batches:
            return []
        with torch.no_grad():
            return self._run(list(batches), [1.0] * len(batches), loss, train=False)

    def _run(
        self, batches: list[Batch], weights: list[float], loss: Loss, train: bool
    ) -> list[torch.Tensor]:
        calls = self._calls(batches)
        chunks = sum(padded(self.schedule, len(call), self.group.size()) for call in calls)
        self._left = Counter({stage.index: chunks for stage in self.stages})
        for stage in self.stages:
            hold(stage)
        losses: list[torch.Tensor] = []
        start = 0
        for call in calls:
            part = weights[start : start + len(call)]
            losses += self._call(call, part, loss, train)
            start += len(call)
        for stage in self.stages:
            release(stage)
        return losses

    def _calls(self, batches: list[Batch]) -> list[list[Batch]]:
        """The batches, in runs that go through the pipeline together."""
        return [list(run) for _, run in groupby(batches, key=_shape)]

    def _call(
        self, batches: list[Batch], weights: list[float], loss: Loss, train: bool
    ) -> list[torch.Tensor]:
        schedule = self._schedule(len(batches), _shape(batches[0]), train)
        more = schedule.chunks - len(batches)
        self._batches = batches + batches[-1:] * more
        self._weights = weights + [0.0] * more
        self._loss = loss
        try:
            schedule.run(train)
            return [self._losses[i] for i in range(len(batches))] if self.has_last else []
        finally:
            self._batches, self._weights, self._loss = [], [], None
            self._losses.clear()

    def _schedule(self, chunks: int, shape: Any, train: bool) -> Schedule:
        key = (chunks, shape, train)
        if key not in self._schedules:
            stages = [
                Stage(
                    Entry(stage, self._args_of),
                    stage,
                    self.device,
                    self.group,
                    self._count_backward,
                )
                for stage in self.stages
            ]
            self._schedules[key] = Schedule(self.schedule, chunks, stages, self._loss_of)
        self._schedules.move_to_end(key)
        while len(self._schedules) > _KEPT:
            self._schedules.popitem(last=False)
        return self._schedules[key]

    def _args_of(self, index: int) -> tuple[Any, ...]:
        assert self._loss is not None
        return model_args(self._loss, self._batches[index])

    def _loss_of(self, output: Any, index: int) -> torch.Tensor:
        assert self._loss is not None
        value = loss_of(self._loss, output, self._batches[index])
        self._losses[index] = value.detach()
        # Zero times the gradient of a mean over nothing would be no number.
        return value * self._weights[index] if self._weights[index] else _nothing(output)

    def _count_backward(self, stage: int) -> int:
        self._left[stage] -= 1
        return self._left[stage]


def _nothing(output: Any) -> torch.Tensor:
    """Zero, with a gradient of zeros whatever the output is."""
    parts = output if isinstance(output, tuple) else (output,)
    local = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
    sums = [part.nan_to_num(0.0, 0.0, 0.0).sum() for part in local if part.is_floating_point()]
    return torch.stack(sums).sum() * 0.0


def _shape(batch: Batch) -> tuple[Any, ...]:
    return tuple((tuple(t.shape), t.dtype) for t in batch)


# The two ends of a pipeline, as a task's `loss(model, batch)` sees them: the same function serves
# both. On the first stage its model notes what it is called with, on the last one it answers with
# what came out of the pipeline.


class _Called(Exception):  # noqa: N818 - no error: it leaves `loss` as soon as enough is known
    pass


class _Notes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.args: tuple[Any, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise UserError(
                f"the loss calls the model with the keywords {', '.join(kwargs)}; under pipeline "
                f"parallelism the model takes positional arguments alone: write model(x, y)"
            )
        self.args = args
        raise _Called


class _Answers(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
        self.calls = 0

    def forward(self, *args: Any) -> Any:
        self.calls += 1
        return self.output


def model_args(loss: Loss, batch: Any) -> tuple[Any, ...]:
    """Return the arguments that `loss` calls its model with, for this batch.

    Raises:
        UserError: it does not call the model, or with keywords.
    """
    notes = _Notes()
    try:
        loss(notes, batch)
    except _Called:
        return notes.args
    raise UserError(
        "the loss did not call the model it was given; under pipeline parallelism it must call "
        "model(...) once, with what the first stage needs"
    )


def loss_of(loss: Loss, output: Any, batch: Any) -> torch.Tensor:
    """The loss of a batch whose output the last stage has computed.

    Raises:
        UserError: it calls the model more than once, so that one output cannot answer it.
    """
    answers = _Answers(output)
    value = loss(answers, batch)
    if answers.calls != 1:
        raise UserError(
            f"the loss calls the model {answers.calls} times per batch; under pipeline "
            f"parallelism it can call it once"
        )
    return value
