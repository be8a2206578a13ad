"""Data as few files with an index. Without torch, except where batches are made."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import Batches
    from .dali import DaliLoader
    from .fetch import BadSample, Pad
    from .loader import Loader
    from .opened import Samples
    from .opened import open as open
    from .reader import PackedDataset
    from .tokens import Tokens, Windows, text
    from .transforms import Shaped, Transform

_HOME = {
    "open": "opened",
    "Samples": "opened",
    "PackedDataset": "reader",
    "Loader": "loader",
    "Batches": "batches",
    "Pad": "fetch",
    "Tokens": "tokens",
    "Windows": "tokens",
    "text": "tokens",
    "Shaped": "transforms",
    "Transform": "transforms",
    "BadSample": "fetch",
    "DaliLoader": "dali",
}
# Rooms that are public themselves, as in `rankup.data.photos`.
_ROOMS = ("photos", "orders", "stage", "dali", "transforms")

# Without `open`: `from rankup.data import *` would replace Python's own.
__all__ = [
    "BadSample",
    "Batches",
    "DaliLoader",
    "Loader",
    "PackedDataset",
    "Pad",
    "Samples",
    "Shaped",
    "Tokens",
    "Transform",
    "Windows",
    "text",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rankup.data.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rankup.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rankup.data.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_ROOMS})
