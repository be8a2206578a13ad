"""The training loop: the same run on any number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from ..base.errors import RunFailed
from ..parallel.build import build
from ..runtime.collectives import all_gather_object
from ..runtime.deadline import END, ask_for_next_life
from ..runtime.save import save0
from ..runtime.world import World, after_first_step
from . import checkpoint
from .evaluate import Stopped, evaluate
from .marker import Saved
from .metrics import Metrics, Silence, step_record
from .options import TrainOptions
from .place import Place
from .plan import Plan
from .step import Stepper, Taken
from .stop import Stop
from .task import Split, Task
from .trace import Trace

_TIMES = 5  # validations and checkpoints in a run that does not say how many


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
        with Stop().listening() as stop:
            return run.loop(stop)
    finally:
        run.metrics.close()


class _Run:
    """One life of a run: everything the loop holds between its steps."""

    def __init__(
        self, task: Task, options: TrainOptions, world: World, directory: Path, resume: bool
    ) -> None:
        self.task, self.options, self.world, self.directory = task, options, world, directory
        self.plan = Plan(len(task.train), options.global_batch, options.micro_batch, options.seed)
        self.last = options.steps or self.plan.steps_per_epoch * (options.epochs or 1)
        self.model, replica = build(task.build_model, world, options.seed, options.compile)
        self.optimizer = task.build_optimizer(self.model)
        self.best: tuple[float, int] | None = None
        self.place = Place()
        self.unvalidated = False
        if resume:
            self._restore()
        trace = Trace(options.trace_samples, world, self.place.step)
        self.stepper = Stepper(
            task, options, world, self.model, replica, self.optimizer, trace, self.last
        )
        self.metrics: Metrics | Silence = Silence()
        if world.is_root:
            self.metrics = Metrics(directory, task.unit, self.last, self.place.step)
        self.flops = task.flops_per_unit(self.model)
        self.unread: Taken | None = None

    def loop(self, stop: Stop) -> Outcome:
        """All steps that are left; validation, checkpoints and a wish to stop between them."""
        often = max(1, -(-self.last // _TIMES))
        every_valid = self.options.valid_every or often
        every_checkpoint = self.options.checkpoint_every or often
        wishes = 0.0  # over all ranks, so the same on each
        saved = True
        if self.unvalidated:
            wishes = self._validate(None, stop)
        first = self.place.step + 1
        for step in self.plan.steps(self.place, self.last):
            if step.number == first > 1 and self.world.world_size > 1:
                self.stepper.settle_buckets(step)
            taken = self.stepper.take(step, stop)
            wishes += self._report()
            self.unread, self.place = taken, step.after
            self.stepper.trace.write(step)
            if step.number == first + 1:
                after_first_step()  # the first step's numbers are here: every rank has done it
            if step.number % every_valid == 0 or step.number == self.last:
                wishes += self._validate(taken, stop)
            if step.number % every_checkpoint == 0 or step.number == self.last or wishes:
                # A step is known to be sound before it is kept.
                wishes += self._report()
                with stop.saving():
                    saved = self._checkpoint()
                if wishes and step.number < self.last:
                    return self._stopped(wishes, saved)
            stop.tick()
        return self._finish(stop, first, saved)

    def _stopped(self, wishes: float, saved: bool) -> Outcome:
        """End this life; where nobody ended the run, the job goes on in a next one."""
        where = f"step {self.place.step} of {self.last}"
        if wishes < END:
            self._ask_for_next_life(saved)
        self.metrics.say(
            f"stopped at {where}" + (", to go on in a next life" if wishes < END else "")
        )
        return Outcome(self.place, finished=False)

    def _ask_for_next_life(self, saved: bool) -> None:
        if not saved:  # the next life would come no further
            raise RunFailed(
                f"the time limit came at step {self.place.step} of {self.last} and no checkpoint "
                "could be written; make room, and --resume goes on from the newest whole one"
            )
        if self.world.is_root:
            ask_for_next_life()

    def _report(self) -> float:
        """Write the line of the step whose numbers are here by now; the ranks' wishes to stop.

        All ranks read the same sums, so what they decide here they decide together.
        """
        taken, self.unread = self.unread, None
        if taken is None:
            return 0.0
        loss_sum, nonfinite, wishes, waited, norm = taken.late.read()
        if nonfinite or not math.isfinite(norm):
            self._stop_at_nonfinite(taken)
        self.metrics.step(
            step_record(
                taken,
                loss_sum,
                waited,
                norm,
                self.task.unit,
                self.flops,
                self.world,
            )
        )
        return wishes

    def _stop_at_nonfinite(self, taken: Taken) -> None:
        """Say whose loss it was. Every rank comes here at the same step."""
        which = f"{taken.dealt.start}..{taken.dealt.stop - 1}"
        finite = all(bool(torch.isfinite(loss)) for loss in taken.losses)
        everyone = all_gather_object((finite, self.world.node, which))
        guilty = [
            f"rank {rank} on {node} (micro-batches {dealt})"
            for rank, (finite, node, dealt) in enumerate(everyone)
            if not finite
        ]
        what = f"the loss on {', '.join(guilty)}" if guilty else "the gradient norm"
        raise RunFailed(
            f"step {taken.step.number}: {what} is no longer finite; all ranks stopped. "
            "The checkpoints before it are sound. Try a smaller --lr, a --warmup or a lower --clip"
        )

    def _validate(self, taken: Taken | None, stop: Stop) -> float:
        """Evaluate into the step's line, keep the best model; the wishes when asked to stop."""
        try:
            loss = self._evaluate(self.task.valid, stop)
        except Stopped as stopped:
            self.unvalidated = True
            return stopped.wishes
        self.unvalidated = False
        if taken is not None:
            taken.valid_loss = loss
        if loss is not None and math.isfinite(loss) and (self.best is None or loss < self.best[0]):
            self.best = (loss, self.place.step)
            self._save("model-best.pt")
        return 0.0

    def _evaluate(self, split: Split, stop: Stop) -> float | None:
        micro_batch = self.options.micro_batch
        return evaluate(self.stepper.loss, split, self.model, self.world, micro_batch, stop)

    def _checkpoint(self) -> bool:
        """Save; a full disk costs this checkpoint, not the training. Whether it was written."""
        # The loss was finite before the update; the weights have to be so after it.
        norms = torch._foreach_norm(list[torch.Tensor](self.stepper.parameters))
        if not bool(torch.stack(norms).isfinite().all()):
            raise RunFailed(
                f"step {self.place.step}: the update left weights that are no longer finite; all "
                "ranks stopped. The checkpoints before it are sound. Try a smaller --lr"
            )
        self.metrics.sync()
        self.stepper.trace.sync()
        saved = Saved(self.place, self.options.identity, self.best, self.unvalidated)
        try:
            checkpoint.save(
                self.directory / "checkpoints", self.model, self.optimizer, saved, self.options.keep
            )
        except (OSError, CheckpointException) as error:
            if not self.directory.is_dir():
                raise RunFailed(f"the run directory {self.directory} was removed") from None
            self.metrics.say(
                f"checkpoint at step {self.place.step} could not be written "
                f"({checkpoint.reason(error)}); training goes on"
            )
            return False
        return True

    def _save(self, name: str) -> bool:
        try:
            save0(self.model, self.directory / name)
        except OSError as error:
            self.metrics.say(f"{name} could not be written ({error})")
            return False
        return True

    def _restore(self) -> None:
        root = self.directory / "checkpoints"
        saved = checkpoint.restore(root, self.model, self.optimizer, self.options.identity)
        if saved is not None:
            self.place, self.best = saved.place, saved.best
            self.unvalidated = saved.unvalidated
        if self.world.is_root:
            found = f"no whole checkpoint in {root}: " if saved is None else "resuming "
            done = ", which are done: evaluating again" if self.place.step >= self.last else ""
            print(f"{found}at step {self.place.step} of {self.last}{done}", flush=True)

    def _finish(self, stop: Stop, first: int, saved: bool) -> Outcome:
        self._report()
        try:
            valid, test = (self._evaluate(s, stop) for s in (self.task.valid, self.task.test))
        except Stopped as stopped:
            if stopped.wishes < END:
                if self.place.step < first:  # the next life would come no further
                    raise RunFailed(
                        "the time limit is too short for the last evaluation; --resume with more"
                    ) from None
                self._ask_for_next_life(saved)
            self.metrics.say("stopped in the last evaluation; the next life does it again")
            return Outcome(self.place, finished=False)
        record: dict[str, Any] = {
            "step": self.place.step,
            "valid_loss": valid,
            "test_loss": test,
        }
        if self.best:
            record["best_valid_loss"], record["best_step"] = self.best
        self.metrics.final(record)
        if not self._save("model-final.pt"):
            raise RunFailed(
                f"{self.directory} has no model-final.pt; make room, and if checkpoints/ holds a "
                "whole checkpoint, --resume writes it from there"
            )
        return Outcome(self.place, True, valid, test)
