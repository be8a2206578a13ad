"""One optimizer step over a global batch, of which each rank computes its part."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from ..parallel.build import Built
from ..parallel.gradients import clip, global_norm
from ..runtime.deadline import Deadline
from ..runtime.keys import derive, reseed
from ..runtime.statistics import RunningStatistics
from .ema import Average
from .metrics import Trace
from .optimizer import LossScale, rate, set_rate
from .options import TrainOptions
from .plan import Step
from .profile import Profile
from .start import refuse_unused
from .taken import Clock, Late, Taken
from .task import Batch, Feed, Task, to_device


class Garbage:
    """Python's garbage collector during a run: it never starts by itself.

    It would on each rank in another step, and all ranks wait for each that pauses.
    """

    EVERY = 50  # steps

    def __init__(self) -> None:
        self._enabled, self._held, self._steps = gc.isenabled(), False, 0

    def after(self, step: int) -> None:
        """Behind a step, whose number is the same on all ranks."""
        self._steps += 1
        if self._steps == 2:
            self.hold()  # the optimizer's state and all graphs are there
        elif self._held and step % self.EVERY == 0:
            gc.collect()

    def hold(self) -> None:
        """From now on collect only when told, and leave what is there now aside: it stays."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._held = True

    def release(self) -> None:
        """Leave the collector as it was before the run."""
        if self._held:
            gc.unfreeze()
            if self._enabled:
                gc.enable()


@dataclass
class Turn:
    """What comes together while a step is taken.

    Attributes:
        scale: what a summed loss is multiplied by before its backward.
        losses: of the micro-batches so far; `waited`: seconds for their data.
        spare: of those that are gone through once more, with weight zero. A NaN spoils the
            gradient there, too.
        packed, work: the numbers on their way to all ranks.
    """

    step: Step
    stop: Deadline
    scale: float
    losses: list[torch.Tensor] = field(default_factory=list)
    spare: list[torch.Tensor] = field(default_factory=list)
    waited: float = 0.0
    packed: torch.Tensor | None = None
    work: dist.Work | None = None


