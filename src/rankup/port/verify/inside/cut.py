"""A data set with its first samples only, that tells of each draw."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Iterator
from itertools import islice
from math import gcd
from typing import Any, Protocol

from ..plan import SAMPLES

CUT = "_rankup_cut"  # attribute: the number of the data set


class Draws(Protocol):
    """Who is told."""

    def draw(self, number: int, index: Any, get: Callable[[], Any]) -> Any:
        """A sample is drawn by its index: returns what `get` does."""

    def drawn(self, number: int, item: Any) -> None:
        """A stream has given an item."""


def at_most(length: int, most: int = SAMPLES) -> int:
    """The largest size up to both that neither 2 nor 3 divides: no rank's part fits evenly."""
    size = min(length, most)
    while size > 1 and gcd(size, 6) > 1:
        size -= 1
    return size


def subclass(kind: Any, ours: Draws, number: int, size: int, streams: bool) -> Any:
    def length(self: Any) -> int:
        return size

    def item(self: Any, index: Any) -> Any:
        get = super(changed, self).__getitem__  # type: ignore[misc]
        if not _is_index(index):
            return get(index)
        return ours.draw(number, index, lambda: get(index))

    def items(self: Any, indices: Any) -> Any:
        return [self[index] for index in indices]

    def iterate(self: Any) -> Iterator[Any]:
        for one in islice(super(changed, self).__iter__(), size):  # type: ignore[misc]
            ours.drawn(number, one)
            yield one

    body: dict[str, Any] = {CUT: number, "__module__": kind.__module__, "__doc__": kind.__doc__}
    body["_rankup_bare"] = kind
    if streams:
        body["__iter__"] = iterate
    else:
        body["__len__"], body["__getitem__"] = length, item
        if hasattr(kind, "__getitems__"):
            body["__getitems__"] = items
    changed = type(kind)(kind.__name__, (kind,), body)
    changed.__qualname__ = kind.__qualname__
    return changed


class Beside:
    """A list, a tensor and the like with its first samples only."""

    def __init__(self, dataset: Any, ours: Draws, number: int, size: int) -> None:
        self._rankup_inner, self._rankup_ours = dataset, ours
        self._rankup_cut, self._rankup_size = number, size

    def __len__(self) -> int:
        return self._rankup_size

    def __getitem__(self, index: Any) -> Any:
        inner = self._rankup_inner
        if not _is_index(index):
            return inner[index]
        return self._rankup_ours.draw(self._rankup_cut, index, lambda: inner[index])

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_rankup")):
            raise AttributeError(name)
        return getattr(self._rankup_inner, name)


class own_random:  # noqa: N801 - used as a function
    """Random numbers of their own in here; the script's go on behind it as if nothing were."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        import numpy as np
        import torch

        self._kept = (torch.get_rng_state(), random.getstate(), np.random.get_state())
        torch.manual_seed(self._seed)
        random.seed(self._seed)
        np.random.seed(self._seed)

    def __exit__(self, *error: object) -> None:
        import numpy as np
        import torch

        torch.set_rng_state(self._kept[0])
        random.setstate(self._kept[1])
        np.random.set_state(self._kept[2])


def bare(dataset: Any) -> Any:
    """Something whose length is the whole one."""
    if isinstance(dataset, Beside):
        return dataset._rankup_inner
    kind = type(dataset)._rankup_bare
    return range(kind.__len__(dataset))


def _is_index(index: Any) -> bool:
    return not isinstance(index, str | slice | list | tuple) and hasattr(index, "__index__")


def plain(index: Any) -> Any:
    return int(index) if _is_index(index) else repr(index)[:100]


def fingerprint(item: Any) -> str:
    return hashlib.blake2b(pickle.dumps(item), digest_size=8).hexdigest()
