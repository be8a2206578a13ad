"""A batch as it is made: by a function of a request, in memory of its own, without bad samples.

Bad samples are counted, since a few are the data's and many are something else's. A `Loader` counts
those of an epoch on its rank (`Tally`); behind torch's own DataLoader, where nobody sees a whole
epoch, the data set counts over its workers (`SharedTally`).

Records of different lengths become one batch by `Pad`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from ..base.errors import UserError
from ..base.text import say
from .batches import BatchRequest
from .errors import BadContainer, require_positive
from .index import Int64s
from .transforms import check_made, key_of, seed_process

_REUSED = 1 << 16  # bytes of a batch from which on its memory is used again
_AT_LEAST, _SHARE = 20, 100
_NAMES, _REASONS, _LENGTH = 5, 4, 80  # of a report
# (shape, dtype) -> memory for a batch
Allocator = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
# Set by an engine for what runs in it: each thread has its own.
ALLOCATOR: ContextVar[Allocator | None] = ContextVar("allocator", default=None)


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


@dataclass
class Made:
    """A batch, as a worker has made it.

    Attributes:
        request: that it was made for.
        inputs: a tensor of all samples, or a list of what the transform made of each.
        labels: int64 (k,); None where the data has none.
        count: samples that count, see `BatchRequest`.
        bad: samples that were left out.
        drew: the transform has drawn random numbers.
    """

    request: BatchRequest
    inputs: Any
    labels: Int64s | None
    count: int
    bad: list[Bad] = field(default_factory=list)
    drew: bool = False

    def items(self) -> list[Any]:
        """Return `(input, label)` of each sample, or the inputs alone."""
        if self.labels is None:
            return list(self.inputs)
        return list(zip(self.inputs, self.labels.tolist(), strict=True))

    def batch(self) -> Any:
        """Return what a loop is given: `(inputs, labels)`, or the inputs alone."""
        return self.inputs if self.labels is None else (self.inputs, torch.from_numpy(self.labels))


# Set while a batch is put together of items: the request that they are made for, whose seed and
# epoch the `[n]` of data sets in between cannot say, and the bad samples that were met.
ASKED: ContextVar[tuple[BatchRequest, list[Bad]] | None] = ContextVar("asked", default=None)


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An `Allocator` of page-locked memory, from which a GPU copies while it computes."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class BufferPool:
    """An `Allocator` of memory that comes back once nobody holds the batch any more.

    Fresh memory costs a page fault for every 4 KiB. Threads may share it.

    Args:
        kept: pieces that wait for their next batch, at most.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._free: list[npt.NDArray[np.uint8]] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        if size < _REUSED:
            return torch.empty(shape, dtype=dtype)
        try:
            memory = self._free.pop()  # in one step: other threads take from it, too
        except IndexError:
            memory = np.empty(0, np.uint8)
        if not size <= len(memory) <= 2 * size:
            memory = np.empty(size, np.uint8)
        # All views of the batch refer to this one array, so its end is the end of them all.
        whole = memory[:size]
        weakref.finalize(whole, self._back, memory).atexit = False
        return torch.from_numpy(whole).view(dtype).view(shape)

    def _back(self, memory: npt.NDArray[np.uint8]) -> None:
        if len(self._free) < self._kept:
            self._free.append(memory)


