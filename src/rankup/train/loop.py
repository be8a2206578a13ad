"""The training loop: the same run on any number of ranks."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..base.errors import RunFailed
from ..runtime.collectives import all_gather_object, broadcast
from ..runtime.deadline import END, Deadline, ask_for_next_attempt
from ..runtime.state import everywhere, gather, local
from ..runtime.world import World, after_first_step
from .checkpoint import Carried, CheckpointManager, Saved
from .ema import Average
from .evaluate import Stopped, losses
from .final import write_final
from .local_sgd import Copies
from .metrics import Metrics, Silence, Trace
from .optimizer import LossScale
from .options import TrainOptions
from .plan import Place, Plan
from .profile import Profile
from .resume import amend, candidates, resume
from .start import fill, start
from .step import StepResult, Trainer
from .task import Named, Split, Task

_OFTEN = 5  # validations and checkpoints in a run that does not say how many
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Of attention, the fastest first; the last one is for where there is no other.
_KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class Stop(Deadline):
    """A deadline that also takes Ctrl-C, SIGTERM and SIGHUP, as a wish to end the run."""

    def __init__(self) -> None:
        super().__init__(signals=())

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handle the signals for the time of the block."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python delivers signals to the main thread alone
            return
        before = {number: signal.signal(number, self._end) for number in _ENDING}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._go_on)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:
            self._wish = END


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        place: how far it came.
        finished: False when it was asked to stop before its last step.
        valid_loss, test_loss: of the final model, per target; None when unfinished or no data.
        measures: further losses, as `valid_loss_web` of one text and `valid_loss_ema`.
    """

    place: Place
    finished: bool
    valid_loss: float | None = None
    test_loss: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


# For all of a run: what a backward computes again has to find the same kernel.
@sdpa_kernel(_KERNELS, set_priority=True)
def train(
    task: Task, options: TrainOptions, world: World, directory: Path, *, resume: bool = False
) -> Outcome:
    """Train `task` on all ranks; call on every rank.

    Leaves `metrics.jsonl`, `checkpoints/` and the final model (`final.py`) in `directory`.
    With `resume` it goes on from the newest whole checkpoint there, at any world size.

    Raises:
        UserError: the checkpoint belongs to another model or another run.
        RunFailed: the loss is no longer finite; says at which step and on which ranks.
    """
    attempt = Attempt(task, options, world, directory, resume)
    try:
        with Stop().listening() as stop:
            outcome = attempt.run(stop)
        if attempt.trainer.profile is not None:  # not where it failed: a GPU may hang
            attempt.trainer.profile.close()
        return outcome
    finally:
        attempt.close()


