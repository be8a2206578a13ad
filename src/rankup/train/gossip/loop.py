"""The loop of one gossip worker: draw a share, train on it, mix; the speaker writes for all."""

from __future__ import annotations

import contextlib
import io
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ...base.errors import RunFailed, UserError
from ...base.text import say
from ...parallel.build import Built
from ...parallel.layout import Layout
from ...parallel.lowcomm.gossip import alive
from ...parallel.lowcomm.gossip.board import Board, Pulse, StoreLost, look_again_after
from ...parallel.lowcomm.gossip.meet import Meeting
from ...parallel.lowcomm.gossip.mixing import Mixer
from ...parallel.mesh import Mesh
from ...runtime.deadline import END
from ...runtime.world import FIRST_TIMEOUT, World
from ..attempt import Outcome
from ..keeper import Keeper
from ..metrics import Lines, Trace, step_record
from ..options import TrainOptions
from ..plan import Plan
from ..profile import Profile
from ..start import assemble, fill
from ..step import Stepper
from ..stop import Stop
from ..taken import Taken
from ..task import Batch, Task
from .record import RunLines, Tally, cut_back
from .speaker import Speaker
from .tickets import Ticket, Tickets


def train(
    task: Task, options: TrainOptions, world: World, directory: Path, *, resume: bool = False
) -> Outcome:
    """Train `task` as one of the workers that the launcher has started.

    Leaves `metrics-<worker>.jsonl` in `directory`, and through whoever is the speaker what every
    run leaves: `metrics.jsonl`, `checkpoints/` and `model-final.pt`.

    Raises:
        UserError: the checkpoint is of another model or run, or the launch is another one.
        RunFailed: this worker's loss is no longer finite, or the store is gone.
    """
    who = Who.am_i()
    try:
        run = _Run(who, task, options, world, directory, resume)
        try:
            with Stop().listening() as stop:
                run.clock = stop.end
                run.loop(stop)
                return run.end(stop)
        finally:
            run.close()
    except StoreLost as error:
        raise RunFailed(str(error)) from None


@dataclass(frozen=True)
class Who:
    """This worker.

    Attributes:
        worker, workers: its number, and how many there are.
        address: host:port of the store.
    """

    worker: int
    workers: int
    address: str

    @classmethod
    def am_i(cls) -> Who:
        """As the launcher has put it into the environment.

        Raises:
            UserError: something else has started this process, or there is nobody to talk to.
        """
        values = [os.environ.get(name) for name in (alive.WORKER, alive.WORKERS, alive.STORE)]
        if None in values:
            raise UserError(
                "--strategy gossip needs a launch of its own, in which no worker's end ends the "
                "others: use `rankup run`"
            )
        worker, workers, address = (str(value) for value in values)
        if int(workers) < 2:
            raise UserError("--strategy gossip on one worker has nobody to talk to")
        return cls(int(worker), int(workers), address)


