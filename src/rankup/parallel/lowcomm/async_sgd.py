"""Asynchronous SGD: the parameters that count, on rank 0, and how workers reach them.

A version is one global batch applied. A micro-batch is given out with the newest parameters; how
many versions are applied until its gradient is added is its staleness.

For every micro-batch a worker sends a head of numbers, then its gradient; it gets a head, then the
parameters where they have changed. All goes over one gloo group, from host memory. What is sent may
be compressed: of the gradient what that loses is added to the next one; of the parameters, rank 0
knows what the worker has, and sends what is missing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ...runtime.compress.codecs import Codec, Whole
from ...runtime.compress.sums import Feedback, Spent


@dataclass(frozen=True)
class Ticket:
    """A micro-batch on its way through a worker.

    Attributes:
        step, index: the micro-batch, in steps from the first of the round.
        version: how many of the round's versions its parameters have seen.
    """

    step: int
    index: int
    version: int


@dataclass
class Versions:
    """Deals the micro-batches of a round of steps in order, and bounds how stale gradients get.

    A gradient that was read at version r has to be in version r + `max_staleness` at the latest
    (counted from 0). Gradients are added as they come, as long as places are left for all that
    have to be in before them: earliest deadline first.

    Args:
        sizes: micro-batches of each step; version v takes `sizes[v]` gradients.
        max_staleness: 0 makes every version wait for exactly its own micro-batches.

    Attributes:
        applied: versions that are complete.
        added: gradients in the present version.
    """

    sizes: Sequence[int]
    max_staleness: int
    applied: int = 0
    added: int = 0
    _next: tuple[int, int] = (0, 0)
    _out: dict[int, Ticket] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True if all versions of the round are complete."""
        return self.applied == len(self.sizes)

    def deal(self, worker: int) -> Ticket | None:
        """The next micro-batch for a worker that has none; None while it has to wait, or if all
        are dealt."""
        step, index = self._next
        if step >= len(self.sizes) or step > self.applied + self.max_staleness:
            return None
        self._next = (step, index + 1) if index + 1 < self.sizes[step] else (step + 1, 0)
        ticket = self._out[worker] = Ticket(step, index, self.applied)
        return ticket

    def may_add(self, worker: int) -> bool:
        """True if this worker's gradient may be added now, or others have to be in before it."""
        deadlines = Counter(
            ticket.version + self.max_staleness
            for other, ticket in self._out.items()
            if other != worker
        )
        places, due = self.sizes[self.applied] - self.added - 1, 0
        for version in range(self.applied, self.applied + self.max_staleness + 1):
            if version > self.applied:
                places += self.sizes[version] if version < len(self.sizes) else 0
            due += deadlines[version]
            if due > places:
                return False
        return True

    def add(self, worker: int) -> int:
        """Count this worker's gradient in; its staleness."""
        self.added += 1
        return self.applied - self._out.pop(worker).version

    @property
    def complete(self) -> bool:
        """True if the present version has all its gradients."""
        return self.added == self.sizes[self.applied]

    def apply(self) -> None:
        """The present version was applied: begin the next."""
        self.applied, self.added = self.applied + 1, 0

    def cut(self) -> None:
        """Let the round end with the steps that were begun."""
        step, index = self._next
        self.sizes = self.sizes[: step + (index > 0)]


@dataclass(frozen=True)
class Brought:
    """The message of a worker with the gradient of a micro-batch.

    Attributes:
        gradient: of the summed loss over the valid targets of the whole step, float32 of shape
            (parameters,), on the host.
        loss: summed.
        count: valid targets.
        finite: whether the loss is.
        waited: seconds for data.
        wish: to stop.
        statistics: what the forward left in the running statistics, float64.
    """

    gradient: torch.Tensor
    loss: float
    count: int
    finite: bool
    waited: float
    wish: float
    statistics: torch.Tensor

    @property
    def numbers(self) -> list[float]:
        """All that is a number: see `of`."""
        return [self.loss, self.count, self.finite, self.waited, self.wish]

    @staticmethod
    def of(gradient: torch.Tensor, numbers: list[float], statistics: torch.Tensor) -> Brought:
        """Made of its `numbers` and its tensors."""
        loss, count, finite, waited, wish = numbers
        return Brought(gradient, loss, int(count), bool(finite), waited, wish, statistics)


@dataclass
class Version:
    """Sums over the gradients of a version.

    Attributes:
        gradient: weighted sum, float32 of shape (parameters,).
        staleness: how many gradients were how many versions late.
        nonfinite: losses that were not finite.
    """

    gradient: torch.Tensor
    statistics: torch.Tensor
    loss: float = 0.0
    count: int = 0
    nonfinite: int = 0
    waited: float = 0.0
    wish: float = 0.0
    staleness: Counter[int] = field(default_factory=Counter)

    def add(self, brought: Brought, staleness: int, weight: float) -> None:
        self.gradient.add_(brought.gradient, alpha=weight)
        self.statistics.add_(brought.statistics)
        self.loss += brought.loss
        self.count += brought.count
        self.nonfinite += not brought.finite
        self.waited += brought.waited
        self.wish += brought.wish
        self.staleness[staleness] += 1

    @property
    def mean_staleness(self) -> float:
        """Versions that its gradients were late, on average."""
        return sum(late * n for late, n in self.staleness.items()) / self.staleness.total()


