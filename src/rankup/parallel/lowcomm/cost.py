"""What an exchange between copies of a model costs beside the training itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.compress.sums import Spent


@dataclass(frozen=True)
class Cost:
    """Of one rank, or the mean over ranks.

    Attributes:
        bytes_sent: to other ranks, as each kind of exchange sends them (a ring's share of a sum).
        waited: seconds in which this rank waited for others, the sending included.
        extra_seconds: of compute that plain data parallelism does not have.
        extra_memory: bytes held beside model, gradients and optimizer state.
        measured: False where the bytes alone are known.
    """

    bytes_sent: float = 0.0
    waited: float = 0.0
    extra_seconds: float = 0.0
    extra_memory: float = 0.0
    measured: bool = True

    @staticmethod
    def of(spent: Spent, extra_memory: float) -> Cost:
        """What this rank has spent."""
        return Cost(spent.bytes_sent, spent.waited, spent.coding, extra_memory)

    def over(self, steps: int) -> Cost:
        """Of one of so many steps."""
        return Cost(
            self.bytes_sent / steps,
            self.waited / steps,
            self.extra_seconds / steps,
            self.extra_memory,
        )

    def __sub__(self, before: Cost) -> Cost:
        """What was added since `before`; memory is what it is now."""
        return Cost(
            self.bytes_sent - before.bytes_sent,
            self.waited - before.waited,
            self.extra_seconds - before.extra_seconds,
            self.extra_memory,
        )

    def record(self) -> dict[str, float]:
        """For a line of `metrics.jsonl`: `bytes_sent`, and where they were measured `waited`,
        `extra_compute` (seconds) and `extra_memory` (bytes)."""
        found: dict[str, float] = {"bytes_sent": round(self.bytes_sent)}
        if self.measured:
            found |= {
                "waited": round(self.waited, 6),
                "extra_compute": round(self.extra_seconds, 6),
                "extra_memory": round(self.extra_memory),
            }
        return found

    def numbers(self) -> list[float]:
        """What may be added up over ranks, in the order of the fields."""
        return [self.bytes_sent, self.waited, self.extra_seconds, self.extra_memory]


NUMBERS = len(Cost().numbers())


def ring_bytes(size: int, ranks: int) -> int:
    """What each of `ranks` sends for the sum of `size` bytes: a ring's two rounds."""
    return 2 * size * (ranks - 1) // ranks
