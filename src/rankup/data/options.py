"""How batches are made ahead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """As the Loader was asked; see there."""

    workers: int | None
    kind: str
    prefetch: int
    context: str | None
    timeout: float
    pin_memory: bool
