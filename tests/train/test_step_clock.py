"""How long a step took, on a GPU's own clock."""

from __future__ import annotations

import pytest
import torch

from rankup.train.plan import Step
from rankup.train.step import StepResult


class Event:
    """Stands in for an event of a GPU, on which work is over when somebody waits for it."""

    queue: list[Event] = []  # noqa: RUF012

    def __init__(self, enable_timing: bool = False) -> None:
        self.passed = False

    def record(self) -> None:
        self.queue.append(self)

    def synchronize(self) -> None:
        for event in self.queue[: self.queue.index(self) + 1]:
            event.passed = True

    def elapsed_time(self, other: Event) -> float:
        if not (self.passed and other.passed):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1000.0 * (self.queue.index(other) - self.queue.index(self))


def test_a_step_whose_end_lies_behind_its_numbers_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An average of the weights and running statistics are computed between the two."""
    monkeypatch.setattr(Event, "queue", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    step: Step = None  # type: ignore[assignment]
    result = StepResult(step, 0.1, 1, range(1), torch.device("cuda"))
    copied = Event()
    copied.record()
    result.stop_clock()
    copied.synchronize()
    assert result.seconds == 2.0
