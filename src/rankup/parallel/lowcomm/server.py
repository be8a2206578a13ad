"""The parameters that count in asynchronous SGD, on rank 0, and what workers bring to them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .versions import Ticket, Versions


@dataclass(frozen=True)
class Brought:
    """What a worker brings with the gradient of a micro-batch.

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
