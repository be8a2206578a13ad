"""The training's own record: `metrics.jsonl` as steps and events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import lines
from .lines import Record, is_checkpoint, is_final
from .recording import Event, Steps

Window = tuple[float, float]
Numbers = NDArray[np.float64]
FILE = "metrics.jsonl"
_MOST_NAMES = 64  # of values
_MOST_EVENTS = 20_000
_MOST = 1e30  # what is larger is no reading, and too large for what is computed of it
_RATE = "_per_s"
_NUMBERS = frozenset({int, float})  # bool is none
_OWN = {"loss": "loss", "data_wait": "data_wait", "mfu": "mfu"}
_APART = {"time", "step", "valid_seconds", "valid_loss", "final"}


@dataclass(frozen=True)
class Training:
    """What `metrics.jsonl` says.

    Attributes:
        events: validations and checkpoints.
        first, last: times of its records; NaN without any.
        torn: lines that were none.
        error: why it could not be read.
    """

    steps: Steps
    events: tuple[Event, ...] = ()
    first: float = math.nan
    last: float = math.nan
    torn: int = 0
    error: str | None = None


def read(path: Path, window: Window) -> Reading:
    """Read it; a run without the file has no steps.

    Args:
        window: unix seconds between which times are believed.
    """
    reading = Reading(window)
    try:
        for records in lines.records(path):
            reading.take(records)
    except FileNotFoundError:
        pass
    except OSError as problem:
        reading.error = problem.strerror or str(problem)
    return reading


@dataclass
class Reading:
    """Lines so far; those about steps as arrays, one per block of the file.

    Attributes:
        steps, times: of each line about a step, or with values beside a step.
        columns: by name, the places of the lines that say it, and what they say.
        valid: places of validations, and their losses; strange: places of losses that are not
            finite.
        clock: time of the line before.
    """

    window: Window
    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    columns: dict[str, list[tuple[NDArray[np.int64], Numbers]]] = field(default_factory=dict)
    valid: dict[int, float] = field(default_factory=dict)
    strange: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    final: Record | None = None
    torn: int = 0
    clock: float = math.nan
    first: float = math.inf
    last: float = -math.inf
    error: str | None = None

    def take(self, records: list[Record | None]) -> None:
        begin = len(self.steps)
        rows = []
        for record in records:
            if record is None:
                self.torn += 1
                continue
            time = _number(record.get("time"))
            if time is not None and self.window[0] <= time <= self.window[1]:
                self.clock = time
                self.first, self.last = min(time, self.first), max(time, self.last)
            if is_final(record):
                self.final = record
            elif is_checkpoint(record):
                self._saved(record)
            else:
                loss = _number(record.get("valid_loss"))
                says = loss is not None or _is_number(record.get("loss"))
                if not says and not any(map(_is_number, _values(record))):
                    continue
                if loss is not None:
                    self.valid[len(self.steps)] = _kept(loss)
                    self._validated(record, loss)
                number = _count(record.get("step"))
                if number is None:  # it adds to the step before
                    number = self.steps[-1] if self.steps else 0
                rows.append(record)
                self.steps.append(number)
                self.times.append(self.clock)
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if name not in _APART:
                self._column(name, [record.get(name) for record in rows], begin)

    def _column(self, name: str, values: list[Any], begin: int) -> None:
        """Take what lines from `begin` on say of a name; what is no number is nothing."""
        said: Sequence[int] = range(len(values))
        if not set(map(type, values)) <= _NUMBERS:
            said = [at for at, value in enumerate(values) if _is_number(value)]
            values = [values[at] for at in said]
        if not said or (name not in self.columns and len(self.columns) == _MOST_NAMES):
            return
        places = np.array(said) + begin
        try:
            numbers = np.array(values, np.float64)
        except OverflowError:  # an integer of hundreds of digits
            numbers = np.array([_number(value) for value in values], np.float64)
        if name == "loss":
            self.strange += places[~np.isfinite(numbers)].tolist()
        kept = np.where(np.abs(numbers) < _MOST, numbers, np.nan)
        self.columns.setdefault(name, []).append((places, kept))

    def _saved(self, record: Record) -> None:
        stall = _number(record["stall"])
        if (saved := _count(record["checkpoint"])) is not None:
            seconds = stall if stall is not None and 0 <= stall < _MOST else 0.0
            self._happened(Event(self.clock, "checkpoint", f"step {saved}", seconds))

    def _validated(self, record: Record, loss: float) -> None:
        step = _count(record.get("step"))
        where = "" if step is None else f"step {step}: "
        took = _number(record.get("valid_seconds")) or 0.0
        took = took if 0 <= took < _MOST else 0.0
        # Our own line of a step has the step's time and `seconds`, and the validation came
        # after it; what a script logs by `log_metrics` has the time of the call, which is
        # made when the validation is over.
        end = self.clock + took if "seconds" in record else self.clock
        self._happened(Event(end, "validation", f"{where}loss {loss:.4g}", took))

    def _happened(self, event: Event) -> None:
        """Keep an event, where its time is known."""
        if len(self.events) < _MOST_EVENTS and not math.isnan(self.clock):
            self.events.append(event)

    def result(self, attempts: Sequence[float]) -> Training:
        """Return the steps so far.

        Args:
            attempts: when attempts of the run began, in order: no step lasts over such a time.
        """
        step, time = np.array(self.steps, np.int64), np.array(self.times, np.float64)
        # Further lines of the same step add to it.
        new = np.diff(step, prepend=-1) != 0
        place = np.cumsum(new) - 1  # of each line's step
        found = {name: np.full(int(new.sum()), np.nan) for name in self.columns}
        for name, parts in self.columns.items():
            for places, values in parts:
                found[name][place[places]] = values
        number, time = step[new], time[new]
        seconds = np.diff(time, prepend=np.nan)
        # The first step of an attempt did not begin where the last one before it ended.
        attempt = np.searchsorted(np.sort(np.array(attempts, np.float64)), time, side="right")
        seconds[1:][np.diff(attempt) != 0] = np.nan
        seconds[seconds < 0] = np.nan
        first, last = (self.first, self.last) if self.first <= self.last else (math.nan, math.nan)
        # What says no time is as old as the record before it, or else as the first that does.
        time[np.isnan(time)] = min(attempts, default=0.0) if math.isnan(first) else first
        if "seconds" in found:  # a step's own clock leaves out what came between two steps
            own = found.pop("seconds")
            seconds = np.where(own > 0, own, seconds)
        unit = next((n.removesuffix(_RATE) for n in found if n.endswith(_RATE)), "")
        nothing = np.full(len(number), np.nan)
        steps = Steps(
            time=time,
            step=number,
            seconds=seconds,
            rate=found.pop(unit + _RATE, nothing),
            **{name: found.pop(key, nothing) for name, key in _OWN.items()},
            unit=unit,
            valid=np.array([(step[at], loss) for at, loss in self.valid.items()]).reshape(-1, 2),
            extra=found,
            final=self.final,
            not_finite=step[self.strange],
        )
        return Training(steps, tuple(self.events), first, last, self.torn, self.error)


def _values(record: Record) -> Iterator[Any]:
    return (value for name, value in record.items() if name not in _APART)


def _is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def _number(value: Any) -> float | None:
    """Return a number, maybe infinite or NaN; None for anything else."""
    if not _is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kept(value: float) -> float:
    """Return the value as it is kept: NaN for one that is not finite or absurdly large."""
    return value if abs(value) < _MOST else math.nan


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        return None
    return value