def allocate(shape: tuple[int, ...], of: torch.dtype | npt.DTypeLike) -> torch.Tensor:
    """Memory for a batch, where it need not be copied on its way: see `ALLOCATOR`.

    In a worker of torch's own DataLoader it is shared memory.

    Args:
        of: torch's type, or numpy's, of which torch has the native one.
    """
    if isinstance(of, torch.dtype):
        dtype = of
    else:
        dtype = torch.from_numpy(np.empty(0, np.dtype(of).newbyteorder("="))).dtype
    allocator = ALLOCATOR.get()
    if allocator is not None:
        return allocator(shape, dtype)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    empty = torch.empty(0, dtype=dtype)
    size = int(torch.Size(shape).numel())
    storage = empty._typed_storage()._new_shared(size, device=empty.device)
    return empty.new(storage).resize_(*shape)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Fetch:
    """Makes the batch of a request; it travels to the workers.

    Args:
        collate: function of a list of items; None: `default_collate`, or what is collated already.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        check_made("collate", self.collate)

    def __call__(self, request: BatchRequest) -> Made:
        make = getattr(self.dataset, "make", None)
        if make is None:
            return self._of_items(request)
        made: Made = make(request)
        if self.collate is not None:
            made.inputs, made.labels = self.collate(made.items()), None
        elif isinstance(made.inputs, list) and made.inputs:
            made.inputs = default_collate(made.inputs)
        return made

    def _of_items(self, request: BatchRequest) -> Made:
        key = key_of(request.seed, request.epoch)
        many = getattr(self.dataset, "__getitems__", None)
        bad: list[Bad] = []
        token = ASKED.set((request, bad))
        try:
            if many is not None:
                seed_process(key, request[0])
                items = many(list(request))
            else:
                items = [self._item(key, sample) for sample in request]
        finally:
            ASKED.reset(token)
        inputs = (self.collate or default_collate)(items)
        return Made(request, inputs, None, min(request.count, len(items)), bad)

    def _item(self, key: int, sample: int) -> Any:
        seed_process(key, sample)
        return self.dataset[sample]


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


class Padded(NamedTuple):
    """Attributes:
    values: (n, width, …) of the records' dtype, filled up behind each record.
    lengths: int64 (n,), of each record before that.
    """

    values: torch.Tensor
    lengths: torch.Tensor


class Masked(NamedTuple):
    """`Padded`, with a mask: bool (n, width), True where a value is of the record."""

    values: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Pad:
    """A `collate` that fills records up to the longest of their batch.

        order = orders.ByLength(texts.lengths, seed=1, global_batch=64)
        loader = Loader(texts, 64, shuffle=order, collate=Pad(0, multiple=8))
        for (tokens, lengths), labels in loader:
            ...

    An item that is a tuple, as `(record, label)`, becomes a tuple, and one that is a dict a dict:
    each of its values that has at least one axis (tensor, array, list of numbers) becomes `Padded`,
    and others are collated as torch does. The first axis is the one that differs. Each rank's batch
    is as wide as its own longest record.

    Args:
        value: what is filled in.
        multiple: the width is rounded up to a multiple of it: tensor cores like 8, and compiled
            models fewer different shapes.
        width: all batches have this width, and a longer record is an error.
        mask: hand out `Masked` instead of `Padded`.

    Raises:
        UserError: records that differ in dtype or in another axis than the first, are longer than
            `width`, or there are none.
    """

    value: float = 0
    multiple: int = 1
    width: int | None = None
    mask: bool = False

    def __post_init__(self) -> None:
        require_positive(multiple=self.multiple, width=self.width)
        if self.width is not None and self.width % self.multiple:
            raise UserError(f"Pad: width={self.width} has to be a multiple of {self.multiple}")

    def __call__(self, items: Sequence[Any]) -> Any:
        if not len(items):
            raise UserError("Pad: a batch without samples has no shape")
        first = items[0]
        if isinstance(first, dict):
            if any(one.keys() != first.keys() for one in items):
                raise UserError("Pad: the records of a batch have different names")
            return {name: self._column([one[name] for one in items]) for name in first}
        if isinstance(first, tuple):
            if any(len(one) != len(first) for one in items):
                raise UserError("Pad: the records of a batch are tuples of different lengths")
            return tuple(self._column(list(column)) for column in zip(*items, strict=True))
        return self._column(list(items))

    def _column(self, values: list[Any]) -> Any:
        if not isinstance(values[0], torch.Tensor | np.ndarray | list) or np.ndim(values[0]) == 0:
            return default_collate(values)
        records = [_tensor(one) for one in values]
        kinds = {(one.dtype, *one.shape[1:]) for one in records}
        if len(kinds) > 1:
            raise UserError(f"Pad: records differ in more than their length: {kinds}")
        lengths = torch.tensor([len(one) for one in records], dtype=torch.int64)
        longest = int(lengths.max())
        width = -(-max(longest, 1) // self.multiple) * self.multiple
        if self.width is not None:
            if longest > self.width:
                raise UserError(f"Pad: a record of {longest} is longer than width={self.width}")
            width = self.width
        room = allocate((len(records), width, *records[0].shape[1:]), records[0].dtype)
        for row, one in zip(room, records, strict=True):
            row[: len(one)] = one
            row[len(one) :] = self.value
        if self.mask:
            return Masked(room, lengths, torch.arange(width) < lengths[:, None])
        return Padded(room, lengths)


def _tensor(record: Any) -> torch.Tensor:
    if isinstance(record, torch.Tensor):
        return record
    array = np.asarray(record)
    if isinstance(record, list) and not record:
        return torch.empty(0, dtype=torch.int64)
    if array.dtype.kind not in "biufc":
        raise UserError(f"Pad: records are numbers, and these are {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # torch warns of arrays that may not be written to, as mapped ones; this one is only read.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
