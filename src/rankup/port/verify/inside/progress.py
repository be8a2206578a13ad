"""How far a rank's script has come: what all hooks of one process know in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class Progress:
    """Of one rank.

    Attributes:
        phase: what the loader drawn from last was for.
        epochs: passes over a loader in which the model was trained.
        steps, backwards: so far.
        drawn: samples of the training batch drawn last.
        batch: the samples of the batch drawn last, for whatever it was.
        calls: for random numbers since then.
    """

    phase: Literal["start", "train", "eval"] = "start"
    epochs: int = 0
    steps: int = 0
    backwards: int = 0
    drawn: int = 0
    batch: list[Any] = field(default_factory=list)
    calls: int = 0
    told: set[Any] = field(default_factory=set)

    def first(self, *key: Any) -> bool:
        """Whether this is the first call with this key."""
        if key in self.told:
            return False
        self.told.add(key)
        return True
