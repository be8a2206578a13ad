"""Data as few files with an index. Without torch, except where batches are made."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loader import Loader
    from .opened import Samples, open
    from .reader import PackedDataset

_HOME = {
    "open": "opened",
    "Samples": "opened",
    "PackedDataset": "reader",
    "Loader": "loader",
}
# Rooms that are public themselves, as in `rankup.data.photos`.
_ROOMS = ("photos", "orders")

__all__ = ["Loader", "PackedDataset", "Samples", "open"]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rankup.data.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rankup.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rankup.data.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
