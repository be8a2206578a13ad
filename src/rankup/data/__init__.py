"""Data as few files with an index. Without torch, except where batches are made."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .opened import Samples, open

_HOME = {"open": "opened", "Samples": "opened"}

__all__ = ["Samples", "open"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rankup.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rankup.data.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