class Stepper:
    """Takes the steps of one attempt of a run.

    Args:
        built: the model on the ranks of its mesh.
        last: number of the run's last step, for the learning rate.

    Attributes:
        trace: where the samples of each step are noted.
        feed: where batches come from.
        profile: what watches the steps, if anything.
        average: of the weights, if the run has one.
        scale: of the loss, under float16.
        garbage: when Python collects it.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        built: Built,
        optimizer: torch.optim.Optimizer,
        last: int,
    ) -> None:
        self.task, self.options, self.built, self.mesh = task, options, built, built.mesh
        self.world = built.mesh.world
        self.optimizer = optimizer
        self.parameters = [p for p in built.model.parameters() if p.requires_grad]
        self.statistics = RunningStatistics(built.model)
        self.trace = Trace(None, self.world, 0)
        self.profile: Profile | None = None
        self.feed = Feed(task.train)
        self.last = last
        self.garbage = Garbage()
        self._first, self._taken = True, False
        self._clock: Clock | None = None
        self.average: Average | None = None
        self.scale = LossScale() if options.precision == "fp16" else None

    def take(self, step: Step, stop: Deadline) -> Taken:
        """Forward, backward and update."""
        with self.profile.of(step.number) if self.profile else nullcontext():
            taken = self._take(step, stop)
        self.trace.write(step)
        if self._first:
            self.built.refuse_uncompiled()
            self._first = False
        self.garbage.after(step.number)
        return taken

    def pause(self) -> None:
        """Something else lies between the last step and the next, which begins with its own."""
        self._clock = None

    def _take(self, step: Step, stop: Deadline) -> Taken:
        clock = Clock(self.world.device, self._clock)
        lr = self.learning_rate(step)
        # Summed losses over the count of all that step together make uneven dealing exact.
        mine = self._of_my_copy(step) if self.mesh.apart else range(len(step.micro_batches))
        count = self.task.train.count(step.drawn(mine))
        scale = None if self.scale is None else self.scale.value
        turn = Turn(step, stop, self.built.sum_of_gradients / max(1, count) * (scale or 1.0))
        self.statistics.begin_step()
        if self.built.pipeline is not None:
            self._through_pipeline(turn)
        else:
            self._through_model(turn)
        assert turn.packed is not None
        if not self._taken and self.built.has_buckets:
            refuse_unused(self.built.model)
            self._taken = True
        self.built.finish_gradients()
        if self.scale is not None:
            self.scale.unscale(self.parameters)
        norm = self.clip()
        overflowed = self.scale is not None and self.scale.overflowed(norm)
        if mine and not overflowed:  # a copy without work has nothing to learn from this step
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if turn.work is not None:
            turn.work.wait()  # it was under way before the gradients, so it is here with them
        if mine:
            self.statistics.end_step(turn.packed[4:], len(mine))
        if self.average is not None and not overflowed:
            self.average.update()
        clock.stop()
        self._clock = clock
        dealt = step.dealt(self.mesh.data_rank, self.mesh.data_size)
        targets = self.task.train.count(step.samples)
        losses = turn.losses + turn.spare
        taken = Taken(step, lr, targets, Late(turn.packed[:4], norm), losses, dealt, clock)
        taken.loss_scale = scale
        return taken

    def _of_my_copy(self, step: Step) -> range:
        """The micro-batches of the ranks that share this copy of the model."""
        size, ranks = self.mesh.data_size, self.mesh.at_step.dp_shard
        first = self.mesh.dp_replicate * ranks
        return range(step.dealt(first, size).start, step.dealt(first + ranks - 1, size).stop)

    def learning_rate(self, step: Step) -> float:
        """Set and return that of a step."""
        lr = rate(step.number, self.last, self.options)
        set_rate(self.optimizer, lr)
        return lr

    def coming(self, steps: Iterable[Step]) -> Iterator[torch.Tensor]:
        """Samples of the micro-batches that this rank computes, for `Feed`."""
        for step in steps:
            for index, _ in self._rounds(step):
                yield step.drawn(range(index, index + 1))

    def _rounds(self, step: Step) -> list[tuple[int, float]]:
        """Micro-batches and their weights; a rank without work joins the exchange with zero."""
        rank, size = self.mesh.data_rank, self.mesh.data_size
        if self.mesh.together and self.built.pipeline is None:
            return step.rounds(rank, size)
        return [(index, 1.0) for index in step.dealt(rank, size)] or [(0, 0.0)]

    def _through_model(self, turn: Turn) -> None:
        """One micro-batch after the other, forward and backward."""
        rounds = self._rounds(turn.step)
        for number, (index, weight) in enumerate(rounds):
            last = number == len(rounds) - 1
            samples, batch = self._fetch(turn, index)
            self._reseed(turn.step, index)
            with self.built.exchange_at(last), self.built.computing():
                loss = self.loss(self.built.replica, batch)
                if weight:
                    self._note(turn, loss, samples)
                    self.statistics.collect()
                else:
                    turn.spare.append(loss.detach())
                if last:  # the one small reduction runs beside the backward
                    self._reduce(turn)
                (loss * (turn.scale * weight)).backward()
            self.statistics.rewind()

    def _through_pipeline(self, turn: Turn) -> None:
        """All micro-batches as chunks of one pipelined step."""
        pipeline = self.built.pipeline
        assert pipeline is not None
        rounds = self._rounds(turn.step)
        fetched = [self._fetch(turn, index) for index, _ in rounds]
        self._reseed(turn.step, rounds[0][0])
        weights = [turn.scale * weight for _, weight in rounds]
        with self.built.computing():
            losses = pipeline.step([batch for _, batch in fetched], weights, self.loss)
        # Stages before the last have no losses; the samples are noted where the losses are.
        for loss, (samples, _), (_, weight) in zip(losses, fetched, rounds, strict=False):
            if weight:
                self._note(turn, loss, samples)
            else:
                turn.spare.append(loss.detach())
        self._reduce(turn)

    def _fetch(self, turn: Turn, index: int) -> tuple[torch.Tensor, Batch]:
        began = time.perf_counter()
        positions = turn.step.micro_batches[index]
        samples = turn.step.samples[positions.start : positions.stop]
        batch = to_device(self.feed.batch(samples), self.world.device)
        turn.waited += time.perf_counter() - began
        return samples, batch

    def _reseed(self, step: Step, index: int) -> None:
        """Dropout belongs to the micro-batch, whichever rank computes it."""
        place = self.built.draws_apart
        reseed(
            derive(self.options.seed, "micro-batch", step.number, step.first + index, *place),
            self.world.device,
        )

    def _note(self, turn: Turn, loss: torch.Tensor, samples: torch.Tensor) -> None:
        """Keep a loss where it counts: ranks that computed the same one must not add it twice."""
        turn.losses.append(loss.detach())
        if self.built.counts_samples:
            self.trace.drew(samples)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The task's summed loss, in the precision that was asked for."""
        batch = tuple(self.mesh.sequence.mine(tensor) for tensor in batch)
        return self.built.plain(self.task.loss(model, batch))

    def settle_buckets(self, step: Step) -> None:
        """Let DDP arrange its gradient buckets before the first `step` of a resumed attempt.

        DDP lays them out anew after its first backward, and on three ranks or more the layout
        decides the order in which gradients are added up. One backward of weight zero brings a
        resumed run to the layout the uninterrupted one has.
        """
        samples = step.samples[: len(step.micro_batches[0])]
        batch = to_device(self.task.train.batch(samples), self.world.device)
        self.statistics.begin_step()
        (self.loss(self.built.replica, batch) * 0.0).backward()
        self.statistics.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def clip(self) -> torch.Tensor:
        """Global norm of the gradient before clipping; a check on it where none is asked for."""
        norm = global_norm(self.parameters, self.mesh, self.built.copied)
        if self.options.clip:
            clip(self.parameters, norm, self.options.clip)
        return norm

    def _reduce(self, turn: Turn) -> None:
        """Start the sum over ranks of loss, flags, waiting time and running statistics."""
        device = self.world.device
        losses, spare = (turn.losses, turn.spare) if self.built.counts else ([], [])
        wish = turn.stop.wish
        if device.type == "cpu":  # plain numbers: a handful of tiny tensors would cost more
            loss = sum(part.item() for part in losses)
            finite = all(map(math.isfinite, (loss, *(part.item() for part in spare))))
            numbers = [loss, not finite, wish, turn.waited]
            packed = torch.tensor(numbers, dtype=torch.float64)
        else:
            total = torch.zeros((), dtype=torch.float64, device=device)
            for part in losses:
                total += part
            host = torch.tensor([wish, turn.waited], dtype=torch.float64)
            sound = torch.stack([total, *spare]).isfinite().all()
            flags = torch.stack([total, (~sound).double()])
            packed = torch.cat([flags, host.to(device, non_blocking=True)])
        if self.statistics.size:
            packed = torch.cat([packed, self.statistics.total(device)])
        turn.packed = packed
        if self.mesh.at_step.world_size > 1:
            turn.work = dist.all_reduce(packed, group=self.mesh.step_group, async_op=True)
