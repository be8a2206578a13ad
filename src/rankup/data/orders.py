"""In which order an epoch takes its samples: position -> sample, as functions.

As stored, fully shuffled, or in batches of similar lengths. Nothing in an order knows of ranks,
nodes or workers, so that all of them may change in the middle of an epoch: a place in a run is
`(seed, epoch, consumed)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch.utils.data import Dataset, Subset

from ..base.errors import UserError
from ..runtime.keys import derive
from ..runtime.order import Order
from .errors import require_positive
from .index import Int64s, UInt64s

# Positions of an epoch that are computed together: numpy's calls cost microseconds each, whatever
# their length, so that a short batch would mostly pay for them.
_PIECE = 1 << 14
_ROUNDS = 10
_SMALL = 31
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_BATCHES = 64


def column(given: npt.ArrayLike | Dataset[Any] | None, name: str) -> Int64s | None:
    """The `lengths` of a data set, which are known without reading its samples.

    Args:
        given: the data set, or these whole numbers themselves.
    """
    data = unwrapped(given) if isinstance(given, Dataset) else given
    if isinstance(data, Dataset) and not hasattr(data, name):
        raise UserError(
            f"{type(data).__name__} has no {name}: give them as an array, one number per sample"
        )
    numbers = getattr(data, name, data)
    if numbers is None:
        return None
    numbers = np.asarray(numbers)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise UserError(
            f"{name} are whole numbers, one per sample; these are {numbers.dtype} of shape "
            f"{numbers.shape}"
        )
    return cast("Int64s", numbers)


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
        stop = min(stop, self.n)  # behind its end a piece has nothing, and never would
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
        return np.arange(start, min(stop, self.n), dtype=np.int64)


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


def permutation(size: int, key: int) -> Int64s:
    """Where each place of `range(size)` goes, in the permutation that a key stands for.

    A Feistel network with cycle walking, as `runtime.order.Order`. A small one is ranked instead: a
    network of few bits is not uniform. Written out here, since numpy's own generators may change
    between versions and an order may not.

    Args:
        size: below 2**52.
        key: of `key_of`.
    """
    places = np.arange(size, dtype=np.uint64)
    state = np.array([key], np.uint64)
    if size <= _SMALL:
        numbers = _mixed(state + (places + _ONE) * _GOLDEN)
        return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
    values = _network(places, size.bit_length(), state)
    while len(out := np.flatnonzero(values >= size)):
        values[out] = _network(values[out], size.bit_length(), state)
    return values.astype(np.int64)


def key_of(base: int, number: int) -> int:
    """A key that follows from a seed and a number.

    The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014).
    """
    return int(_mixed(np.array([base], np.uint64) + np.array([number + 1], np.uint64) * _GOLDEN)[0])


def _network(values: UInt64s, bits: int, state: UInt64s) -> UInt64s:
    low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
    for _ in range(_ROUNDS):
        state = state + _GOLDEN
        right = values & ((_ONE << low) - _ONE)
        mixed = _mixed(state + right * _MIX2) >> (np.uint64(64) - high)
        mixed ^= values >> low
        values = (right << high) | mixed
        low, high = high, low
    return values


def _mixed(state: UInt64s) -> UInt64s:
    state = (state ^ (state >> np.uint64(30))) * _MIX1
    state = (state ^ (state >> np.uint64(27))) * _MIX2
    mixed: UInt64s = state ^ (state >> np.uint64(31))
    return mixed


class ByLength(Computed):
    """Each sample once, in batches of similar lengths.

    The epoch's random order is cut into windows, each is sorted by length and cut into batches, and
    the batches of a window are permuted. Every global batch but the last of the epoch has its exact
    size; the last one's samples are of a random length, too. Within a batch samples rise in length,
    so that a rank's part is padded less than the whole. A larger window sorts better and shuffles
    less.

    Args:
        lengths: int64 (n,) of each sample in any unit: bytes (`PackedDataset.lengths`), tokens; or
            a data set that has them.
        seed: of the run.
        global_batch: the Loader's.
        window: samples that are sorted together, by default 64 batches; made whole batches.

    Raises:
        UserError: a length is not known (-1), or a number makes no sense.
    """

    def __init__(
        self,
        lengths: npt.ArrayLike | Dataset[Any],
        seed: int,
        global_batch: int,
        window: int | None = None,
    ) -> None:
        self.seed, self.global_batch, self.window = seed, global_batch, window
        require_positive(global_batch=global_batch, window=window)
        known = column(lengths, "lengths")
        lengths = self.lengths = np.empty(0, np.int64) if known is None else known
        unknown = int((lengths < 0).sum())
        if unknown:
            raise UserError(
                f"the lengths of {unknown} of {len(lengths)} samples are not known before they are "
                "read: give lengths of your own, or pack the data with `rankup pack`"
            )
        batches = _BATCHES if window is None else -(-window // global_batch)
        whole = len(lengths) // global_batch
        self.n = len(lengths)
        # Windows, as equal as can be: one of a single batch would not be sorted at all.
        self._count = max(1, round(whole / batches))
        self.identity = identity("ByLength", windows=self._count, lengths=lengths)

    def piece(self, epoch: int, start: int) -> tuple[int, Int64s]:
        """Return the samples of the window that a position is in, batch by batch."""
        whole = max(1, self.n // self.global_batch)
        batch = min(start // self.global_batch, whole - 1)  # a short one is of the last window
        number = batch * self._count // whole
        first, until = self._first(number), self._first(number + 1)
        samples = Order(self.n, self.seed, epoch)[first:until]
        assert not isinstance(samples, int)
        rows = samples.numpy()
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        count, short = divmod(len(rows), self.global_batch)
        # A short batch of the longest samples would come last in every epoch.
        cut = derive(self.seed, "short batch", epoch) % (count + 1) * self.global_batch
        last, rows = rows[cut : cut + short], np.delete(rows, np.s_[cut : cut + short])
        order = permutation(count, key_of(derive(self.seed, "batches", epoch), number))
        rows = rows.reshape(count, self.global_batch)[order].reshape(-1)
        return first, np.concatenate([rows, last])

    def _first(self, number: int) -> int:
        """The position at which a window begins."""
        if number == self._count:
            return self.n
        whole = self.n // self.global_batch
        return -(-number * whole // self._count) * self.global_batch


def unwrapped(dataset: Dataset[Any]) -> Dataset[Any]:
    """The same samples without torch's Subset around a data set that has subsets of its own.

    Such a data set makes batches whole, and its orders, labels and policies are seen.
    """
    if type(dataset) is not Subset:
        return dataset
    inner = unwrapped(dataset.dataset)
    if not hasattr(inner, "subset"):
        return dataset
    subset: Dataset[Any] = inner.subset(np.asarray(dataset.indices, np.int64))
    return subset