class _Run:
    """One worker's attempt."""

    def __init__(
        self,
        who: Who,
        task: Task,
        options: TrainOptions,
        world: World,
        directory: Path,
        resume: bool,
    ) -> None:
        self.who, self.task, self.options, self.world = who, task, options, world
        self.board = Board.connect(who.address, who.workers)
        self.board.set(f"node/{who.worker}", world.node)
        self.lines = RunLines(self.board, directory, task.unit, options)
        pulse_board = Board.connect(who.address, who.workers)
        self.progress = alive.Progress(alive.patience(), FIRST_TIMEOUT.total_seconds())
        self.pulse = Pulse(pulse_board, who.worker, self.lines.say, self.progress)
        plan = Plan.of(task, options)
        self.last = options.steps or plan.steps_per_epoch * (options.epochs or 1)
        options.refuse_profile_beyond(self.last)
        mesh = Mesh(Layout(), world)  # of this one process
        self.built = assemble(task, options, mesh)
        optimizer = task.build_optimizer(self.built.model)
        self.keeper = Keeper(
            directory,
            options,
            self.built,
            optimizer,
            self.lines.say,
            self.lines.checkpoint,
            allowed=lambda: self.pulse.surely_speaker,
        )
        self.done = done = restore(self.keeper, self.last, who.worker) if resume else 0
        if done == 0:
            fill(task, self.built)
        self.stepper = _Watched(
            task, options, self.built, optimizer, self.last, self.progress.moved
        )
        self.mixer = Mixer(
            self.built.model, who.worker, who.workers, who.address, options.compression
        )
        self.tally = Tally(extra_memory=self.mixer.memory)
        self.tally.waited += begin_together(
            self.board, who.worker, done, self.mixer.flat.gather().cpu(), lambda: self.pulse.absent
        )
        self.progress.moved()
        self.tickets = Tickets(self.board, plan, done, self.last)
        self.stepper.profile = Profile.wanted(
            options, directory, world, done, f"worker{who.worker}"
        )
        path = options.trace_samples and f"{options.trace_samples}.{who.worker}"
        self.stepper.trace = Trace(path, world, done)
        if resume and who.worker == 0:
            cut_back(directory, options.trace_samples, who.workers, done)
        self.own = Lines(directory / f"metrics-{who.worker}.jsonl", done, self.lines.say)
        self.lines.begin(self.last, done)
        self.speaker = Speaker(
            task,
            options,
            self.stepper,
            self.keeper,
            self.lines,
            directory,
            self.last,
            done,
            self.board,
            who.worker,
        )
        self.slowest, self.closed = 0.0, False
        self.clock: float | None = None  # when this attempt has to end
        self.last_ticket, self.last_time = -1, time.perf_counter()
        self.flops = task.flops_per_unit(self.built.whole)

    def loop(self, stop: Stop) -> None:
        """All shares that this worker gets."""
        while (ticket := self._draw()) is not None:
            if ticket.step.micro_batches:
                taken = self._take(ticket, stop)
                before = self.tally.cost
                if self.pulse.was_away():
                    self.mixer.fall_behind()
                self.mixer.exchange(self.pulse.absent)
                self._count(ticket)
                taken.cost = self.tally.cost - before
                self._write(ticket, taken, stop)
            self.progress.moved()
            self.pulse.look()
            self._tell_cut_off()
            # The clock is the speaker's, which knows how long a checkpoint takes.
            stop.end = self.clock if self.pulse.is_speaker else None
            if (wish := stop.wish) and not self.closed:
                self.board.wish(wish >= END)
                self.board.close()
                self.closed = True
            stop.tick()

    def end(self, stop: Stop) -> Outcome:
        """Come together, and let the speaker finish the run for all."""
        if self.pulse.was_away():
            self.mixer.fall_behind()
        self.mixer.take()  # a neighbour has moved by its half of what came since
        old = self.mixer.behind
        values = None if old else self.mixer.flat.gather().cpu()
        meeting = Meeting(
            self.board,
            self.who.address,
            self.who.worker,
            lambda: self.pulse.absent,
            10 * self.slowest,
            self.progress.moved,
        )
        ended = meeting.hand_over(values)
        if ended:
            return Outcome(self.tickets.place(), ended == "finished")
        stop.end = self.clock
        place = self.tickets.place()
        with stop.saving():
            mean, came = meeting.gather(self.mixer.flat.gather().cpu(), old)
            self.mixer.flat.scatter(mean)
            if self.speaker.replaced:
                return Outcome(place, finished=False)
            with self.progress.unhurried():
                self.speaker.save(place, stop, again=True)
        self.tally.waited += meeting.waited
        self.tally.bytes_sent += meeting.bytes_sent
        self._publish()
        with self.progress.unhurried():
            return self.speaker.end(place, came, sorted(self.pulse.absent), stop)

    def close(self) -> None:
        if self.stepper.profile is not None:
            self.stepper.profile.close()
        self.pulse.close()
        self.keeper.close()
        self.own.close()
        self.lines.close()

    def _draw(self) -> Ticket | None:
        began = time.perf_counter()
        ticket = self.tickets.draw()
        self.tally.in_hand = len(ticket.step.samples) if ticket else 0
        self._publish()
        self.tally.waited += time.perf_counter() - began
        return ticket

    def _take(self, ticket: Ticket, stop: Stop) -> Taken:
        """Train on a share; RunFailed where that left nothing finite, before others get of it."""
        self.stepper.pause()
        taken = self.stepper.take(ticket.step, stop)
        _, nonfinite, _, _, norm = taken.late.read()
        if nonfinite or taken.fails(norm):
            raise RunFailed(
                f"step {ticket.step.number}: the {'loss' if nonfinite else 'gradient norm'} of "
                f"worker {self.who.worker} (node {self.world.node}) is no longer finite. Try a "
                "smaller --lr, a --warmup or a lower --clip"
            )
        self.slowest = max(self.slowest, taken.clock.seconds)
        self.progress.step(taken.clock.seconds)
        return taken

    def _count(self, ticket: Ticket) -> None:
        tally, mixer = self.tally, self.mixer
        tally.shares += 1
        tally.samples += len(ticket.step.samples)
        tally.in_hand = 0
        tally.bytes_sent, tally.extra_compute = mixer.bytes_sent, mixer.seconds

    def _publish(self) -> None:
        self.board.set(f"tally/{self.who.worker}", self.tally.text())

    def _tell_cut_off(self) -> None:
        for other, why in self.mixer.cut_off(self.pulse.absent, time.monotonic()).items():
            say(
                f"worker {self.who.worker} has no connection to worker {other} any more ({why}); "
                "both go on with other neighbours",
                "",
            )

    def _write(self, ticket: Ticket, taken: Taken, stop: Stop) -> None:
        """This worker's line; as the speaker also the run's, a validation and a checkpoint."""
        now, workers = time.perf_counter(), self.who.workers
        handed_out, elapsed = ticket.number - self.last_ticket, now - self.last_time
        self.last_ticket, self.last_time = ticket.number, now
        loss, _, _, waited, norm = taken.late.read()
        # All workers' rate, as if their shares were as large as this one.
        rate = taken.count * handed_out / max(elapsed, 1e-9)
        unit, world = self.task.unit, self.world
        record = step_record(taken, loss, waited, norm, unit, self.flops, world, rate, workers)
        del record["seconds"]  # of the share alone
        record["share"] = ticket.number % workers
        self.own.write(record)
        if self.pulse.surely_speaker:
            record["worker"] = self.who.worker
            with self.progress.unhurried():
                self.speaker.step(record, self.tickets.place(), stop)
        else:
            self.speaker.rest(record["step"])