class Server:
    """Adds gradients up to versions, and hands out micro-batches and parameters.

    Args:
        versions: of the round.
        apply: takes a complete version into the model.
        parameters: the model's present parameters and buffers, float32 on the host, a copy.
        empty: a version without gradients.
        damp: weigh a gradient that is s versions late by 1 / (1 + s).
        look_ahead: what workers compute with is ahead of the newest parameters by so many times
            what the last version changed, for each version that its gradients were late.

    Attributes:
        newest: the parameters of the last version; never changed, a new version is a new tensor.
        ahead: what workers compute with; the same tensor where nothing is late.
        waited: seconds that each worker has waited for others here.
    """

    def __init__(
        self,
        versions: Versions,
        apply: Callable[[Version], None],
        parameters: Callable[[], torch.Tensor],
        empty: Callable[[], Version],
        damp: bool,
        look_ahead: float = 0.0,
    ) -> None:
        self._versions, self._apply, self._parameters = versions, apply, parameters
        self._empty, self._damp, self._look_ahead = empty, damp, look_ahead
        self._changed = threading.Condition()
        self._queue: list[int] = []  # workers without a micro-batch, who came first is first
        self._present = empty()
        self.newest = self.ahead = parameters()
        self._failure: BaseException | None = None
        self.waited: defaultdict[int, float] = defaultdict(float)

    def exchange(self, worker: int, brought: Brought | None) -> tuple[Ticket | None, torch.Tensor]:
        """Add what a worker brings, and give it the next micro-batch; waits where it has to.

        Returns:
            The micro-batch and the parameters to compute with; when the round is over, None and
            the newest parameters.
        """
        ticket: Ticket | None = None

        def dealt_or_done() -> bool:
            nonlocal ticket
            if self._queue[0] == worker:
                ticket = self._versions.deal(worker)
            return ticket is not None or self._versions.done

        with self._changed:
            if brought is not None:
                self._wait_until(worker, lambda: self._versions.may_add(worker))
                self._add(worker, brought)
            self._queue.append(worker)
            self._wait_until(worker, dealt_or_done)
            self._queue.remove(worker)
            self._changed.notify_all()
            return ticket, self.newest if ticket is None else self.ahead

    def fail(self, error: BaseException) -> None:
        """Let everybody who waits end with this error."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what somebody has failed with."""
        if self._failure is not None:
            raise self._failure

    def _wait_until(self, worker: int, ready: Callable[[], bool]) -> None:
        began = time.perf_counter()
        while self._failure is None and not ready():
            self._changed.wait()
        self.waited[worker] += time.perf_counter() - began
        self.check()

    def _add(self, worker: int, brought: Brought) -> None:
        staleness = self._versions.add(worker)
        self._present.add(brought, staleness, 1 / (1 + staleness) if self._damp else 1.0)
        if brought.wish or not brought.finite:
            self._versions.cut()
        if self._versions.complete:
            complete, self._present = self._present, self._empty()
            self._apply(complete)
            before, self.newest = self.newest, self._parameters()
            self.ahead = self._moved_on(before, complete)
            self._versions.apply()
        self._changed.notify_all()

    def _moved_on(self, before: torch.Tensor, version: Version) -> torch.Tensor:
        """Where the parameters will be, if they go on as in this version, when gradients that are
        late as this version's were are added."""
        by = self._look_ahead * version.mean_staleness
        if not by:
            return self.newest
        ahead = self.newest.clone()  # buffers are no course that goes on
        trained = slice(len(version.gradient))
        ahead[trained].add_(self.newest[trained] - before[trained], alpha=by)
        return ahead


_NUMBERS = 7  # of a worker's head: gradient and statistics that follow, and `Brought.numbers`
_ANSWER = 5  # of an answer's head: whether there is work, step, index, version, new parameters


