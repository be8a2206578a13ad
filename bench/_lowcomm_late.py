"""Asynchronous SGD at its worst: every gradient as late as the bound allows.

Workers that are equally fast bring gradients that are a version late or none, whatever the bound.
Here each computes with parameters of a given number of versions ago, and no version waits for
others than its own micro-batches: so late is each gradient, no more and no less.
"""

from __future__ import annotations

from collections import deque

import torch

from rankup.parallel.lowcomm.server import Brought
from rankup.parallel.lowcomm.versions import Ticket, Versions
from rankup.train.async_sgd import AsyncSGD, Exchange
from rankup.train.plan import Step
from rankup.train.stop import Stop


class Past:
    """The parameters of the last versions, as one worker has seen them.

    Args:
        versions: how many to look back.
    """

    def __init__(self, versions: int) -> None:
        self._versions = versions
        self._seen: deque[tuple[int, torch.Tensor]] = deque()

    def add(self, version: int, parameters: torch.Tensor) -> None:
        """Note a version's parameters; numbers rise."""
        if not self._seen or self._seen[-1][0] < version:
            self._seen.append((version, parameters.clone()))

    def before(self, version: int) -> torch.Tensor:
        """The parameters so many versions before this one; near the start, the first."""
        while len(self._seen) > 1 and self._seen[1][0] <= version - self._versions:
            self._seen.popleft()
        return self._seen[0][1]


def all_late(versions: int) -> None:
    """Give the workers of this process old parameters; run with `max_staleness` 0."""
    work, add, past = AsyncSGD._work, Versions.add, Past(versions)
    first = 0  # versions before the round

    def add_late(self: Versions, worker: int) -> int:
        return add(self, worker) + min(versions, first + self.applied)

    def work_late(self: AsyncSGD, exchange: Exchange, steps: list[Step], stop: Stop) -> None:
        nonlocal first
        first = steps[0].number - 1
        newest = self._values  # with which a round begins

        def looking_back(
            brought: Brought | None,
        ) -> tuple[Ticket | None, torch.Tensor | None]:
            nonlocal newest
            ticket, parameters = exchange(brought)
            newest = newest if parameters is None else parameters
            if ticket is None:
                return None, newest
            past.add(first + ticket.version, newest)
            return ticket, past.before(first + ticket.version)

        work(self, looking_back, steps, stop)

    AsyncSGD._work = work_late  # type: ignore[method-assign]
    Versions.add = add_late  # type: ignore[method-assign]  # told as late as they are
