"""The training loop: the same run on any number of ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..base.errors import RunFailed
from ..runtime.collectives import all_gather_object, all_reduce
from ..runtime.deadline import END, Deadline
from ..runtime.state import local
from ..runtime.world import World, after_first_step
from . import checkpoint
from .attempt import Attempt, Outcome
from .ema import Average
from .evaluate import Stopped
from .keeper import Keeper
from .metrics import Metrics, Silence, Trace, step_record
from .optimizer import LossScale
from .options import TrainOptions
from .plan import Place, Plan
from .profile import Profile
from .rounds import rounds, taker
from .start import fill, start
from .step import Stepper
from .taken import Taken
from .task import Task

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


# For all of a run: what a backward computes again has to find the same kernel.
@sdpa_kernel(_KERNELS, set_priority=True)
def train(
    task: Task, options: TrainOptions, world: World, directory: Path, *, resume: bool = False
) -> Outcome:
    """Train `task` on all ranks; call on every rank.

    Leaves `metrics.jsonl`, `checkpoints/` and `model-final.pt` in `directory`.
    With `resume` it goes on from the newest whole checkpoint there, at any world size.

    Raises:
        UserError: the checkpoint belongs to another model or another run.
        RunFailed: the loss is no longer finite; says at which step and on which ranks.
    """
    run = _Run(task, options, world, directory, resume)
    try:
        with Stop().listening() as stop:
            outcome = run.loop(stop)
        if run.stepper.profile is not None:  # not where it failed: a GPU may hang
            run.stepper.profile.close()
        return outcome
    finally:
        run.stepper.garbage.release()
        run.stepper.feed.close()
        run.keeper.close()
        run.metrics.close()


class _Run:
    """One attempt of a run: everything the loop holds between its steps."""

    def __init__(
        self, task: Task, options: TrainOptions, world: World, directory: Path, resume: bool
    ) -> None:
        self.task, self.options, self.world, self.directory = task, options, world, directory
        self.plan = Plan.of(task, options)
        self.last = options.steps or self.plan.steps_per_epoch * (options.epochs or 1)
        options.refuse_profile_beyond(self.last)
        self.built = start(task, options, world)
        # Before the optimizer and copies of the model take what it begins with.
        if not (resume and checkpoint.candidates(directory / "checkpoints")[0]):
            fill(task, self.built)
        self.optimizer = task.build_optimizer(self.built.model)
        self.place = Place()
        self.unvalidated = False
        self.stepper = Stepper(task, options, self.built, self.optimizer, self.last)
        self.taker = taker(self.stepper, self.built, options, self.plan.n)
        if options.ema is not None:
            average = Average(self.built, options.ema)
            self.stepper.average = self.taker.carried.average = average
        self.keeper = Keeper(
            directory,
            options,
            self.built,
            self.optimizer,
            lambda text: self.metrics.say(text),
            lambda *stood: self.metrics.checkpoint(*stood),
            self.taker.carried,
        )
        saved = self.keeper.restore(self.last) if resume else None
        if saved is not None:
            self.place, self.unvalidated = saved.place, saved.unvalidated
            if self.stepper.scale is not None and saved.loss_scale is not None:
                self.stepper.scale = LossScale(*saved.loss_scale)
        self.stepper.feed.begin(self.stepper.coming(self.plan.steps(self.place, self.last)))
        self.stepper.trace = Trace(options.trace_samples, world, self.place.step)
        self.metrics: Metrics | Silence = Silence()
        if world.is_root:
            self.metrics = Metrics(directory, task.unit, self.last, self.place.step, options)
        self.stepper.profile = Profile.wanted(options, directory, world, self.place.step)
        self.attempt = Attempt(
            task,
            options,
            self.stepper,
            self.keeper,
            self.metrics,
            directory,
            self.last,
            self.place.step,
        )
        self.flops = task.flops_per_unit(self.built.whole)
        self.unread: list[Taken] = []

    def loop(self, stop: Deadline) -> Outcome:
        """All steps that are left; validation, checkpoints and a wish to stop between them."""
        wishes = 0.0  # over all ranks, so the same on each
        if self.unvalidated:
            wishes = self._validate(None, stop)
            self.keeper.amend(self.place, self.unvalidated, self._loss_scale)
        first = self.place.step + 1
        steps = self.plan.steps(self.place, self.last)
        for number, steps_of_round in enumerate(rounds(steps, self.taker.meets)):
            if number == 0 and first > 1 and self.built.has_buckets:
                self.stepper.settle_buckets(steps_of_round[0])
            before = self.place.step
            taken = self.taker.take(steps_of_round, stop)
            wishes += self._report()
            self.unread, self.place = taken, taken[-1].step.after
            if number == 1:
                after_first_step()  # the first round's numbers are here: every rank has done it
            if self._passed(self.attempt.every_valid, before):
                wishes += self._validate(taken[-1], stop)
                self.stepper.pause()
            if self.taker.at_once:
                wishes += self._report()
            if (
                self._passed(self.attempt.every_checkpoint, before)
                or wishes
                or self.keeper.is_best(self.place.step)
            ):
                # A step is known to be sound before it is kept.
                wishes += self._report()
                with stop.saving():
                    self._checkpoint(stop)
                self.stepper.pause()
                if wishes and self.place.step < self.last:
                    return self.attempt.stopped(self.place, wishes < END, stop)
            self.keeper.look()
            stop.tick()
        self._report()
        return self.attempt.finish(self.place, stop)

    def _passed(self, every: int, before: int) -> bool:
        """Whether a multiple of `every` lies in the steps since `before`, or the end."""
        return self.place.step // every > before // every or self.place.step == self.last

    def _report(self) -> float:
        """Write the lines of the steps whose numbers are here by now; the ranks' wishes to stop.

        All ranks read the same sums, so what they decide here they decide together.
        """
        unread, self.unread = self.unread, []
        return sum(self._report_step(taken) for taken in unread)

    def _report_step(self, taken: Taken) -> float:
        loss_sum, nonfinite, wishes, waited, norm = taken.late.read()
        if nonfinite or taken.fails(norm):
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
        first, last = taken.dealt.start, taken.dealt.stop - 1
        which = f"micro-batches {first}..{last}" if taken.dealt else "without work in this step"
        finite = all(bool(torch.isfinite(loss)) for loss in taken.losses)
        everyone = all_gather_object((finite, self.world.node, which))
        guilty = [
            f"rank {rank} on {node} ({dealt})"
            for rank, (finite, node, dealt) in enumerate(everyone)
            if not finite
        ]
        what = f"the loss on {', '.join(guilty)}" if guilty else "the gradient norm"
        raise RunFailed(
            f"step {taken.step.number}: {what} is no longer finite; all ranks stopped. "
            "The checkpoints before it are sound. Try a smaller --lr, a --warmup or a lower --clip"
        )

    def _validate(self, taken: Taken | None, stop: Deadline) -> float:
        """Evaluate into the step's line; the wishes when asked to stop."""
        begun = time.perf_counter()
        try:
            found = self.attempt.validate(self.place, stop)
        except Stopped as stopped:
            self.unvalidated = True
            return stopped.wishes
        self.unvalidated = False
        if taken is not None:
            taken.validation = {**found, "valid_seconds": round(time.perf_counter() - begun, 4)}
        return 0.0

    def _checkpoint(self, stop: Deadline) -> None:
        """What stands beside a checkpoint is on disk before it is."""
        begun = time.perf_counter()
        self._refuse_nonfinite_weights()
        self.metrics.sync()
        self.stepper.trace.sync()
        self.keeper.save(self.place, self.unvalidated, stop, begun, self._loss_scale)

    @property
    def _loss_scale(self) -> tuple[float, int] | None:
        scale = self.stepper.scale
        return None if scale is None else (scale.value, scale.since)

    def _refuse_nonfinite_weights(self) -> None:
        """The loss was finite before the update; the weights have to be so after it."""
        held = [local(parameter) for parameter in self.stepper.parameters]
        held = [tensor for tensor in held if tensor.numel()]  # of a few rows not each rank has one
        norms = torch._foreach_norm(held) if held else []
        sound = not norms or bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
        if self.built.mesh.together:  # each rank sees its own part alone
            sound = all_reduce(float(sound), "min") > 0
        if not sound:
            raise RunFailed(
                f"step {self.place.step}: the update left weights that are no longer finite; all "
                "ranks stopped. The checkpoints before it are sound. Try a smaller --lr"
            )
