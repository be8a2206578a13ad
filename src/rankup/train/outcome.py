"""How a run ended, and its last numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .plan import Place


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        place: how far it came.
        finished: False when it was asked to stop before its last step.
        valid_loss, test_loss: of the final model, per target; None when unfinished or no data.
        measures: what a `Measuring` task knows besides, as `valid_accuracy`.
    """

    place: Place
    finished: bool
    valid_loss: float | None = None
    test_loss: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


def finished(place: Place, valid: Mapping[str, float], test: Mapping[str, float]) -> Outcome:
    """Of a run that came to its end, with what its last evaluations found by name."""
    found = {f"valid_{name}": value for name, value in valid.items()}
    found |= {f"test_{name}": value for name, value in test.items()}
    losses = found.pop("valid_loss", None), found.pop("test_loss", None)
    return Outcome(place, True, *losses, found)


def record(outcome: Outcome) -> dict[str, Any]:
    """The same for the last line of `metrics.jsonl`."""
    return {
        "step": outcome.place.step,
        "valid_loss": outcome.valid_loss,
        "test_loss": outcome.test_loss,
        **outcome.measures,
    }
