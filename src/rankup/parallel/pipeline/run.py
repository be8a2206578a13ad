"""A step of a pipelined model: chunks of a batch go through the stages and back, by torch.

torch's schedules cut tensors into chunks and pass those on. Here they are given the chunks'
numbers: the first stage and the loss look up what belongs to a number. So any batch and any loss
can be pipelined, and all that moves is torch's own.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import DTensor

from ...base.errors import UserError
from ..choices import stages_per_rank, torch_name
from ..sharded import release
from .stage import StageModule

Loss = Callable[[Any, Any], torch.Tensor]
Batch = tuple[torch.Tensor, ...]
# Each keeps buffers for the activations of its chunks; a run has a few shapes, as a rule.
_MOST_SCHEDULES = 8


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


class Pipeline:
    """Runs the stages of a model that this rank and its peers on the pp axis hold.

    Make it when the stages' parameters are where they stay: after tensor parallelism, sharding and
    the draw of initial values. All ranks of the group call `step` and `evaluate` alike. Where
    stages are sharded, all data ranks do, and with equally many batches: torch gathers parameters
    once a call, and adds gradients up behind its last backward.

    Args:
        stages: those of this rank, ascending, as `placement` deals them.
        group: the ranks along the pp axis.
        schedule: gpipe, 1f1b or interleaved.
        rows: samples of a batch that is whole.
    """

    def __init__(
        self,
        stages: Sequence[StageModule],
        group: dist.ProcessGroup,
        device: torch.device,
        schedule: str = "1f1b",
        rows: int = 0,
    ) -> None:
        self.stages, self.group, self.device = list(stages), group, device
        self.schedule, self.rows = schedule, rows
        self.has_last = any(stage.is_last for stage in self.stages)
        self._schedules: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        # What the chunks of the call under way are looked up in.
        self._batches: list[Batch] = []
        self._args: list[tuple[Any, ...]] = []
        self._rows: list[int | None] = []
        self._weights: list[float] = []
        self._loss: Loss | None = None
        self._losses: dict[int, torch.Tensor] = {}
        for stage in self.stages:
            if stage.is_first:  # before FSDP casts what a stage gets
                stage.register_forward_pre_hook(self._look_up, prepend=True)

    def step(
        self, batches: Sequence[Batch], weights: Sequence[float], loss: Loss
    ) -> list[torch.Tensor]:
        """Forward and backward of `weight * loss` for each batch; gradients add up in `.grad`.

        Each batch is one chunk, and all are of one shape; of one with fewer samples than the
        others the last sample is repeated, which its loss does not see.

        Args:
            batches: the same ones on all ranks of the group.
            loss: (model, batch) -> a tensor without dimensions. It calls the model once, with
                positional arguments.

        Returns:
            The losses, detached and without their weights, in order; empty on ranks that do not
            hold the last stage.

        Raises:
            ValueError: no batches, or not as many weights.
            UserError: the batches differ in more than their number of samples.
        """
        if not batches or len(batches) != len(weights):
            raise ValueError(
                f"a step needs a weight for each of its batches, one or more; "
                f"there are {len(batches)} batches and {len(weights)} weights"
            )
        return self._run(list(batches), list(weights), loss, train=True)

    def evaluate(self, batches: Sequence[Batch], loss: Loss) -> list[torch.Tensor]:
        """The losses of the batches, without gradients; empty where the last stage is elsewhere."""
        if not batches:
            return []
        with torch.no_grad():
            found = self._run(list(batches), [1.0] * len(batches), loss, train=False)
        for stage in self.stages:
            release(stage)
        return found

    def _run(
        self, batches: list[Batch], weights: list[float], loss: Loss, train: bool
    ) -> list[torch.Tensor]:
        chunks = padded(self.schedule, len(batches), self.group.size())
        more = chunks - len(batches)
        self._batches, self._weights = batches + batches[-1:] * more, weights + [0.0] * more
        self._loss = loss
        args = [model_args(loss, batch) for batch in self._batches]
        self._args, self._rows = _of_one_shape(args, self.rows)
        try:
            self._call(self._schedule(chunks, _shape(self._args[0]), train), chunks, train)
            return [self._losses[i] for i in range(len(batches))] if self.has_last else []
        finally:
            self._batches, self._weights, self._args, self._rows = [], [], [], []
            self._loss = None
            self._losses.clear()

    def _schedule(self, chunks: int, shape: Any, train: bool) -> tuple[Any, list[PipelineStage]]:
        """torch's schedule, and its stages, for a number of chunks of one shape."""
        key = (chunks, shape, train)
        if key not in self._schedules:
            count = self.stages[0].count
            stages = [
                PipelineStage(stage, stage.index, count, self.device, group=self.group)
                for stage in self.stages
            ]
            name = torch_name(self.schedule)
            # 1F1B keeps fewer chunks alive than GPipe, if there are more chunks than stages; torch
            # refuses it below that, where the two differ in nothing but name.
            if name == "1F1B" and chunks < count:
                name = "GPipe"
            kind: Any = get_schedule_class(name)
            self._schedules[key] = (
                kind(
                    stages if len(stages) > 1 else stages[0],
                    n_microbatches=chunks,
                    loss_fn=lambda output, index: self._loss_of(output, int(index)),
                    scale_grads=False,
                ),
                stages,
            )
        self._schedules.move_to_end(key)
        while len(self._schedules) > _MOST_SCHEDULES:
            self._schedules.popitem(last=False)
        found: tuple[Any, list[PipelineStage]] = self._schedules[key]
        return found

    def _call(self, of: tuple[Any, list[PipelineStage]], chunks: int, train: bool) -> None:
        """All chunks forward and, in training, backward."""
        schedule, stages = of
        numbers = torch.arange(chunks)
        first = any(stage.is_first for stage in self.stages)
        run = schedule.step if train else schedule.eval
        with warnings.catch_warnings():
            # Where an activation is no leaf torch says that it keeps its gradient; it may.
            warnings.filterwarnings("ignore", message=".*retain_grad.*")
            target = numbers if self.has_last else None
            run(*([numbers] if first else []), target=target, return_outputs=False)
        for stage in stages:
            stage.clear_runtime_states()  # or the last outputs stay in memory until the next step

    def _look_up(self, _: nn.Module, values: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        return self._args[int(values[0])]

    def _loss_of(self, output: Any, index: int) -> torch.Tensor:
        assert self._loss is not None
        if (rows := self._rows[index]) is not None:
            parts = output if isinstance(output, tuple) else (output,)
            parts = tuple(part[:rows] for part in parts)
            output = parts if isinstance(output, tuple) else parts[0]
        value = loss_of(self._loss, output, self._batches[index])
        self._losses[index] = value.detach()
        # Zero times the gradient of a mean over nothing would be no number.
        return value * self._weights[index] if self._weights[index] else _nothing(output)


def _of_one_shape(
    args: list[tuple[Any, ...]], least: int
) -> tuple[list[tuple[Any, ...]], list[int | None]]:
    """Arguments of a model, all with as many samples; and how many are real, where some are not.

    Args:
        least: as many samples or more.

    Raises:
        UserError: they differ in more than that.
    """
    rows = [samples(each) for each in args]
    most = max(least, *rows)
    found = [_repeated(each, n, most) for each, n in zip(args, rows, strict=True)]
    shapes = {_shape(each) for each in found}
    if len(shapes) > 1:
        raise UserError(
            "under pipeline parallelism all micro-batches of a step have one shape, but for their "
            f"number of samples; these have {' and '.join(map(str, sorted(shapes, key=str)))}"
        )
    return found, [None if n == most else n for n in rows]


def samples(args: tuple[Any, ...]) -> int:
    """How many samples a model is called with: the size of the first tensor that has one."""
    return next((len(arg) for arg in args if isinstance(arg, torch.Tensor) and arg.ndim), 0)


def _repeated(args: tuple[Any, ...], rows: int, most: int) -> tuple[Any, ...]:
    """The last sample repeated, up to `most`."""

    def more(arg: Any) -> Any:
        if rows == most or not isinstance(arg, torch.Tensor) or not arg.ndim or len(arg) != rows:
            return arg
        return torch.cat([arg, arg[-1:].expand(most - rows, *arg.shape[1:])])

    return tuple(map(more, args))


def _nothing(output: Any) -> torch.Tensor:
    """Zero, with a gradient of zeros whatever the output is."""
    parts = output if isinstance(output, tuple) else (output,)
    local = [part.to_local() if isinstance(part, DTensor) else part for part in parts]
    sums = [part.nan_to_num(0.0, 0.0, 0.0).sum() for part in local if part.is_floating_point()]
    return torch.stack(sums).sum() * 0.0


def _shape(args: tuple[Any, ...]) -> tuple[Any, ...]:
    tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
    return tuple((tuple(t.shape), str(t.dtype)) for t in tensors)


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
