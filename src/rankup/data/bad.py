"""Samples that cannot be made: counted, since a few are the data's and many are something else's.

A `Loader` counts those of an epoch on its rank (`Tally`); behind torch's own DataLoader, where
nobody sees a whole epoch, the data set counts over its workers (`SharedTally`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from .errors import BadContainer

_AT_LEAST = 20
_SHARE = 100  # one in a hundred
_LIMIT = f"one in {_SHARE}, or {_AT_LEAST}: more are seldom the data's own"
_NAMES = 5
_REASONS = 4
_LENGTH = 80


class BadSample(BadContainer):
    """A sample cannot be read or made, and the policy is to raise."""


class Bad(NamedTuple):
    """A sample that could not be made.

    Attributes:
        sample: its number in the data set.
        name: split and key.
        why: the error.
    """

    sample: int
    name: str
    why: str


def most_bad(samples: int, world_size: int = 1) -> int:
    """Return how many bad samples of an epoch one rank goes on with."""
    return max(_AT_LEAST, -(-samples // (_SHARE * world_size)))


@dataclass
class Tally:
    """The bad samples of an epoch, on one rank.

    Attributes:
        samples: of the whole epoch.
        world_size: ranks that share them.
    """

    samples: int
    world_size: int
    _bad: dict[int, Bad] = field(default_factory=dict)

    def add(self, bad: Sequence[Bad]) -> None:
        """Count samples, each once.

        Raises:
            BadSample: they are more than can be the data's fault.
        """
        for one in bad:
            self._bad.setdefault(one.sample, one)
        most = most_bad(self.samples, self.world_size)
        if len(self._bad) > most:
            raise BadSample(
                f"{len(self._bad)} samples of this epoch could not be made on this rank alone, and "
                f"{most} is the most that is gone on with ({_LIMIT}): {self._text()}"
            )

    def report(self, epoch: int) -> str:
        """Return the line about an epoch; empty where nothing was wrong."""
        if not self._bad:
            return ""
        return (
            f"{len(self._bad)} of the {self.samples} samples of epoch {epoch} could not be made "
            f"and were dropped: {self._text()}"
        )

    def _text(self) -> str:
        reasons = Counter((one.why.splitlines() or [""])[0][:_LENGTH] for one in self._bad.values())
        parts = [f"{count} x {why}" for why, count in reasons.most_common(_REASONS)]
        if len(reasons) > _REASONS:
            parts.append(f"{len(reasons) - _REASONS} other reasons")
        names = ", ".join(one.name for one in [*self._bad.values()][:_NAMES])
        return f"{', '.join(parts)}; the first: {names}"


@dataclass(frozen=True)
class SharedTally:
    """Samples of an epoch, counted by all workers of torch's DataLoader together.

    A data set and its subsets share one. Without a lock: a count that is lost between two workers
    makes a warning come a little later.

    Attributes:
        counts: int64 in shared memory: epoch + 1, samples made in it, bad ones, whether it was
            warned of a repeated epoch.
    """

    counts: torch.Tensor = field(
        default_factory=lambda: torch.zeros(4, dtype=torch.int64).share_memory_()
    )

    def add(self, epoch: int, made: int, bad: Sequence[Bad], samples: int) -> None:
        """Count samples, and say so when the first one of an epoch is bad.

        Args:
            made: samples that were asked for.
            samples: of the whole data set.

        Raises:
            BadSample: bad ones are more than can be the data's fault.
        """
        counts = self.counts.numpy()
        if counts[0] != epoch + 1:
            counts[:3] = epoch + 1, 0, 0
        counts[1] += made
        if not bad:
            return
        first = not counts[2]
        counts[2] += len(bad)
        passes = -(-int(counts[1]) // samples)  # of one epoch: validation repeats it
        last = f"{bad[-1].name}: {bad[-1].why}"
        if counts[2] > most_bad(samples) * passes:
            raise BadSample(
                f"{counts[2]} samples of epoch {epoch} could not be made, and "
                f"{most_bad(samples) * passes} is the most that is gone on with ({_LIMIT}); the "
                f"last is {last}"
            )
        if first:
            _say(f"samples of epoch {epoch} could not be made and are dropped; the first is {last}")

    def warn_of_repeats(self, epoch: int, most: int) -> None:
        """Warn once where an epoch's augmentation is drawn for more samples than it can have."""
        counts = self.counts.numpy()
        if counts[3] or counts[0] != epoch + 1 or counts[1] <= most:
            return
        counts[3] = 1
        _say(
            f"augmentation of epoch {epoch} is drawn again, so that samples are augmented as "
            f"before: call set_epoch before each epoch. Through torch's Subset a `Batches` cannot "
            f"say the epoch: take dataset.subset(…)"
        )


def _say(text: str) -> None:
    print(f"rankup data: {text}", file=sys.stderr, flush=True)
