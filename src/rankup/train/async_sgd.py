"""Asynchronous SGD: a worker takes the next micro-batch with the newest parameters, brings its
gradient when it is ready, and goes on (Dean et al. 2012; bounded as by Ho et al. 2013; computed
where the parameters will be when it comes, as far as their last change tells: Chen et al. 2018).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from ..parallel.build import Built
from ..parallel.lowcomm.async_sgd import Brought, Desk, Server, Ticket, Version, Versions, Window
from ..parallel.lowcomm.flat import Cost, Flat, OfFlat, Owed
from ..runtime.collectives import broadcast
from ..runtime.compress.codecs import Whole, make
from ..runtime.compress.sums import Feedback, Spent
from .checkpoint import Carried
from .options import TrainOptions
from .plan import Step
from .start import refuse_unused
from .step import Stepper
from .stop import Stop
from .taken import Late, Taken

Exchange = Callable[[Brought | None], tuple[Ticket | None, torch.Tensor | None]]


@dataclass(frozen=True)
class _Applied:
    """A version, as all ranks are told of it.

    Attributes:
        seconds, ended: since the version before; since 1970.
        numbers: what `Taken.late` holds.
        staleness: how many gradients were how many versions late.
    """

    lr: float
    count: int
    seconds: float
    ended: float
    numbers: tuple[float, ...]
    staleness: Mapping[int, int]


@dataclass(frozen=True)
class _Clock:
    seconds: float

    def stop(self) -> None: ...


class AsyncSGD:
    """Takes rounds of steps; rank 0 holds the parameters that count, and computes like the others.

    Args:
        meets: whether all ranks meet after a step.
    """

    at_once = True

    def __init__(
        self,
        stepper: Stepper,
        built: Built,
        options: TrainOptions,
        meets: Callable[[Step], bool],
    ) -> None:
        self._stepper, self._options, self._world = stepper, options, built.mesh.world
        self.meets = meets
        self._master = Flat(built.model)
        self._worker, self._flat = stepper, self._master
        if self._world.is_root:  # what it computes with stays as it is while others bring theirs
            model = copy.deepcopy(built.model)
            if options.compile:
                model.compile()  # a copy has lost it
            self._worker = stepper.on(replace(built, model=model, replica=model))
            self._flat = Flat(model)
        size = self._world.world_size
        self._group = dist.new_group(backend="gloo", group_desc="mesh_async") if size > 1 else None
        self._codec, self._feedback = make(options.compression), Feedback()
        debtor = OfFlat(self._flat, self._feedback, torch.device("cpu"))
        self._owed = Owed(debtor, "gradient", self._world.rank, size)
        others = range(1, size) if self._world.is_root and options.compression else ()
        self._known = {worker: self._trained() for worker in others}
        self._values = self._parameters()  # what this worker computes with
        self._checked = False
        self._steps: list[Step] = []
        self._applied: list[_Applied] = []
        self._spent, self._told, self._since = Spent(), Cost(), 0.0
        self._bad: tuple[range, list[torch.Tensor]] = range(0), []
        self.carried = Carried(exchange=self)

    def state(self) -> dict[str, torch.Tensor]:
        return self._owed.state()

    def wanted(self, saved: Collection[str]) -> dict[str, torch.Tensor]:
        return self._owed.wanted(saved)

    def resume(self, loaded: Mapping[str, torch.Tensor]) -> None:
        self._owed.resume(loaded)
        if not self._world.is_root:  # the optimizer that counts is rank 0's
            self._stepper.optimizer.state.clear()
        for known in self._known.values():
            known.copy_(self._trained())
        self._values.copy_(self._parameters())

    def take(self, steps: list[Step], stop: Stop) -> list[Taken]:
        self._steps, self._applied, self._since = steps, [], time.perf_counter()
        self._worker.trace = self._stepper.trace
        if self._world.is_root:
            self._serve(steps, stop)
        else:
            window = Window(
                *(self._group, self._codec, self._feedback, self._values),
                *(self._master.trained, self._spent),
            )
            self._work(window.exchange, steps, stop)
        self._master.agree_on_counts(None)  # rank 0 has the most
        applied: list[_Applied] = broadcast(self._applied)
        self._stepper.trace.write(steps[len(applied) - 1])
        return self._taken(steps, applied)

    def _serve(self, steps: list[Step], stop: Stop) -> None:
        """Rank 0's round: a thread for each other worker, and its own work."""
        versions = Versions(
            [len(step.micro_batches) for step in steps], self._options.max_staleness
        )
        server = Server(
            *(versions, self._apply, self._parameters, self._empty),
            *(self._options.damp_staleness, self._options.look_ahead),
        )
        # Frozen parts and whole numbers, too, which no exchange brings.
        self._worker.built.model.load_state_dict(self._stepper.built.model.state_dict())
        trained = self._master.trained
        desks = [
            Desk(server, worker, self._group, self._codec, trained, self._known.get(worker))
            for worker in range(1, self._world.world_size)
        ]
        self._work(lambda brought: server.exchange(0, brought), steps, stop)
        for desk in desks:
            desk.join()
            self._spent.bytes_sent += desk.spent.bytes_sent
            self._spent.coding += desk.spent.coding
        self._spent.waited += server.waited[0]
        server.check()

    def _work(self, exchange: Exchange, steps: list[Step], stop: Stop) -> None:
        """A worker's round: fetch, compute, bring."""
        brought: Brought | None = None
        present: torch.Tensor | None = None
        begun = 0
        while True:
            ticket, newest = exchange(brought)
            if newest is not None and newest is not present:
                self._flat.scatter(newest)
            if ticket is None:
                return
            present = newest if self._world.is_root else None
            if ticket.step > begun:  # a new step of the run, for the margin of the deadline
                begun = ticket.step
                stop.tick()
            brought = self._compute(steps[ticket.step], ticket.index, stop)

    def _compute(self, step: Step, index: int, stop: Stop) -> Brought:
        """The gradient of one micro-batch."""
        worker = self._worker
        turn = worker.gradient(step, index, stop)
        [loss] = turn.losses
        value = loss.item()  # waits for a GPU, which is no cost of the exchange
        positions, task = step.micro_batches[index], self._stepper.task
        count = task.train.count(step.samples[positions.start : positions.stop])
        if not self._checked:
            refuse_unused(worker.built.model)
            self._checked = True
        with self._spent.at("coding"):
            # In the measure of a mean, so that what is owed of one step fits into another.
            gradient = self._flat.gradients().cpu().div_(max(1, task.train.count(step.samples)))
            whole = self._world.is_root or isinstance(self._codec, Whole)
            if whole and self._feedback.residual is not None:
                gradient += self._feedback.residual  # of workers that are no more; paid at once
                self._feedback.residual = None
        worker.built.model.zero_grad(set_to_none=True)
        finite = bool(torch.isfinite(loss))
        if not finite:
            self._bad = range(index, index + 1), [loss]
        statistics = worker.statistics.total(torch.device("cpu")).cpu()
        return Brought(gradient, value, count, finite, turn.waited, stop.wish, statistics)

    def _apply(self, version: Version) -> None:
        """Take a complete version into the parameters that count; rank 0, one at a time."""
        stepper, step = self._stepper, self._steps[len(self._applied)]
        lr = stepper.learning_rate(step)
        self._master.give_gradients(version.gradient.to(self._master.device))
        norm = float(stepper.clip())
        stepper.optimizer.step()
        stepper.optimizer.zero_grad(set_to_none=True)
        statistics = version.statistics.to(self._world.device)
        stepper.statistics.end_step(statistics, len(step.micro_batches))
        now, since = time.perf_counter(), self._since
        self._since = now
        numbers = (version.loss, version.nonfinite, version.wish, version.waited, norm)
        staleness = dict(sorted(version.staleness.items()))
        self._applied.append(
            _Applied(lr, version.count, now - since, time.time(), numbers, staleness)
        )

    def _parameters(self) -> torch.Tensor:
        return self._master.gather().cpu()

    def _trained(self) -> torch.Tensor:
        return self._master.gather_trained().cpu()

    def _empty(self) -> Version:
        statistics = torch.zeros(self._stepper.statistics.size, dtype=torch.float64)
        return Version(torch.zeros(self._master.trained), statistics)

    def _taken(self, steps: list[Step], applied: list[_Applied]) -> list[Taken]:
        cost = self._cost(len(applied))
        dealt, losses = self._bad
        return [
            Taken(
                step=step,
                lr=version.lr,
                count=version.count,
                late=Late(torch.tensor(version.numbers, dtype=torch.float64)),
                losses=losses,
                dealt=dealt,
                clock=_Clock(version.seconds),
                ended=version.ended,
                cost=cost,
                staleness=version.staleness,
            )
            for step, version in zip(steps, applied, strict=False)
        ]

    def _cost(self, versions: int) -> Cost:
        """Of one version of the round, the mean over ranks."""
        # What it computes with, and a gradient; on rank 0 the newest version, what lies ahead of
        # it, the sum of the next one, a model to compute with, and what it knows of each worker.
        held = 4 * (self._values.numel() + self._master.trained)
        if self._world.is_root:
            copies = 3 if self._options.look_ahead and self._options.max_staleness else 2
            held += 4 * (copies * self._master.size + self._master.trained * (1 + len(self._known)))
        if self._feedback.residual is not None:
            held += self._feedback.residual.nbytes
        so_far = Cost.of(self._spent, held)
        mine, self._told = so_far - self._told, so_far
        total = torch.tensor(mine.numbers(), dtype=torch.float64, device=self._world.device)
        dist.all_reduce(total)
        mean = Cost(*(total / self._world.world_size).tolist())
        return mean.over(versions)
