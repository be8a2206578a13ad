"""Who computes which micro-batch of asynchronous SGD, and which gradients make a version.

A version is one global batch applied. A micro-batch is dealt with the newest parameters; how many
versions are applied until its gradient is added is its staleness. No torch here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


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
        """Whether all versions of the round are complete."""
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
        """Whether this worker's gradient may be added now, or others have to be in before it."""
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
        """Whether the present version has all its gradients."""
        return self.added == self.sizes[self.applied]

    def apply(self) -> None:
        """The present version was applied: begin the next."""
        self.applied, self.added = self.applied + 1, 0

    def cut(self) -> None:
        """Let the round end with the steps that were begun."""
        step, index = self._next
        self.sizes = self.sizes[: step + (index > 0)]
