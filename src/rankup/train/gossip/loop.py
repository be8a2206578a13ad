"""The loop of one gossip worker: draw a share, train on it, mix; the speaker writes for all."""

from __future__ import annotations

import time
from pathlib import Path

from ...base.errors import RunFailed
from ...base.text import say
from ...parallel.lowcomm.gossip.alive import Progress, patience
from ...parallel.lowcomm.gossip.board import Board, Pulse, StoreLost
from ...parallel.lowcomm.gossip.meet import Meeting
from ...parallel.lowcomm.gossip.mixing import Mixer
from ...runtime.deadline import END
from ...runtime.world import FIRST_TIMEOUT, World
from ..keeper import Keeper
from ..metrics import Lines
from ..options import TrainOptions
from ..outcome import Outcome
from ..plan import Plan
from ..stop import Stop
from ..task import Task
from ..trace import Trace
from .local import Done, LocalStep
from .record import RunLines, Tally, cut_back, step_line
from .speaker import Speaker
from .start import Who, begin_together, built, restore
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
        self.lines = RunLines(self.board, directory, task.unit)
        pulse_board = Board.connect(who.address, who.workers)
        self.progress = Progress(patience(), FIRST_TIMEOUT.total_seconds())
        self.pulse = Pulse(pulse_board, who.worker, self.lines.say, self.progress)
        plan = Plan.of(task, options)
        self.last = options.steps or plan.steps_per_epoch * (options.epochs or 1)
        self.built = built(task, options, world)
        optimizer = task.build_optimizer(self.built.model)
        self.keeper = Keeper(
            *(directory, options, self.built, optimizer, self.lines.say),
            self.lines.checkpoint,
            allowed=lambda: self.pulse.surely_speaker,
        )
        self.done = done = restore(self.keeper, self.last, who.worker) if resume else 0
        name = f"worker {who.worker} (node {world.node})"
        self.step = LocalStep(
            *(task, options, self.built, optimizer, self.last, name), self.progress.moved
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
        path = options.trace_samples and f"{options.trace_samples}.{who.worker}"
        self.trace = Trace(path, world, done)
        if resume and who.worker == 0:
            cut_back(directory, options.trace_samples, who.workers, done)
        self.own = Lines(directory / f"metrics-{who.worker}.jsonl", done, self.lines.say)
        self.lines.begin(self.last, done)
        self.speaker = Speaker(
            *(task, options, self.built, self.board, self.keeper, self.lines, self.step.loss),
            *(directory, who.worker, self.last, done),
        )
        self.slowest, self.closed = 0.0, False
        self.clock: float | None = None  # when this attempt has to end
        self.last_ticket, self.last_time = -1, time.perf_counter()
        self.flops = task.flops_per_unit(self.built.whole)

    def loop(self, stop: Stop) -> None:
        """All shares that this worker gets."""
        while (ticket := self._draw()) is not None:
            if ticket.share:
                done = self.step.take(ticket)
                self.slowest = max(self.slowest, done.seconds)
                self.progress.step(done.seconds)
                before = Tally(**vars(self.tally))
                if self.pulse.was_away():
                    self.mixer.fall_behind()
                self.mixer.exchange(self.pulse.absent)
                self._count(ticket)
                self._write(done, before, stop)
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
            if place.step < self.last:
                return self.speaker.stopped(place, stop)
            return self.speaker.finish(place, came, sorted(self.pulse.absent), stop)

    def close(self) -> None:
        self.pulse.close()
        self.keeper.close()
        self.own.close()
        self.lines.close()

    def _draw(self) -> Ticket | None:
        began = time.perf_counter()
        ticket = self.tickets.draw()
        self.tally.in_hand = ticket.samples if ticket else 0
        self._publish()
        self.tally.waited += time.perf_counter() - began
        return ticket

    def _count(self, ticket: Ticket) -> None:
        tally, mixer = self.tally, self.mixer
        tally.shares += 1
        tally.samples += ticket.samples
        tally.in_hand = 0
        tally.bytes_sent, tally.extra_compute = mixer.bytes_sent, mixer.seconds
        for samples in self.step.drawn:
            self.trace.drew(samples)
        self.trace.write(ticket.step)

    def _publish(self) -> None:
        self.board.set(f"tally/{self.who.worker}", self.tally.text())

    def _tell_cut_off(self) -> None:
        for other, why in self.mixer.cut_off(self.pulse.absent, time.monotonic()).items():
            say(
                f"worker {self.who.worker} has no connection to worker {other} any more ({why}); "
                "both go on with other neighbours",
                "",
            )

    def _write(self, done: Done, before: Tally, stop: Stop) -> None:
        """This worker's line; as the speaker also the run's, a validation and a checkpoint."""
        now, number = time.perf_counter(), done.ticket.number
        handed_out, elapsed = number - self.last_ticket, now - self.last_time
        self.last_ticket, self.last_time = number, now
        record = step_line(
            done,
            before,
            self.tally,
            handed_out,
            elapsed,
            self.task.unit,
            self.flops,
            self.world,
            self.who.workers,
        )
        self.own.write(record)
        if self.pulse.surely_speaker:
            record["worker"] = self.who.worker
            with self.progress.unhurried():
                self.speaker.step(record, self.tickets.place(), stop)
        else:
            self.speaker.rest(record["step"])
