"""Samples that cannot be made: counted, since a few are the data's and many are something else's.

A `Loader` counts those of an epoch on its rank (`Tally`); behind torch's own DataLoader, where
nobody sees a whole epoch, the data set counts over its workers (`SharedTally`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ..base.text import say
from .errors import BadContainer

_AT_LEAST, _SHARE = 20, 100
_NAMES, _REASONS, _LENGTH = 5, 4, 80  # of a report


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


def _most(samples: int, ranks: int = 1) -> int:
    """Return how many bad samples of an epoch one rank goes on with."""
    return max(_AT_LEAST, -(-samples // (_SHARE * ranks)))


def _too_many(bad: int, epoch: int, most: int, text: str) -> BadSample:
    return BadSample(
        f"{bad} samples of epoch {epoch} could not be made, and {most} is the most that a rank "
        f"goes on with (one in {_SHARE}, or {_AT_LEAST}: more are seldom the data's own): {text}"
    )


@dataclass
class Tally:
    """The bad samples of an epoch, on one rank.

    Attributes:
        epoch: its number.
        samples: of the whole epoch.
        ranks: that share them.
    """

    epoch: int
    samples: int
    ranks: int
    _bad: dict[int, Bad] = field(default_factory=dict)

    def add(self, bad: Sequence[Bad]) -> None:
        """Count samples, each once.

        Raises:
            BadSample: they are more than can be the data's fault.
        """
        for one in bad:
            self._bad.setdefault(one.sample, one)
        most = _most(self.samples, self.ranks)
        if len(self._bad) > most:
            raise _too_many(len(self._bad), self.epoch, most, self._text())

    def report(self) -> str:
        """Return the line about the epoch; empty where nothing was wrong."""
        if not self._bad:
            return ""
        return (
            f"{len(self._bad)} of the {self.samples} samples of epoch {self.epoch} could not be "
            f"made and were dropped: {self._text()}"
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
        if counts[2] > _most(samples) * passes:
            raise _too_many(int(counts[2]), epoch, _most(samples) * passes, last)
        if first:
            say(f"samples of epoch {epoch} could not be made and are dropped; the first is {last}")

    def warn_of_repeats(self, epoch: int, most: int) -> None:
        """Warn once where an epoch's augmentation is drawn for more samples than it can have."""
        counts = self.counts.numpy()
        if counts[3] or counts[0] != epoch + 1 or counts[1] <= most:
            return
        counts[3] = 1
        say(
            f"augmentation of epoch {epoch} is drawn again, so that samples are "
            f"augmented as before: call set_epoch before each epoch; of a `Batches` take "
            f"dataset.subset(…) instead of torch's Subset"
        )
