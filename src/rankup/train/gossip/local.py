"""A worker's own optimizer step, over the share of a global batch that it has drawn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ...base.errors import RunFailed
from ...parallel.build import Built
from ...runtime.keys import derive, reseed
from ...runtime.statistics import RunningStatistics
from ..evaluate import to_device
from ..feed import Feed
from ..optimizer import set_rates
from ..options import TrainOptions
from ..plan import Step
from ..schedule import rates
from ..task import Batch, Task
from .tickets import Ticket


@dataclass(frozen=True)
class Done:
    """What a worker did with a ticket.

    Attributes:
        loss: per valid target of the share, before the update.
        count: valid targets of the share.
        seconds: of the step, `waited` of them for data.
    """

    ticket: Ticket
    loss: float
    count: int
    lr: float
    norm: float
    seconds: float
    waited: float


class LocalStep:
    """Takes one worker's steps.

    Args:
        last: number of the run's last step, for the learning rate.
        who: this worker, for messages.
        moved: called for each micro-batch, also of an evaluation.
    """

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        built: Built,
        optimizer: torch.optim.Optimizer,
        last: int,
        who: str,
        moved: Callable[[], None],
    ) -> None:
        self._task, self._options, self._built = task, options, built
        self._optimizer, self._last, self._who = optimizer, last, who
        self._moved = moved
        self._device = built.mesh.world.device
        self._parameters = [p for p in built.model.parameters() if p.requires_grad]
        self._statistics = RunningStatistics(built.model)
        self._feed = Feed(task.train, options.seed)
        self.drawn: list[torch.Tensor] = []  # samples of the last step

    def take(self, ticket: Ticket) -> Done:
        """Forward, backward and update. The share must not be empty.

        Raises:
            RunFailed: loss or gradient is not finite; the model is as it was.
        """
        began, waited = time.perf_counter(), 0.0
        step = ticket.step
        self.drawn = [step.samples[p.start : p.stop] for p in self._positions(ticket)]
        lr = self._learning_rate(step)
        count = sum(self._task.train.count(samples) for samples in self.drawn)
        self._statistics.begin_step()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for index, samples in zip(ticket.share, self.drawn, strict=True):
            before = time.perf_counter()
            batch = to_device(self._feed.once(step.after.epoch, samples), self._device)
            waited += time.perf_counter() - before
            # Dropout belongs to the micro-batch, whoever computes it.
            reseed(derive(self._options.seed, "micro-batch", step.number, index), self._device)
            loss = self.loss(self._built.model, batch)
            self._statistics.collect()
            (loss / max(1, count)).backward()
            self._statistics.rewind()
            total += loss.detach()
        norm = self._clip()
        mean = total.item() / max(1, count)
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise RunFailed(
                f"step {step.number}: the {'gradient norm' if math.isfinite(mean) else 'loss'} of "
                f"{self._who} is no longer finite. Try a smaller --lr, a --warmup or a lower --clip"
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._statistics.end_step(self._statistics.total(self._device), len(ticket.share))
        return Done(ticket, mean, count, lr, norm, time.perf_counter() - began, waited)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The task's summed loss, in the precision that was asked for."""
        self._moved()
        with self._built.precision():
            return self._task.loss(model, batch)

    def _positions(self, ticket: Ticket) -> list[range]:
        return [ticket.step.micro_batches[index] for index in ticket.share]

    def _learning_rate(self, step: Step) -> float:
        options = self._options
        found = rates(
            step.number,
            self._last,
            options.lr,
            options.warmup,
            options.schedule,
            decayed=options.gamma**step.after.epoch,
        )
        set_rates(self._optimizer, found)
        return found.lr

    def _clip(self) -> float:
        """Norm of the gradient before clipping."""
        if self._options.clip:
            return nn.utils.clip_grad_norm_(self._parameters, self._options.clip).item()
        grads = [p.grad for p in self._parameters if p.grad is not None]
        return nn.utils.get_total_norm(grads).item()
