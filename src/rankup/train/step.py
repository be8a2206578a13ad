"""One optimizer step over a global batch, of which each rank computes its part."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ..parallel.build import Built
from ..parallel.copies import Cost, ring_bytes
from ..parallel.gradients import clip, global_norm
from ..runtime.deadline import Deadline
from ..runtime.keys import derive, reseed
from ..runtime.statistics import RunningStatistics
from ..runtime.world import World
from .ema import Average
from .metrics import Trace, peak_flops, peak_memory
from .optimizer import LossScale
from .options import TrainOptions
from .plan import Feed, Step, rate, to_device
from .profile import Profile
from .start import refuse_unused
from .task import Batch, Task


class Numbers(NamedTuple):
    """Sums over the ranks that took a step together.

    Attributes:
        loss: over all valid targets.
        nonfinite: ranks whose loss is not finite.
        wishes: to stop.
        waited: seconds in which ranks waited for data.
        norm: of the gradient.
    """

    loss: float
    nonfinite: float
    wishes: float
    waited: float
    norm: float


class StepResult:
    """What a step came to; its numbers are on their way to the host, and read a step later.

    Reading a tensor of the last step from the GPU's own stream would wait for all that the present
    step has queued behind it; the copy is queued at once instead, and waited for alone.

    Args:
        before: the result of the step before, where nothing else lies between: a step begins when
            that one ends, so that what the host does between two steps is counted.

    Attributes:
        lr: the step's learning rate.
        count: valid targets of the global batch.
        micro_batches: those that this rank computes.
        factor: what a summed loss is multiplied by before its backward.
        losses: the summed loss of each of them so far.
        spare_losses: of those that are gone through once more, with weight zero. A NaN spoils the
            gradient there, too.
        waited: seconds that this rank waited for data.
        loss_scale: what its loss was multiplied by, under float16.
        statistics: the sum of running statistics over all micro-batches, once the step has ended.
        validation: what the evaluation behind it came to, by the names that the line has.
        cost: what the exchange took since the line before, by the names that the line has.
        ended: when, in seconds since 1970.
    """

    def __init__(
        self,
        step: Step,
        lr: float,
        count: int,
        micro_batches: range,
        device: torch.device,
        before: StepResult | None = None,
    ) -> None:
        self.step, self.lr, self.count, self.micro_batches = step, lr, count, micro_batches
        self.factor = 1.0
        self.losses: list[torch.Tensor] = []
        self.spare_losses: list[torch.Tensor] = []
        self.waited = 0.0
        self.loss_scale: float | None = None
        self.statistics = torch.zeros(0)
        self.validation: Mapping[str, float] = {}
        self.cost: Mapping[str, float] = {}
        self._device = device
        self._ended: float | torch.cuda.Event = self._now()
        self._began = self._ended if before is None else before._ended
        self.ended = 0.0
        self._packed: torch.Tensor | None = None
        self._work: dist.Work | None = None
        self._copied: torch.cuda.Event | None = None
        self._numbers: Numbers | None = None

    def start_sum(
        self,
        wish: float,
        counts: bool,
        statistics: torch.Tensor | None,
        ranks: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        """Start the step's one small all-reduce: loss, flags, waiting time, running statistics.

        Args:
            wish: of this rank, to stop.
            counts: False where another rank has computed the same loss, and adds it.
        """
        losses, spare = (self.losses, self.spare_losses) if counts else ([], [])
        if self._device.type == "cpu":  # plain numbers: a handful of tiny tensors would cost more
            loss = sum(part.item() for part in losses)
            finite = all(map(math.isfinite, (loss, *(part.item() for part in spare))))
            numbers = [loss, not finite, wish, self.waited]
            packed = torch.tensor(numbers, dtype=torch.float64)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self._device)
            for part in losses:
                total += part
            host = torch.tensor([wish, self.waited], dtype=torch.float64)
            sound = torch.stack([total, *spare]).isfinite().all()
            flags = torch.stack([total, (~sound).double()])
            packed = torch.cat([flags, host.to(self._device, non_blocking=True)])
        if statistics is not None:
            packed = torch.cat([packed, statistics])
        self._packed = packed
        if ranks > 1:
            self._work = dist.all_reduce(packed, group=group, async_op=True)

    def end(self, norm: torch.Tensor) -> None:
        """Take the norm of the gradient, and send the numbers to the host."""
        assert self._packed is not None
        if self._work is not None:
            self._work.wait()  # it was under way before the gradients, so it is here with them
        self._sums, self.statistics = self._packed[:4], self._packed[4:]
        self._norm = norm
        if self._device.type == "cuda":
            flat = torch.cat([self._sums, norm.double().reshape(1)])
            self._on_host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            self._on_host.copy_(flat, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def stop_clock(self) -> None:
        """Take this for the step's end."""
        self._ended, self.ended = self._now(), time.time()

    def read(self) -> Numbers:
        """Return the numbers; on a GPU wait for them alone."""
        if self._numbers is None and self._copied is not None:
            self._copied.synchronize()
            self._numbers = Numbers._make(self._on_host.tolist())
        elif self._numbers is None:
            self._numbers = Numbers._make([*self._sums.tolist(), self._norm.item()])
        return self._numbers

    def share(self, numbers: Numbers, cost: Mapping[str, float]) -> None:
        """Take the numbers of all copies of the model in place of this copy's own."""
        self._numbers, self.cost = numbers, cost

    @property
    def seconds(self) -> float:
        """Time that the step took on the device's own clock; ask once its numbers are read."""
        began, ended = self._began, self._ended
        if isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
            ended.synchronize()  # it lies behind the numbers: averages of weights come between
            return began.elapsed_time(ended) / 1000
        assert isinstance(began, float)
        assert isinstance(ended, float)
        return ended - began

    @property
    def fails(self) -> bool:
        """Return True where its numbers are the end of the run.

        Under a loss scale of more than 1 a gradient that is not finite costs the update alone.
        """
        norm_fails = not math.isfinite(self.read().norm) and (self.loss_scale or 1.0) <= 1
        return bool(self.read().nonfinite) or norm_fails

    def record(self, unit: str, flops_per_unit: float, world: World) -> dict[str, Any]:
        """Return the step's line of `metrics.jsonl`.

        `seconds` is what the step took and `data_wait` the mean over ranks of the share of it spent
        waiting for data; `peak_memory` is rank 0's in bytes, `mfu` is null where the GPU is not
        known. The validation that followed the step took `valid_seconds`. Under float16 a step is
        `skipped` whose gradient overflowed at its `loss_scale`.
        """
        numbers, seconds = self.read(), self.seconds
        rate = self.count / seconds
        peak = peak_flops(world.device)
        finite = math.isfinite(numbers.norm)
        record: dict[str, Any] = {
            "step": self.step.number,
            "epoch": self.step.after.epoch,
            "loss": numbers.loss / max(1, self.count),
            "lr": self.lr,
            f"{unit}_per_s": round(rate, 1),
            "seconds": round(seconds, 6),
            "data_wait": round(numbers.waited / world.world_size / seconds, 4),
            "peak_memory": peak_memory(world.device),
            "mfu": rate * flops_per_unit / (peak * world.world_size) if peak else None,
            "grad_norm": numbers.norm if finite else None,
            "time": round(self.ended, 3),
        }
        if self.loss_scale is not None:
            record |= {"loss_scale": self.loss_scale, "skipped": not finite}
        return {
            **record,
            **self.cost,
            **(self.validation if "valid_loss" in self.validation else {}),
        }

    def _now(self) -> float | torch.cuda.Event:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Trainer:
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
        self.task, self.options, self.built, self.optimizer = task, options, built, optimizer
        self.last = last
        self.parameters = [p for p in built.model.parameters() if p.requires_grad]
        self.trace = Trace(None, built.mesh.world, 0)
        self.feed = Feed(task.train)
        self.profile: Profile | None = None
        self.average: Average | None = None
        self.scale = LossScale() if options.precision == "fp16" else None
        self.garbage = Garbage()
        mesh = self._mesh = built.mesh
        self._device = mesh.world.device
        self._rank, self._ranks = mesh.data_rank, mesh.data_size
        self._together = mesh.together
        self._factor, self._counts = built.sum_of_gradients, built.counts
        self._counts_samples = built.counts_samples
        self._ranks_at_step = mesh.at_step.world_size
        self._computing = built.computing if mesh.layout.tp > 1 else nullcontext
        running = RunningStatistics(built.model)
        self._statistics = running if running.size else None
        self._cost = self._cost_of_buckets()
        self._first = True
        self._before: StepResult | None = None

    def take(self, step: Step, stop: Deadline) -> StepResult:
        """Forward, backward and update, over the part of the global batch that is this rank's."""
        with self.profile.of(step.number) if self.profile else nullcontext():
            result = self._take(step, stop)
        self._before = result
        if self.trace.on:
            self.trace.write(step)
        if self._first:
            self.built.refuse_uncompiled()
            self._first = False
        self.garbage.after(step.number)
        return result

    def pause(self) -> None:
        """Something else lies between the last step and the next, which begins with its own."""
        self._before = None

    def _take(self, step: Step, stop: Deadline) -> StepResult:
        result = self._begin(step)
        if self.built.pipeline is None:
            self._by_model(result, stop)
        else:
            self._by_pipeline(result, stop)
        if self._first and self.built.has_buckets:
            refuse_unused(self.built.model)
        self.built.finish_gradients()
        norm = self._clip()
        overflowed = self.scale is not None and self.scale.overflowed(norm)
        part = self._together_in(step)
        if part and not overflowed:  # a copy without work has nothing to learn from this step
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        result.end(norm)
        if part and self._statistics is not None:
            self._statistics.end_step(result.statistics, len(part))
        if self.average is not None and not overflowed:
            self.average.update()
        result.stop_clock()
        return result

    def _begin(self, step: Step) -> StepResult:
        """Set the learning rate, and what a summed loss is to be multiplied by."""
        lr = rate(step.number, self.last, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        count = self.task.train.count(step.samples)
        mine = step.part(self._rank, self._ranks)
        result = StepResult(step, lr, count, mine, self._device, self._before)
        result.cost = self._cost
        # Summed losses over the count of all that step together make uneven parts exact.
        targets = self.task.train.count(step.samples_of(self._together_in(step)))
        result.factor = self._factor / max(1, targets)
        if self.scale is not None:
            result.loss_scale = self.scale.value
            result.factor *= self.scale.value
        if self._statistics is not None:
            self._statistics.begin_step()
        return result

    def _by_model(self, result: StepResult, stop: Deadline) -> None:
        """One micro-batch after the other, forward and backward."""
        rounds = result.step.weighted(self._rank, self._ranks, self._together)
        for number, (index, weight) in enumerate(rounds, 1):
            last = number == len(rounds)
            batch = self._fetch(result, index, weight)
            self._reseed(result.step, index)
            with self.built.exchange_at(last), self._computing():
                loss = self.loss(self.built.replica, batch)
                (result.losses if weight else result.spare_losses).append(loss.detach())
                if weight and self._statistics is not None:
                    self._statistics.collect()
                if last:  # the one small reduction runs beside the backward
                    self._start_sum(result, stop)
                (loss * (result.factor * weight)).backward()
            if self._statistics is not None:
                self._statistics.rewind()

    def _by_pipeline(self, result: StepResult, stop: Deadline) -> None:
        """All micro-batches as chunks of one pipelined step."""
        pipeline = self.built.pipeline
        assert pipeline is not None
        rounds = result.step.weighted(self._rank, self._ranks, self._together)
        batches = [self._fetch(result, index, weight) for index, weight in rounds]
        self._reseed(result.step, rounds[0][0])
        factors = [result.factor * weight for _, weight in rounds]
        with self._computing():
            losses = pipeline.step(batches, factors, self.loss)
        # Stages before the last have no losses.
        for loss, (_, weight) in zip(losses, rounds, strict=False):
            (result.losses if weight else result.spare_losses).append(loss.detach())
        self._start_sum(result, stop)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The task's summed loss, in the precision that was asked for."""
        if self._mesh.layout.cp > 1:
            batch = tuple(self._mesh.sequence.mine(tensor) for tensor in batch)
        loss = self.task.loss(model, batch)
        return loss if type(loss) is torch.Tensor else self.built.plain(loss)

    def coming(self, steps: Iterable[Step]) -> Iterator[torch.Tensor]:
        """Samples of the micro-batches that this rank goes through, for `Feed`."""
        for step in steps:
            for index, _ in step.weighted(self._rank, self._ranks, self._together):
                yield step.samples_of(range(index, index + 1))

    def settle_buckets(self, step: Step) -> None:
        """Let DDP arrange its gradient buckets before the first `step` of a resumed attempt.

        DDP lays them out anew after its first backward, and on three ranks or more the layout
        decides the order in which gradients are added up. One backward of weight zero brings a
        resumed run to the layout the uninterrupted one has.
        """
        samples = step.samples_of(range(1))
        batch = to_device(self.task.train.batch(samples), self._device)
        running = RunningStatistics(self.built.model)
        running.begin_step()
        (self.loss(self.built.replica, batch) * 0.0).backward()
        running.rewind()
        self.optimizer.zero_grad(set_to_none=True)

    def _together_in(self, step: Step) -> range:
        """The micro-batches of the ranks that step together: all, or those of this copy."""
        if not self._mesh.apart:
            return range(len(step.micro_batches))
        ranks = self._mesh.at_step.dp_shard
        first = self._mesh.dp_replicate * ranks
        last = step.part(first + ranks - 1, self._ranks)
        return range(step.part(first, self._ranks).start, last.stop)

    def _fetch(self, result: StepResult, index: int, weight: float) -> Batch:
        began = time.perf_counter()
        samples = result.step.samples_of(range(index, index + 1))
        batch = to_device(self.feed.batch(samples), self._device)
        result.waited += time.perf_counter() - began
        if weight and self.trace.on and self._counts_samples:
            self.trace.drew(samples)
        return batch

    def _reseed(self, step: Step, index: int) -> None:
        """Dropout belongs to the micro-batch, whichever rank computes it."""
        place = self.built.draws_apart
        reseed(derive(self.options.seed, "micro-batch", step.number, index, *place), self._device)

    def _start_sum(self, result: StepResult, stop: Deadline) -> None:
        running = self._statistics
        statistics = None if running is None else running.total(self._device)
        group = self._mesh.step_group
        result.start_sum(stop.wish, self._counts, statistics, self._ranks_at_step, group)

    def _clip(self) -> torch.Tensor:
        """Global norm of the gradient before clipping; a check on it where none is asked for."""
        if self.scale is not None:
            self.scale.unscale(self.parameters)
        norm = global_norm(self.parameters, self._mesh, self.built.copied)
        if self.options.clip:
            clip(self.parameters, norm, self.options.clip)
        return norm

    def _cost_of_buckets(self) -> Mapping[str, float]:
        """What DDP sends in a step; of matrices of low rank nobody counts the bytes."""
        kind = self.options.compression.kind
        if not self.built.has_buckets or kind == "powersgd":
            return {}
        size = (2 if kind == "bf16" else 4) * sum(p.numel() for p in self.parameters)
        sent = ring_bytes(size, self._mesh.world.world_size)
        return Cost(bytes_sent=sent, measured=False).record()


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
        """From now on collect only when asked to, and leave what is there now aside: it stays."""
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
