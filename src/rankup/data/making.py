"""A batch as a worker has made it, and where it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from .draw import Draw
from .errors import BadContainer
from .index import Int64s


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
        inputs: a tensor of all samples, or a list of what the transform made of each.
        labels: int64 (k,); None where the data has none.
        bad: samples that were left out or replaced.
        count: samples that count, see `Draw`.
    """

    inputs: Any
    labels: Int64s | None
    count: int
    bad: list[Bad] = field(default_factory=list)


class Rows(list[Any]):
    """The items of a batch, for torch's own DataLoader, and the batch they are parts of."""

    def __init__(self, items: Sequence[Any], made: Made) -> None:
        super().__init__(items)
        self.made = made

    @classmethod
    def of(cls, made: Made) -> Rows:
        """The items of a batch: `(input, label)`, or the inputs alone."""
        inputs = list(made.inputs)
        if made.labels is None:
            return cls(inputs, made)
        return cls(list(zip(inputs, made.labels.tolist(), strict=True)), made)


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a batch; in a worker process it is shared, so that it is not copied on its way."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    empty = torch.empty(0, dtype=dtype)
    size = int(torch.Size(shape).numel())
    storage = empty._typed_storage()._new_shared(size, device=empty.device)
    return empty.new(storage).resize_(*shape)  # type: ignore[call-overload]


def handed_out(made: Made) -> Any:
    """What a loop is given: `(inputs, labels)`, or the inputs alone."""
    return made.inputs if made.labels is None else (made.inputs, torch.from_numpy(made.labels))


@dataclass(frozen=True)
class Fetch:
    """Makes the batch of a draw; it travels to the workers.

    Args:
        collate: function of a list of items; None: `default_collate`, or what is collated already.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] | None = None

    def __call__(self, draw: Draw) -> Made:
        make = getattr(self.dataset, "make", None)
        if make is None:
            return self._of_items(draw)
        made: Made = make(draw)
        if self.collate is not None:
            return Made(self.collate(Rows.of(made)), None, made.count, made.bad)
        if isinstance(made.inputs, list) and made.inputs:
            made.inputs = default_collate(made.inputs)
        return made

    def _of_items(self, draw: Draw) -> Made:
        many = getattr(self.dataset, "__getitems__", None)
        numbers = list(draw)
        items = many(numbers) if many is not None else [self.dataset[one] for one in numbers]
        return Made((self.collate or default_collate)(items), None, draw.count)
