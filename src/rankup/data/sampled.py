"""The samples of one batch as they are made, one after the other."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import torch

from ..base.errors import UserError
from .fetch import allocate, check_made
from .opened import Samples
from .transforms import Draws, Shaped, Transform, seed_process


class Batch:
    """The samples of a batch that are made, in one array where the transform says their shape."""

    def __init__(self, shaped: Shaped | None, count: int, key: int) -> None:
        self.rows: list[int] = []
        self._key, self._draws = key, Draws(key)
        self._shaped = shaped
        self._items: list[Any] = []
        self._whole: torch.Tensor | None = None
        if shaped is not None:
            self._whole = _room(shaped, max(1, count))
            self._out = self._whole.numpy()

    def add(self, row: int, data: Any, transform: Transform | None) -> None:
        if self._shaped is not None:
            self._shaped.into(data, self._draws.of(row), self._out[len(self.rows)])
        elif transform is not None:
            seed_process(self._key, row)
            self._items.append(transform(data, self._draws.of(row)))
        else:
            self._items.append(plain(data))
        self.rows.append(row)

    @property
    def drew(self) -> bool:
        """Whether the transform drew random numbers for the last sample."""
        return self._draws.used()

    def inputs(self) -> Any:
        if self._whole is None or self._shaped is None:
            return self._items
        inputs = self._whole[: len(self.rows)]
        return inputs.permute(0, 3, 1, 2) if self._shaped.channels_last else inputs


class PerThread:
    """The samples as each thread reads them: what reads compressed ones is no place for two."""

    def __init__(self) -> None:
        self._local = threading.local()

    def of(self, samples: Samples) -> Samples:
        if threading.current_thread() is threading.main_thread():
            return samples
        known = self._local.__dict__
        if known.get("of") is not samples:
            known.update(of=samples, mine=samples.apart())
        mine: Samples = known["mine"]
        return mine

    def __reduce__(self) -> tuple[type[PerThread], tuple[()]]:
        return PerThread, ()


def check_transform(transform: Any) -> None:
    """See that it can be called with (data, rng), before a worker finds out.

    Raises:
        UserError: it cannot.
    """
    if transform is None:
        return
    check_made("transform", transform)
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if not callable(called):
        raise UserError(f"transform={transform!r} is no function of (bytes, rng)")
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of C code: not known
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(transform, "__name__", type(transform).__name__)
        raise UserError(
            f"transform={name} takes {signature}, and a transform is a function of (bytes, rng); "
            f"one that draws from torch's own generators, as torchvision's: "
            f"rankup.data.photos.seeded(lambda data: ...)"
        ) from None


def note(error: BaseException, text: str) -> None:
    """Say more under an error, where Python can."""
    if hasattr(error, "add_note"):
        error.add_note(text)


def plain(data: Any) -> Any:
    """An item without a transform: arrays as tensors, bytes as they are."""
    if isinstance(data, dict):
        return {name: plain(value) for name, value in data.items()}
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data.copy())  # what is mapped may not be written to
    return bytes(data)


def _room(shaped: Shaped, count: int) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, shaped.dtype)).dtype
    return allocate((count, *shaped.shape), dtype)
