"""The protocol of an order, what computed ones share, and two: as stored, and fully shuffled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset

from ...base.errors import UserError
from ...runtime.order import Order
from ..index import Int64s
from ..splits import unwrapped

# Positions of an epoch that are computed together: numpy's calls cost microseconds each, whatever
# their length, so that a short batch would mostly pay for them.
_PIECE = 1 << 14


def column(given: npt.ArrayLike | Dataset[Any] | None, name: str) -> npt.ArrayLike | None:
    """The `labels` or `lengths` of a data set, which are known without reading its samples.

    What is no data set is given back as it is.
    """
    data = unwrapped(given) if isinstance(given, Dataset) else given
    if isinstance(data, Dataset) and not hasattr(data, name):
        raise UserError(
            f"{type(data).__name__} has no {name}: give them as an array, one number per sample"
        )
    return cast("npt.ArrayLike | None", getattr(data, name, data))


class Ordering(Protocol):
    """The order of an epoch: a sample for each position.

    Attributes:
        n: positions in an epoch; each sample of the data set at most once unless an order says
            otherwise.
        samples: of the data set that it is made for.
        seed: that it is drawn from; None where nothing is.
        identity: its kind and all else that it follows from, in words, see `identity`: a run goes
            on with an order of the same words only.
        global_batch: the batch size that it is made for; None where any will do.
    """

    @property
    def n(self) -> int: ...

    @property
    def samples(self) -> int: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def identity(self) -> str: ...

    @property
    def global_batch(self) -> int | None: ...

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        """Samples at positions [start, stop), int64; 0 <= start <= stop <= n.

        An order for a `global_batch` is asked for whole batches: `start` is a multiple of it, and
        `stop` the next one or `n`.
        """
        ...


def identity(kind: str, **parameters: Any) -> str:
    """An order in words: its kind and parameters, of an array the hash of its int64 values.

    Without what stands beside it in a place: seed, number of samples and global batch.
    """
    words = []
    for name, value in parameters.items():
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value, "<i8")
            value = xxhash.xxh3_64_hexdigest(data.data)
        words.append(f"{name}={value}")
    return f"{kind}({', '.join(words)})" if words else kind


class Computed:
    """An order that is a function, computed in pieces, of which the last one is kept."""

    n: int
    # Epoch, first position and samples: replaced in one piece, since threads may share this.
    _kept = (-1, 0, np.empty(0, np.int64))

    @property
    def samples(self) -> int:
        return self.n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Samples at any positions of an epoch, int64 of the same shape."""
        raise NotImplementedError

    def piece(self, epoch: int, start: int) -> tuple[int, Int64s]:
        """Return samples, among them that at position `start`, and the position of the first."""
        stop = min(self.n, start + _PIECE)
        return start, self.at(epoch, np.arange(start, stop, dtype=np.int64))

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        """Samples at positions [start, stop), int64; not to be written to."""
        parts = []
        while start < stop:
            at, first, samples = self._kept
            if epoch != at or not first <= start < first + len(samples):
                first, samples = self.piece(epoch, start)
                object.__setattr__(self, "_kept", (epoch, first, samples))  # the others are frozen
            end = min(stop, first + len(samples))
            parts.append(samples[start - first : end - first])
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Sequential:
    """The samples as they are stored: for evaluation."""

    n: int
    global_batch: int | None = None
    seed: None = field(default=None, init=False)

    @property
    def samples(self) -> int:
        return self.n

    @property
    def identity(self) -> str:
        return identity("Sequential")

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled(Computed):
    """A random permutation per epoch, the run's `Order`."""

    n: int
    seed: int = 0
    global_batch: int | None = None

    @property
    def identity(self) -> str:
        return identity("Shuffled")

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        return Order(self.n, self.seed, epoch)(torch.from_numpy(positions)).numpy()
