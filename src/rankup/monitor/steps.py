"""The training's own record: `metrics.jsonl` as steps and events."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import jsonl
from .jsonl import Record
from .ours import is_checkpoint, is_final
from .recording import Event, Steps

Window = tuple[float, float]
FILE = "metrics.jsonl"
MOST_TEXT = 255
MOST_EXTRA = 64  # names of other values
MOST_EVENTS = 20_000
MOST = 1e30  # what is larger is no reading, and too large for what is computed of it
_RATE = "_per_s"
_OWN = {"loss": "loss", "data_wait": "data_wait", "mfu": "mfu"}
_SPECIAL = {"valid_loss", "final"}
_APART = {"time", "step", "valid_seconds"} | _SPECIAL
_FEW = 8  # lines that are not worth arrays


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


def read(path: Path, window: Window, lives: Sequence[float]) -> Training:
    """Read it; a run without the file has no steps.

    Args:
        window: unix seconds between which times are believed.
        lives: when lives of the run began, in order: no step lasts over such a time.
    """
    reading = _Reading(window)
    error = None
    try:
        for block in jsonl.blocks(path):
            for names, alike in groupby(jsonl.records(block), _names):
                some = list(alike)
                if names is None or len(some) < _FEW or not reading.take_all(names, some):
                    for record in some:
                        reading.take(record)
    except FileNotFoundError:
        pass
    except OSError as problem:
        error = problem.strerror or str(problem)
    return reading.result(lives, error)


class _Column:
    """Doubles, one per step; NaN until said."""

    def __init__(self) -> None:
        self.values = array("d")

    def put(self, at: int, value: float) -> None:
        missing = at + 1 - len(self.values)
        if missing > 0:
            self.values.extend([math.nan] * missing)
        self.values[at] = value

    def append(self, at: int, values: NDArray[np.float64]) -> None:
        self.values.extend([math.nan] * (at - len(self.values)))
        self.values.frombytes(values.tobytes())

    def whole(self, length: int) -> NDArray[np.float64]:
        found = np.full(length, np.nan)
        found[: len(self.values)] = np.frombuffer(self.values, np.float64)
        return found


@dataclass
class _Reading:
    window: Window
    step: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, _Column] = field(default_factory=dict)
    valid: list[tuple[int, float]] = field(default_factory=list)
    strange: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    final: Record | None = None
    unit: str = ""
    torn: int = 0
    clock: float = math.nan  # of the record before
    first: float = math.nan
    last: float = math.nan

    def take(self, record: Record | None) -> None:
        if record is None:
            self.torn += 1
            return
        time = _number(record.get("time"))
        if time is not None and self.window[0] <= time <= self.window[1]:
            self.clock = time
            self.first = time if math.isnan(self.first) else min(time, self.first)
            self.last = time if math.isnan(self.last) else max(time, self.last)
        if is_final(record):
            self.final = record
            return
        if is_checkpoint(record):
            self._saved(record)
            return
        self._validation(record)
        self._step(record)

    def take_all(self, names: tuple[str, ...], records: list[Any]) -> bool:
        """Take steps that have the same `names`; False, and nothing is taken: some are special."""
        rows = zip(*(record.values() for record in records), strict=True)
        found = dict(zip(names, rows, strict=True))
        kinds = {name: set(map(type, values)) for name, values in found.items()}
        numbers = {name for name, kind in kinds.items() if kind <= {int, float}}
        mixed = any(kind & {int, float} for name, kind in kinds.items() if name not in numbers)
        if mixed or kinds["step"] != {int} or "time" not in numbers:
            return False
        try:
            columns = {name: np.array(found[name], np.float64) for name in numbers}
            step = np.array(found["step"], np.int64)
        except OverflowError:
            return False
        time = columns.pop("time")
        del columns["step"]
        inside = (time >= self.window[0]) & (time <= self.window[1])
        follows = np.diff(step, prepend=self.step[-1] if self.step else -1) != 0
        new = len(columns.keys() - self.columns.keys())
        if not (inside.all() and follows.all() and (step >= 0).all()) or not columns:
            return False
        if len(self.columns) + new > MOST_EXTRA or max(map(len, names)) > MOST_TEXT:
            return False
        at = len(self.step)
        self.step.frombytes(step.tobytes())
        self.time.frombytes(time.tobytes())
        self.clock = float(time[-1])
        self.first = float(np.fmin(self.first, time.min()))
        self.last = float(np.fmax(self.last, time.max()))
        if "loss" in columns:
            self.strange += step[~np.isfinite(columns["loss"])].tolist()
        for name in (name for name in names if name in columns):
            if not self.unit and name.endswith(_RATE):
                self.unit = name.removesuffix(_RATE)
            values = np.where(np.abs(columns[name]) < MOST, columns[name], np.nan)
            self.columns.setdefault(name, _Column()).append(at, values)
        return True

    def _saved(self, record: Record) -> None:
        stall = _number(record["stall"])
        if (saved := _count(record["checkpoint"])) is not None:
            seconds = stall if stall is not None and 0 <= stall < MOST else 0.0
            self._happened(Event(self.clock, "checkpoint", f"step {saved}", seconds))

    def _validation(self, record: Record) -> None:
        loss = _number(record.get("valid_loss"))
        if loss is not None:
            step = _count(record.get("step"))
            where = "" if step is None else f"step {step}: "
            took = _number(record.get("valid_seconds")) or 0.0
            took = took if 0 <= took < MOST else 0.0
            # Our own line of a step has the step's time and `seconds`, and the validation came
            # after it; what a script logs by `log_metrics` has the time of the call, which is
            # made when the validation is over.
            end = self.clock + took if "seconds" in record else self.clock
            self._happened(Event(end, "validation", f"{where}loss {loss:.4g}", took))

    def _happened(self, event: Event) -> None:
        """Keep an event, where its time is known."""
        if len(self.events) < MOST_EVENTS and not math.isnan(self.clock):
            self.events.append(event)

    def _step(self, record: Record) -> None:
        """A step's line; further lines of the same step, or without one, add to it."""
        said = {
            name: value
            for name, given in record.items()
            if name not in _APART and (value := _number(given)) is not None
        }
        loss = _number(record.get("valid_loss"))
        number = _count(record.get("step"))
        if not (said or loss is not None):
            return
        if number is None:
            number = self.step[-1] if self.step else 0
        if not self.step or number != self.step[-1]:
            self.step.append(number)
            self.time.append(self.clock)
        at = len(self.step) - 1
        if loss is not None:
            self.valid.append((number, _kept(loss)))
        if "loss" in said and not math.isfinite(said["loss"]):
            self.strange.append(number)
        for name, value in said.items():
            if not self.unit and name.endswith(_RATE):
                self.unit = name.removesuffix(_RATE)[:MOST_TEXT]
            column = self.columns.get(name[:MOST_TEXT])
            if column is None:
                if len(self.columns) == MOST_EXTRA:
                    continue
                column = self.columns[name[:MOST_TEXT]] = _Column()
            column.put(at, _kept(value))

    def result(self, lives: Sequence[float], error: str | None) -> Training:
        length = len(self.step)
        time = np.frombuffer(self.time, np.float64).copy() if length else np.zeros(0)
        seconds = np.diff(time, prepend=np.nan)
        # The first step of a life did not begin where the last one before it ended.
        life = np.searchsorted(np.sort(np.array(lives, np.float64)), time, side="right")
        seconds[1:][np.diff(life) != 0] = np.nan
        seconds[seconds < 0] = np.nan
        # What says no time is as old as the record before it, or else as the first that does.
        time[np.isnan(time)] = self.first if not math.isnan(self.first) else min(lives, default=0.0)
        found = {name: column.whole(length) for name, column in self.columns.items()}
        if "seconds" in found:  # a step's own clock leaves out what came between two steps
            own = found.pop("seconds")
            seconds = np.where(own > 0, own, seconds)
        nothing = np.full(length, np.nan)
        steps = Steps(
            time=time,
            step=np.frombuffer(self.step, np.int64).copy() if length else np.zeros(0, np.int64),
            seconds=seconds,
            rate=found.pop(self.unit + _RATE, nothing) if self.unit else nothing,
            **{name: found.pop(key, nothing) for name, key in _OWN.items()},
            unit=self.unit,
            valid=np.array(self.valid, np.float64).reshape(-1, 2),
            extra=found,
            final=self.final,
            not_finite=np.array(self.strange, np.int64),
        )
        return Training(steps, tuple(self.events), self.first, self.last, self.torn, error)


def _names(record: Record | None) -> tuple[str, ...] | None:
    """The names in a step's line; None for one that says more than a step's numbers."""
    if record is None or "step" not in record or not _SPECIAL.isdisjoint(record):
        return None
    return tuple(record)


def _number(value: Any) -> float | None:
    """A number, maybe infinite or NaN; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _kept(value: float) -> float:
    """The value as it is kept: NaN for one that is not finite or absurdly large."""
    return value if abs(value) < MOST else math.nan


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
        return None
    return value
