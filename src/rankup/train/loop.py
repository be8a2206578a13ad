"""The training loop: the same run on any number of ranks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from ..base.errors import RunFailed, UserError
from ..parallel.build import build
from ..runtime.collectives import all_gather_object
from ..runtime.keys import derive
from ..runtime.save import save0
from ..runtime.statistics import RunningStatistics
from ..runtime.world import World, after_first_step
from . import checkpoint
from .evaluate import evaluate, to_device
from .metrics import Metrics, Silence, peak_flops, peak_memory
from .options import TrainOptions
from .plan import Place, Plan, Step
from .schedule import learning_rate
from .stop import StopFlag
from .task import Batch, Task
from .trace import Trace


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        place: how far it came.
        finished: False when it was asked to stop before its last step.
        valid_loss, test_loss: of the final model, per target; None when unfinished or no data.
    """

    place: Place
    finished: bool
    valid_loss: float | None = None
    test_loss: float | None = None


def train(
    task: Task, options: TrainOptions, world: World, directory: Path, *, resume: bool = False
) -> Outcome:
    """Train `task` on all ranks; call on every rank.

    Leaves `metrics.jsonl`, `checkpoints/`, `model-best.pt` and `model-final.pt` in `directory`.
    With `resume` it goes on from the newest whole checkpoint there, at any world size.

    Raises:
        UserError: the checkpoint belongs to another model or another run.
        RunFailed: the loss is no longer finite; says at which step and on which ranks.
    """
    run = _Run(task, options, world, directory, resume)
    try:
        with StopFlag().listening() as stop:
            return run.loop(stop)
    finally:
        run.metrics.close()


@dataclass
class _Pending:
    """A step whose numbers are on their way: they are read one step late."""

    step: Step
    lr: float
    packed: (
        torch.Tensor
    )  # loss sum, ranks not finite, ranks asked to stop, seconds waited, statistics
    work: dist.Work | None
    finite_here: torch.Tensor
    extra: dict[str, Any]