class _Watched(Stepper):
    """Says at each micro-batch, also of an evaluation, that this worker gets on."""

    def __init__(
        self,
        task: Task,
        options: TrainOptions,
        built: Built,
        optimizer: torch.optim.Optimizer,
        last: int,
        moved: Callable[[], None],
    ) -> None:
        super().__init__(task, options, built, optimizer, last)
        self._moved = moved

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self._moved()
        return super().loss(model, batch)

    def sums(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self._moved()
        return super().sums(model, batch)


def restore(keeper: Keeper, last: int, worker: int) -> int:
    """Go back to the newest checkpoint, which is a speaker's: the number of steps done.

    Args:
        last: number of the run's last step.
    """
    # One of them says where; each is the root of a group of one.
    silent = contextlib.redirect_stdout(io.StringIO())
    with contextlib.nullcontext() if worker == 0 else silent:
        saved = keeper.restore(last)
    return 0 if saved is None else saved.place.step


def begin_together(
    board: Board, worker: int, step: int, values: torch.Tensor, absent: Callable[[], frozenset[int]]
) -> float:
    """Wait until all workers that live have come here with the same values; seconds waited.

    Images of each other start equal, so a worker that starts elsewhere would mislead the others.

    Args:
        step: that the run goes on from.
        values: float32 of shape (n,).
        absent: who is not waited for, now.

    Raises:
        RunFailed: the others start from another step or other values, or do not come.
    """
    mine = f"{step} {zlib.crc32(values.numpy().tobytes()):08x}"
    began = time.monotonic()
    board.set(f"ready/{worker}", mine)
    while True:
        said = board.ready()
        missing = [w for w, text in enumerate(said) if not text and w not in absent()]
        if not missing:
            break
        if time.monotonic() - began > FIRST_TIMEOUT.total_seconds():
            raise RunFailed(f"worker {missing[0]} lives and has not begun to train")
        time.sleep(look_again_after(board.workers))
    first, theirs = next((w, text) for w, text in enumerate(said) if text)
    if theirs != mine:
        raise RunFailed(
            f"worker {worker} starts from other weights than worker {first} (step and checksum "
            f"{mine} and {theirs}); do all nodes see the same checkpoints and code?"
        )
    return time.monotonic() - began