class Desk:
    """A thread of rank 0 that serves one worker for a round.

    Args:
        trained: length of a gradient.
        known: what the worker has of the parameters, float32 of shape (trained,), kept up to date;
            None where they are sent whole.
    """

    def __init__(
        self,
        server: Server,
        worker: int,
        group: dist.ProcessGroup | None,
        codec: Codec,
        trained: int,
        known: torch.Tensor | None,
    ) -> None:
        self._server, self._worker, self._group, self._codec = server, worker, group, codec
        self._trained, self._known = trained, known
        self._sent = server.newest  # all ranks begin a round with the same
        self.spent = Spent()
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = threading.Thread(
            target=self._serve, args=(device,), name=f"rankup-desk-{worker}", daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Wait until the worker has been told that the round is over."""
        self._thread.join()

    def _serve(self, device: int | None) -> None:
        try:
            if device is not None:  # a thread would start with the first GPU of the node
                torch.cuda.set_device(device)
            ticket: Ticket | None = Ticket(0, 0, 0)
            while ticket is not None:
                ticket, parameters = self._server.exchange(self._worker, self._receive())
                self._answer(ticket, parameters)
        except BaseException as error:  # told to all: one worker's end ends the run
            self._server.fail(error)

    def _receive(self) -> Brought | None:
        head = torch.empty(_NUMBERS, dtype=torch.float64)
        with self._talking():
            dist.recv(head, self._worker, self._group)
        there, statistics, *numbers = head.tolist()
        if not there:
            return None
        data = torch.empty(self._codec.size(self._trained), dtype=torch.uint8)
        running = torch.empty(int(statistics), dtype=torch.float64)
        with self._talking():
            dist.recv(data, self._worker, self._group)
            if len(running):
                dist.recv(running, self._worker, self._group)
        with self.spent.at("coding"):
            gradient = self._codec.decode(data, self._trained)
        return Brought.of(gradient, numbers, running)

    def _answer(self, ticket: Ticket | None, parameters: torch.Tensor) -> None:
        lossy = self._known is not None
        # At the end all get exactly the same, whatever was lost on the way.
        new = parameters is not self._sent or (lossy and ticket is None)
        place = (0, 0, 0) if ticket is None else (ticket.step, ticket.index, ticket.version)
        self._send(torch.tensor([ticket is not None, *place, new], dtype=torch.float64))
        if not new:
            return
        self._sent = parameters
        trained, buffers = parameters.split([self._trained, len(parameters) - self._trained])
        if self._known is None:
            self._send(parameters)
        elif ticket is None:
            self._known.copy_(trained)
            self._send(parameters)
        else:
            with self.spent.at("coding"):
                data = self._codec.encode(trained - self._known)
                self._known.add_(self._codec.decode(data, self._trained))
            self._send(data)
            if len(buffers):
                self._send(buffers)

    def _send(self, tensor: torch.Tensor) -> None:
        with self._talking():
            dist.send(tensor.contiguous(), self._worker, self._group)
        self.spent.bytes_sent += tensor.nbytes

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first = (str(error).splitlines() or [""])[0]
            raise RuntimeError(f"rank {self._worker} does not answer: {first}") from error


class Window:
    """A worker's side of its desk.

    Args:
        feedback: what compressed gradients have lost so far.
        known: the values this worker has, parameters and buffers, float32 on the host; kept up to
            date.
        trained: how many of them are parameters.
        spent: where the cost is noted.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        codec: Codec,
        feedback: Feedback,
        known: torch.Tensor,
        trained: int,
        spent: Spent,
    ) -> None:
        self._group, self._codec, self._feedback = group, codec, feedback
        self._known, self._spent = known, spent
        self._trained, self._buffers = known.split([trained, len(known) - trained])

    def exchange(self, brought: Brought | None) -> tuple[Ticket | None, torch.Tensor | None]:
        """Bring a gradient; the next micro-batch (None when the round is over), and the values
        where they have changed."""
        if brought is None:
            self._send(torch.zeros(_NUMBERS, dtype=torch.float64))
        else:
            statistics = brought.statistics
            self._send(torch.tensor([1.0, len(statistics), *brought.numbers], dtype=torch.float64))
            with self._spent.at("coding"):
                data = brought.gradient.view(torch.uint8)
                if not isinstance(self._codec, Whole):
                    data, _ = self._feedback.pack(brought.gradient, self._codec)
            self._send(data)
            if len(statistics):
                self._send(statistics)
        answer = torch.empty(_ANSWER, dtype=torch.float64)
        self._receive(answer)
        there, step, index, version, new = (int(number) for number in answer.tolist())
        ticket = Ticket(step, index, version) if there else None
        if new:
            self._update(ticket)
        return ticket, self._known if new else None

    def _update(self, ticket: Ticket | None) -> None:
        if ticket is None or isinstance(self._codec, Whole):
            self._receive(self._known)
            return
        data = torch.empty(self._codec.size(self._trained.numel()), dtype=torch.uint8)
        self._receive(data)
        with self._spent.at("coding"):
            self._trained.add_(self._codec.decode(data, self._trained.numel()))
        if self._buffers.numel():
            self._receive(self._buffers)

    def _send(self, tensor: torch.Tensor) -> None:
        with self._spent.at("waited"):
            dist.send(tensor, 0, self._group)
        self._spent.bytes_sent += tensor.nbytes

    def _receive(self, into: torch.Tensor) -> None:
        with self._spent.at("waited"):
            dist.recv(into, 0, self._group)
