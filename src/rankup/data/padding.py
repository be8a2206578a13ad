"""Records of different lengths as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import default_collate

from ..base.errors import UserError
from .errors import require_positive
from .fetch import allocate


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
