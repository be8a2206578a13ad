"""A place in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """How far a run has come.

    Attributes:
        step: optimizer steps done.
        epoch: the one the last of them belongs to, from 0.
        consumed: samples of that epoch that are done.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0
