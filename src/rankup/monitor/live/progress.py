"""How far the training is, from the newest lines of `metrics.jsonl`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..jsonl import is_final, number
from .node import mean

KEPT = 1000  # steps
_RECENT = 50


@dataclass(frozen=True)
class Step:
    """A step's line; None where it does not say. `loss` may be NaN or infinite."""

    number: int
    time: float | None
    loss: float | None
    data_wait: float | None


@dataclass
class Progress:
    """The newest steps.

    Attributes:
        rate, unit: units per second of the newest step that says one; "tokens".
        valid: newest validation loss.
        final: the run came to its end.
    """

    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=KEPT))
    rate: float | None = None
    unit: str = ""
    valid: float | None = None
    final: bool = False

    def take(self, record: Mapping[str, Any]) -> None:
        """A line of `metrics.jsonl`, whatever it holds."""
        if is_final(record):
            self.final = True
            return
        step = record.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or abs(step) > 1e15:
            return
        self.final = False
        self._rate(record)
        if (valid := _loss(record.get("valid_loss"))) is not None:
            self.valid = valid
        one = Step(
            step,
            number(record.get("time")),
            _loss(record.get("loss")),
            number(record.get("data_wait")),
        )
        while self.steps and self.steps[-1].number > step:
            self.steps.pop()  # an attempt that does some steps again
        if self.steps and self.steps[-1].number == step:  # several lines about one step
            one = _joined(self.steps.pop(), one)
        self.steps.append(one)

    def _rate(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name.endswith("_per_s") and (rate := number(value)) is not None:
                self.rate, self.unit = rate, name.removesuffix("_per_s").replace("_", " ")
                return

    @property
    def newest(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    @property
    def losses(self) -> list[float]:
        """Of the steps kept that say one."""
        return [step.loss for step in self.steps if step.loss is not None]

    @property
    def loss(self) -> float | None:
        return next((s.loss for s in reversed(self.steps) if s.loss is not None), None)

    @property
    def data_wait(self) -> float | None:
        """Share of the time (0 to 1) spent waiting for data, mean of the newest steps."""
        return mean(step.data_wait for step in list(self.steps)[-_RECENT:])

    @property
    def seconds(self) -> float | None:
        """That a step takes: mean of the newest ones, pauses between them included."""
        timed = [step for step in list(self.steps)[-_RECENT:] if step.time is not None]
        if len(timed) < 2 or timed[0].time is None or timed[-1].time is None:
            return None
        steps = timed[-1].number - timed[0].number
        took = timed[-1].time - timed[0].time
        return took / steps if steps > 0 and took > 0 else None


def _joined(before: Step, now: Step) -> Step:
    def either(new: float | None, old: float | None) -> float | None:
        return old if new is None else new

    return Step(
        now.number,
        either(now.time, before.time),
        either(now.loss, before.loss),
        either(now.data_wait, before.data_wait),
    )


def _loss(value: object) -> float | None:
    """A loss, NaN and infinity included; None for what is no number."""
    return value if isinstance(value, float) else number(value)