class Attempt:
    """One attempt of a run: everything the loop holds between its steps.

    Attributes:
        place: how far the run is.
        unvalidated: the evaluation that belongs to this place was left when the run was stopped.
    """

    def __init__(
        self, task: Task, options: TrainOptions, world: World, directory: Path, again: bool
    ) -> None:
        self.task, self.options, self.world, self.directory = task, options, world, directory
        self.identity, self.plan = options.identity, Plan.of(task, options)
        self.last = options.steps or self.plan.steps_per_epoch * (options.epochs or 1)
        options.refuse_profile_beyond(self.last)
        often = max(1, -(-self.last // _OFTEN))
        self.every_valid = options.valid_every or often
        self.every_checkpoint = options.checkpoint_every or often
        self.built = start(task, options, world)
        # Before the optimizer and copies of the model take what it begins with.
        root = directory / "checkpoints"
        # Rank 0 looks: to another node the folder may look other, and filling is collective.
        there = everywhere(lambda: again and world.is_root and bool(candidates(root)[0]))
        if not broadcast(there):
            fill(task, self.built)
        self.optimizer = task.build_optimizer(self.built.model)
        self.trainer = Trainer(task, options, self.built, self.optimizer, self.last)
        self.copies, carried = None, Carried()
        if self.built.mesh.apart:
            self.copies = Copies(self.built, options, self.plan.n)
            carried = Carried(self.built.mesh.dp_replicate, self.copies.exchange)
        if options.ema is not None:
            carried.average = self.trainer.average = Average(self.built, options.ema)
        saved, self.place, self.unvalidated = None, Place(), False
        if again:
            saved = resume(root, self.built, self.optimizer, self.identity, carried, self.last)
        if saved is not None:
            self.place, self.unvalidated = saved.place, saved.unvalidated
            if self.trainer.scale is not None and saved.loss_scale is not None:
                self.trainer.scale = LossScale(*saved.loss_scale)
        self.done = self.place.step  # when this attempt began
        self.metrics: Metrics | Silence = Silence()
        if world.is_root:
            self.metrics = Metrics(directory, task.unit, self.last, self.done, options)
        best = None if saved is None else saved.best
        self.checkpoints = CheckpointManager(
            directory, options, self.built, self.optimizer, self.metrics, carried, best
        )
        self.trainer.feed.begin(self.trainer.coming(self.plan.steps(self.place, self.last)))
        self.trainer.trace = Trace(options.trace_samples, world, self.done)
        self.trainer.profile = Profile.wanted(options, directory, world, self.done)
        self.flops = task.flops_per_unit(self.built.whole)
        self.unread: list[StepResult] = []
        self._stepped = False

    def run(self, stop: Deadline) -> Outcome:
        """All steps that are left; validation, checkpoints and a wish to stop between them."""
        wishes = 0.0  # over all ranks, so the same on each
        if self.unvalidated:
            wishes = self._validate(None, stop)
            self._amend()
        results: list[StepResult] = []  # since all ranks held the same model
        for step in self.plan.steps(self.place, self.last):
            if step.number == self.done + 1 > 1 and self.built.has_buckets:
                self.trainer.settle_buckets(step)
            results.append(self.trainer.take(step, stop))
            if self.copies is not None:
                if step.number < self.last and not self.copies.due(step, len(results), stop):
                    stop.tick()
                    continue
                self.copies.meet(results)
            wishes += self._report()
            before, self.place = self.place.step, step.after
            self.unread, results = results, []
            if self._passed(self.every_valid, before):
                wishes += self._validate(self.unread[-1], stop)
                self.trainer.pause()
            if self.copies is not None:  # what they brought together is here
                wishes += self._report()
            if (
                self._passed(self.every_checkpoint, before)
                or wishes
                or self.checkpoints.is_best(self.place.step)
            ):
                # A step is known to be sound before it is kept.
                wishes += self._report()
                with stop.saving():
                    self._checkpoint()
                self.trainer.pause()
                if wishes and self.place.step < self.last:
                    return self._stopped(wishes < END)
            if self.checkpoints.under_way:
                stop.saved_in(self.checkpoints.look())
            stop.tick()
        self._report()
        return self._finish(stop)

    def close(self) -> None:
        """Let go of what the attempt holds."""
        self.trainer.garbage.release()
        self.trainer.feed.close()
        self.checkpoints.close()
        self.metrics.close()

    def _passed(self, every: int, before: int) -> bool:
        """Whether a multiple of `every` lies in the steps since `before`, or the end."""
        return self.place.step // every > before // every or self.place.step == self.last

    # --- numbers

    def _report(self) -> float:
        """Write the lines of the steps whose numbers are here by now; the ranks' wishes to stop.

        All ranks read the same sums, so what they decide here they decide together.
        """
        unread, self.unread = self.unread, []
        for result in unread:
            if result.fails:
                self._refuse_nonfinite(result)
            self.metrics.step(result.record(self.task.unit, self.flops, self.world))
        if unread and not self._stepped:
            after_first_step()  # a round's numbers are here: every rank has done it
            self._stepped = True
        return sum(result.read().wishes for result in unread)

    def _refuse_nonfinite(self, result: StepResult) -> None:
        """Say whose loss it was. Every rank comes here at the same step."""
        first, last = result.micro_batches.start, result.micro_batches.stop - 1
        which = "without work in this step"
        if result.micro_batches:
            which = f"micro-batches {first}..{last}"
        computed = result.losses + result.spare_losses
        finite = all(bool(torch.isfinite(loss)) for loss in computed)
        everyone = all_gather_object((finite, self.world.node, which))
        guilty = [
            f"rank {rank} on {node} ({which})"
            for rank, (finite, node, which) in enumerate(everyone)
            if not finite
        ]
        what = f"the loss on {', '.join(guilty)}" if guilty else "the gradient norm"
        raise RunFailed(
            f"step {result.step.number}: {what} is no longer finite; all ranks stopped. "
            "The checkpoints before it are sound. Try a smaller --lr, a --warmup or a lower --clip"
        )

    # --- evaluations

    def _losses(self, name: str, split: Split | Named, stop: Deadline) -> dict[str, float]:
        trainer, size = self.trainer, self.options.micro_batch
        return losses(name, split, trainer.loss, self.built, size, stop, trainer.average)

    def _validate(self, result: StepResult | None, stop: Deadline) -> float:
        """Evaluate into the step's line, and see whether it is the best so far; the wishes when
        asked to stop."""
        began = time.perf_counter()
        try:
            measured = self._losses("valid", self.task.valid, stop)
        except Stopped as stopped:
            self.unvalidated = True
            return stopped.wishes
        self.unvalidated = False
        loss = measured.get("valid_loss")
        if loss is not None and math.isfinite(loss):
            with stop.saving():  # it may wait for the checkpoint under way
                self.checkpoints.consider(loss, self.place.step)
        if result is not None:
            result.validation = {**measured, "valid_seconds": round(time.perf_counter() - began, 4)}
        return 0.0

    # --- checkpoints

    def _checkpoint(self) -> None:
        """What stands beside a checkpoint is on disk before it is."""
        began = time.perf_counter()
        self._refuse_nonfinite_weights()
        self.metrics.sync()
        self.trainer.trace.sync()
        self.checkpoints.save(self._saved(), began)

    def _saved(self) -> Saved:
        scale = self.trainer.scale
        factor = None if scale is None else (scale.value, scale.since)
        return Saved(self.place, self.identity, self.checkpoints.best, self.unvalidated, factor)

    def _amend(self) -> None:
        """Tell the checkpoint that was resumed from of the validation that it had still to get."""
        try:
            if self.world.is_root:
                amend(self.directory / "checkpoints", self._saved())
        except (OSError, ValueError, TypeError) as error:  # a later attempt validates again
            self.metrics.say(f"the validation of this checkpoint was not noted ({error})")

    def _refuse_nonfinite_weights(self) -> None:
        """The loss was finite before the update; the weights have to be so after it."""
        held = [local(parameter) for parameter in self.trainer.parameters]
        held = [tensor for tensor in held if tensor.numel()]  # of a few rows not each rank has one
        norms = torch._foreach_norm(held) if held else []
        sound = not norms or bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
        if not all(gather(sound)):  # each rank may see its own part alone
            raise RunFailed(
                f"step {self.place.step}: the update left weights that are no longer finite; all "
                "ranks stopped. The checkpoints before it are sound. Try a smaller --lr"
            )

    # --- the end

    def _stopped(self, to_go_on: bool) -> Outcome:
        """End this attempt; where nobody ended the run, the job goes on in a next one."""
        saved = self.checkpoints.settle()
        if to_go_on:
            self._ask_for_next_attempt(saved)
        where = f"stopped at step {self.place.step} of {self.last}"
        self.metrics.say(where + (", to go on in a next attempt" if to_go_on else ""))
        return Outcome(self.place, finished=False)

    def _finish(self, stop: Deadline) -> Outcome:
        """Evaluate the model as it is now, and write it."""
        try:
            measured = self._losses("valid", self.task.valid, stop)
            measured |= self._losses("test", self.task.test, stop)
        except Stopped as stopped:
            if stopped.wishes < END:
                if self.place.step <= self.done:  # the next attempt would come no further
                    raise RunFailed(
                        "the time limit is too short for the last evaluation; --resume with more"
                    ) from None
                self._ask_for_next_attempt(self.checkpoints.settle())
            self.metrics.say("stopped in the last evaluation; the next attempt does it again")
            return Outcome(self.place, finished=False)
        both = measured.pop("valid_loss", None), measured.pop("test_loss", None)
        record: dict[str, Any] = {"step": self.place.step}
        record |= {"valid_loss": both[0], "test_loss": both[1], **measured}
        if not self.checkpoints.settle():
            self.metrics.say(
                f"the checkpoint of step {self.checkpoints.newest} was not kept; --resume would go "
                "on from an older one, if there is any"
            )
        if self.checkpoints.best:
            record["best_valid_loss"], record["best_step"] = self.checkpoints.best
        self.metrics.final(record)
        if missing := write_final(self.built, self.directory, self.metrics.say):
            raise RunFailed(
                f"{self.directory} has no {missing}; make room, and if checkpoints/ holds a "
                "whole checkpoint, --resume writes it from there"
            )
        return Outcome(self.place, True, *both, measured)

    def _ask_for_next_attempt(self, saved: bool) -> None:
        if not saved:  # the next attempt would come no further
            raise RunFailed(
                f"the time limit came at step {self.place.step} of {self.last} and no checkpoint "
                "could be written; make room, and --resume goes on from the newest whole one"
            )
        if self.world.is_root:
            ask_for_next_attempt()
