"""One optimizer step over a global batch, of which each rank computes its part."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..runtime.keys import derive, reseed
from ..runtime.statistics import RunningStatistics
from ..runtime.world import World
from .evaluate import to_device
from .late import Clock, Late
from .options import TrainOptions
from .plan import Step
from .schedule import learning_rate
from .stop import Stop
from .task import Batch, Task
from .trace import Trace


@dataclass
class Taken:
    """A step that was taken, and its numbers, which are read one step late.

    Attributes:
        count: valid targets of the global batch.
        late: summed loss, ranks whose loss is not finite, wishes to stop, seconds that all
            ranks waited for data, gradient norm.
        losses: summed loss of each micro-batch this rank computed.
        dealt: the micro-batches this rank computed.
        clock: how long the step took.
        valid_loss: where a validation followed.
    """

    step: Step
    lr: float
    count: int
    late: Late
    losses: list[torch.Tensor]
    dealt: range
    clock: Clock
    valid_loss: float | None = None


class Stepper:
    """Takes the steps of one life of a run.

    Args:
        model: what the user built; `replica` is what training goes through.
        last: number of the run's last step, for the learning rate.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        world: World,
        model: nn.Module,
        replica: nn.Module,
        optimizer: torch.optim.Optimizer,
        trace: Trace,
        last: int,
    ) -> None:
        self.task, self.options, self.world = task, options, world
        self.replica, self.optimizer = replica, optimizer
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.statistics = RunningStatistics(model)
        self.trace = trace
        self.last = last

    def take(self, step: Step, stop: Stop) -> Taken:
        """Forward, backward and update; gradients are exchanged once."""
        clock = Clock(self.world.device)
        options, world = self.options, self.world
        lr = learning_rate(step.number, self.last, options.lr, options.warmup, options.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Summed losses over the global count make uneven dealing exact; DDP's mean over the ranks
        # takes a factor of world_size back out.
        count = self.task.train.count(step.samples)
        scale = world.world_size / max(1, count)
        dealt = step.dealt(world.rank, world.world_size)
        # A rank without work goes through one micro-batch with weight zero, to join the exchange.
        indices, weight = (dealt, 1.0) if dealt else (range(1), 0.0)
        losses: list[torch.Tensor] = []
        waited = 0.0
        self.statistics.begin_step()
        for index in indices:
            fetching = time.perf_counter()
            positions = step.micro_batches[index]
            samples = step.samples[positions.start : positions.stop]
            batch = to_device(self.task.train.batch(samples), world.device)
            waited += time.perf_counter() - fetching
            # Dropout belongs to the micro-batch, whichever rank computes it.
            reseed(derive(options.seed, "micro-batch", step.number, index), world.device)
            last = index == indices[-1]
            with self._exchange_at(last):
                loss = self.loss(self.replica, batch)
                if weight:
                    losses.append(loss.detach())
                    self.trace.drew(samples)
                    self.statistics.collect()
                if last:  # the one small reduction runs beside the backward
                    packed, work = self._reduce(losses, waited, stop)
                (loss * (scale * weight)).backward()
            self.statistics.rewind()
        norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if work is not None:
            work.wait()  # it was under way before the gradients, so it is here with them
        self.statistics.end_step(packed[4:], len(step.micro_batches))
        clock.stop()
        return Taken(step, lr, count, Late(packed[:4], norm), losses, dealt, clock)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The task's summed loss, in the precision that was asked for."""
        if self.options.precision == "fp32":
            return self.task.loss(model, batch)
        with torch.autocast(self.world.device.type, dtype=torch.bfloat16):
            return self.task.loss(model, batch)

    def settle_buckets(self, step: Step) -> None:
        """Let DDP arrange its gradient buckets before the first `step` of a resumed life.

        DDP lays them out anew after its first backward, and on three ranks or more the layout
        decides the order in which gradients are added up. One backward of weight zero brings a
        resumed run to the layout the uninterrupted one has.
        """
        samples = step.samples[: len(step.micro_batches[0])]
        batch = to_device(self.task.train.batch(samples), self.world.device)
        self.statistics.begin_step()
        (self.loss(self.replica, batch) * 0.0).backward()
        self.statistics.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _clip(self) -> torch.Tensor:
        """Global norm of the gradient before clipping; a check on it where none is asked for."""
        if self.options.clip:
            return nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
        return nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def _exchange_at(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP exchanges gradients in the backward of the last micro-batch alone."""
        if last or self.world.world_size == 1:
            return contextlib.nullcontext()
        return self.replica.no_sync()  # type: ignore[operator]

    def _reduce(
        self, losses: list[torch.Tensor], waited: float, stop: Stop
    ) -> tuple[torch.Tensor, dist.Work | None]:
        """Start the sum over ranks of loss, flags, waiting time and running statistics."""
        device = self.world.device
        if device.type == "cpu":  # plain numbers: a handful of tiny tensors would cost more
            loss = sum(part.item() for part in losses)
            numbers = [loss, not math.isfinite(loss), stop.wish, waited]
            packed = torch.tensor(numbers, dtype=torch.float64)
        else:
            total = torch.zeros((), dtype=torch.float64, device=device)
            for part in losses:
                total += part
            host = torch.tensor([stop.wish, waited], dtype=torch.float64)
            flags = torch.stack([total, (~torch.isfinite(total)).double()])
            packed = torch.cat([flags, host.to(device, non_blocking=True)])
        if self.statistics.size:
            packed = torch.cat([packed, self.statistics.total(device)])
        if self.world.world_size == 1:
            return packed, None
        return packed, dist.all_reduce(packed, async_op=True)