class _Run:
    """One life of a run: everything the loop holds between its steps."""

    def __init__(
        self, task: Task, options: TrainOptions, world: World, directory: Path, resume: bool
    ) -> None:
        self.task, self.options, self.world, self.directory = task, options, world, directory
        self.plan = Plan(len(task.train), options.global_batch, options.micro_batch, options.seed)
        self.last = options.steps or self.plan.steps_per_epoch * (options.epochs or 1)
        self.model, self.replica = build(task.build_model, world, options.seed, options.compile)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = task.build_optimizer(self.model)
        self.statistics = RunningStatistics(self.model)
        self.best: tuple[float, int] | None = None
        self.place = Place()
        if resume:
            self._restore()
        self.trace = Trace(options.trace_samples, world, self.place.step)
        self.metrics = (
            Metrics(directory, task.unit, self.last, self.place.step)
            if world.is_root
            else Silence()
        )
        self.flops = task.flops_per_unit(self.model)
        self.peak_flops = peak_flops(world.device)
        self.pending: _Pending | None = None

    def loop(self, stop: StopFlag) -> Outcome:
        every_valid = self.options.valid_every or max(1, -(-self.last // 5))
        every_checkpoint = self.options.checkpoint_every or max(1, -(-self.last // 5))
        self._settle_buckets()
        first = self.place.step + 1
        for step in self.plan.steps(self.place, self.last):
            started = time.perf_counter()
            pending = self._step(step, stop)
            stopping = self._report()
            pending.extra["seconds"] = time.perf_counter() - started
            self.pending, self.place = pending, step.after
            if self.trace.on:
                self.trace.write(step)
            if step.number == first:
                after_first_step()
            if step.number % every_valid == 0 or step.number == self.last:
                self._validate()
            if step.number % every_checkpoint == 0 or step.number == self.last or stopping:
                # A step is known to be sound before it is kept.
                stopping = self._report() or stopping
                self._checkpoint()
            if stopping and step.number < self.last:
                self.metrics.say(f"stopped at step {step.number} of {self.last}")
                return Outcome(self.place, finished=False)
        return self._finish()

    def _step(self, step: Step, stop: StopFlag) -> _Pending:
        """One optimizer step over the global batch, of which this rank computes its part."""
        options, world = self.options, self.world
        lr = learning_rate(step.number, self.last, options.lr, options.warmup, options.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        # Summed losses over the global count make uneven dealing exact; DDP's mean over the ranks
        # takes a factor of world_size back out.
        count = self.task.train.count(step.samples)
        scale = world.world_size / max(1, count)
        mine = step.dealt(world.rank, world.world_size)
        # A rank without work goes through one micro-batch with weight zero, to join the exchange.
        indices, weight = (mine, 1.0) if mine else (range(1), 0.0)
        loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
        waited = 0.0
        self.statistics.begin_step()
        for index in indices:
            started = time.perf_counter()
            positions = step.micro_batches[index]
            samples = step.samples[positions.start : positions.stop]
            batch = to_device(self.task.train.batch(samples), world.device)
            waited += time.perf_counter() - started
            # Dropout belongs to the micro-batch, whichever rank computes it.
            torch.manual_seed(derive(options.seed, "micro-batch", step.number, index))
            last = index == indices[-1]
            with self._exchange_at(last):
                loss = self._loss(self.replica, batch)
                if weight:
                    loss_sum += loss.detach()
                    self.trace.drew(samples)
                self.statistics.collect(counts=bool(weight))
                if last:  # the small reduction runs beside the backward
                    pending = self._pack(step, lr, loss_sum, waited, stop)
                (loss * (scale * weight)).backward()
        if options.clip:
            norm = nn.utils.clip_grad_norm_(self.parameters, options.clip)
            pending.extra["norm"] = norm
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        pending.extra["count"] = count
        if self.statistics.size:
            if pending.work:
                pending.work.wait()
            self.statistics.end_step(pending.packed[4:], len(step.micro_batches))
        return pending

    def _loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        if self.options.precision == "fp32":
            return self.task.loss(model, batch)
        with torch.autocast(self.world.device.type, dtype=torch.bfloat16):
            return self.task.loss(model, batch)

    def _exchange_at(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are exchanged once per step, with the last micro-batch."""
        if last or self.world.world_size == 1:
            return contextlib.nullcontext()
        return self.replica.no_sync()  # type: ignore[operator, no-any-return]

    def _pack(
        self, step: Step, lr: float, loss_sum: torch.Tensor, waited: float, stop: StopFlag
    ) -> _Pending:
        """Start the one small reduction of the step: loss, flags and running statistics."""
        device = self.world.device
        finite = torch.isfinite(loss_sum)
        host = torch.tensor([float(stop.raised), waited], dtype=torch.float64)
        packed = torch.cat(
            [
                torch.stack([loss_sum, (~finite).double()]),
                host.to(device, non_blocking=True),
                self.statistics.total(device),
            ]
        )
        work = dist.all_reduce(packed, async_op=True) if self.world.world_size > 1 else None
        return _Pending(step, lr, packed, work, finite, {})

    def _report(self) -> bool:
        """Read the pending step's numbers and write its line; True when a rank wants to stop."""
        pending = self.pending
        if pending is None:
            return False
        self.pending = None
        if pending.work:
            pending.work.wait()
        loss_sum, nonfinite, stopping, waited = pending.packed[:4].tolist()
        count = pending.extra["count"]
        norm = pending.extra.get("norm")
        if nonfinite or (norm is not None and not torch.isfinite(norm)):
            self._stop_at_nonfinite(pending)
        seconds = pending.extra["seconds"]
        rate = count / seconds
        flops = self.peak_flops
        record = {
            "step": pending.step.number,
            "epoch": pending.step.after.epoch,
            "loss": loss_sum / max(1, count),
            "lr": pending.lr,
            f"{self.task.unit}_per_s": round(rate, 1),
            "data_wait": round(waited / self.world.world_size / seconds, 4),
            "peak_memory": peak_memory(self.world.device),
            "mfu": rate * self.flops / (flops * self.world.world_size) if flops else None,
            "time": round(time.time(), 3),
        }
        if norm is not None:
            record["grad_norm"] = float(norm)
        if "valid_loss" in pending.extra:
            record["valid_loss"] = pending.extra["valid_loss"]
        self.metrics.step(record)
        return bool(stopping)

    def _stop_at_nonfinite(self, pending: _Pending) -> None:
        """All ranks come here together, since they read the same sum; say whose fault it is."""
        mine = pending.step.dealt(self.world.rank, self.world.world_size)
        here = (bool(pending.finite_here), self.world.node, f"{mine.start}..{mine.stop - 1}")
        everyone = all_gather_object(here)
        guilty = [
            f"rank {rank} on {node} (micro-batches {which})"
            for rank, (finite, node, which) in enumerate(everyone)
            if not finite
        ]
        what = f"the loss on {', '.join(guilty)}" if guilty else "the gradient norm"
        raise RunFailed(
            f"step {pending.step.number}: {what} is no longer finite; all ranks stopped. "
            f"The checkpoints before it are sound. Try a smaller --lr, --warmup or --clip"
        )

    def _validate(self) -> None:
        """Evaluate into the pending step's line; keep the best model."""
        loss = self._evaluate(self.task.valid)
        if loss is None:
            return
        assert self.pending is not None
        self.pending.extra["valid_loss"] = loss
        if self.best is None or loss < self.best[0]:
            self.best = (loss, self.place.step)
            save0(self.model, self.directory / "model-best.pt")

    def _evaluate(self, split: Any) -> float | None:
        return evaluate(self._loss, split, self.model, self.world, self.options.micro_batch)

    def _checkpoint(self) -> None:
        """Save; a full disk costs this checkpoint, not the training."""
        saved = checkpoint.Saved(self.place, self.options.identity, self.best)
        try:
            checkpoint.save(
                self.directory / "checkpoints", self.model, self.optimizer, saved, self.options.keep
            )
        except (OSError, CheckpointException) as error:
            self.metrics.say(
                f"checkpoint at step {self.place.step} could not be written "
                f"({checkpoint.cannot_be_written(error)}); training goes on"
            )

    def _restore(self) -> None:
        root = self.directory / "checkpoints"
        saved = checkpoint.restore(root, self.model, self.optimizer)
        if saved is None:
            if self.world.is_root:
                print(f"no whole checkpoint in {root}: starting at step 0")
            return
        mine = self.options.identity
        changed = [
            f"--{name.replace('_', '-')} {saved.identity[name]} there, {mine[name]} now"
            for name in mine
            if saved.identity.get(name) != mine[name]
        ]
        if changed:
            raise UserError(
                f"the checkpoint belongs to another run: {'; '.join(changed)}; "
                "these make it the same run, so start a new one instead of resuming"
            )
        self.place, self.best = saved.place, saved.best
        if self.world.is_root:
            print(f"resuming at step {self.place.step} of {self.last}")

    def _settle_buckets(self) -> None:
        """Let DDP arrange its gradient buckets before the first step of a resumed life.

        DDP lays them out anew after its first backward, and on three ranks or more the layout
        decides the order in which gradients are added up. One backward of weight zero brings a
        resumed run to the layout the uninterrupted one has.
        """
        step = next(self.plan.steps(self.place, self.last), None)
        if self.place.step == 0 or self.world.world_size == 1 or step is None:
            return
        batch = self.task.train.batch(step.samples[: len(step.micro_batches[0])])
        self.statistics.begin_step()
        (self._loss(self.replica, to_device(batch, self.world.device)) * 0.0).backward()
        self.statistics.collect(counts=False)
        self.optimizer.zero_grad(set_to_none=True)

    def _finish(self) -> Outcome:
        self._report()
        outcome = Outcome(
            self.place, True, self._evaluate(self.task.valid), self._evaluate(self.task.test)
        )
        save0(self.model, self.directory / "model-final.pt")
        record: dict[str, Any] = {
            "step": self.place.step,
            "valid_loss": outcome.valid_loss,
            "test_loss": outcome.test_loss,
        }
        if self.best:
            record["best_valid_loss"], record["best_step"] = self.best
        self.metrics.final(record)
        return outcome
