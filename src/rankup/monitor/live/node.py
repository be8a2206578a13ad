"""What is known of one node now: its head, its newest samples, what its sampler has said."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from .. import lines
from ..jsonl import number
from ..lines import Gpu, Head

KEPT = 120.0  # seconds of samples, up to so many
_MOST = 120
NOW = 10.0  # seconds that the figures shown are means of


@dataclass(frozen=True)
class Sample:
    """One sample, by the names of `lines`; what could not be read is left out."""

    time: float
    gpus: tuple[dict[str, float], ...]
    host: dict[str, float]


@dataclass(frozen=True)
class Note:
    """What a sampler said in the job's log."""

    time: float
    code: str
    text: str


@dataclass
class Node:
    """A node of the run.

    Attributes:
        head: of its newest sampler.
        ended: why its sampler ended; None while it goes on.
    """

    name: str
    head: Head | None = None
    ended: str | None = None
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST))
    notes: dict[tuple[str, str], Note] = field(default_factory=dict)
    _waiting: dict[float, dict[int, dict[str, float]]] = field(default_factory=dict)

    def take(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take lines of the node's journal, whatever they hold."""
        for record in records:
            self._take(record)

    def sampled(
        self, hosts: Sequence[Mapping[str, str]], gpus: Sequence[Mapping[str, str]]
    ) -> None:
        """Take rows of the node's tables; those of `gpus` are there no later than their host's."""
        for row in gpus:
            time, index = _number(row.get("t")), _number(row.get("gpu"))
            if time is not None and index is not None:
                self._waiting.setdefault(time, {})[int(index)] = _numbers(lines.GPU, row)
        for row in hosts:
            if (time := _number(row.get("t"))) is not None:
                found = self._waiting.pop(time, {})
                own = tuple(found.get(gpu.index, {}) for gpu in self.gpus)
                self._add(Sample(time, own, _numbers(lines.HOST, row)))
        self._waiting = {t: rows for t, rows in self._waiting.items() if t > (self.last or 0.0)}

    def _take(self, record: Mapping[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "head":
            with suppress(
                KeyError, TypeError, ValueError
            ):  # of a version that this one does not know
                self.head, self.ended = Head.of(record), None
        elif kind == "end":
            self.ended = str(record.get("why") or "without a reason")
        elif kind == "note":
            note = Note(
                number(record.get("t")) or 0.0,
                str(record.get("code", "")),
                str(record.get("text", "")),
            )
            self.notes[note.code, note.text] = note

    def _add(self, sample: Sample) -> None:
        if self.samples and sample.time < self.samples[-1].time:
            self.samples.clear()  # the clock was set back, or the file was begun anew
        self.samples.append(sample)
        while sample.time - self.samples[0].time > KEPT:
            self.samples.popleft()

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All of the node."""
        return self.head.gpus if self.head else ()

    @property
    def begun(self) -> float | None:
        """Unix seconds at which its newest sampler began."""
        return self.head.t if self.head else None

    @property
    def memory(self) -> float | None:
        """Bytes that the job may use."""
        return (self.head.memory_limit or self.head.memory or None) if self.head else None

    @property
    def last(self) -> float | None:
        """Unix seconds of the newest sample."""
        return self.samples[-1].time if self.samples else None

    def stale(self, now: float) -> float | None:
        """Seconds without a sample, where those are too many for a sampler that goes on."""
        last = self.last or self.begun
        if last is None or self.ended is not None:
            return None
        patience = max(15.0, 3 * self.pace)
        return now - last if now - last > patience else None

    @property
    def pace(self) -> float:
        """Seconds between samples: of the newest ones, else what the head says."""
        every = self.head.every if self.head else 2.0
        if len(self.samples) < 2:
            return every
        return max(every, self.samples[-1].time - self.samples[-2].time)

    def recent(self, seconds: float = NOW) -> list[Sample]:
        """Samples of the last seconds before the newest one, and that."""
        if not self.samples:
            return []
        return [s for s in self.samples if s.time > self.samples[-1].time - seconds]

    def gpu(self, place: int, what: str, seconds: float = NOW) -> float | None:
        """Mean of a channel of one GPU over the last seconds; None where nothing was read."""
        return mean(s.gpus[place].get(what) for s in self.recent(seconds) if place < len(s.gpus))

    def host(self, what: str, seconds: float = NOW) -> float | None:
        """Mean of a channel of the node over the last seconds; None where nothing was read."""
        return mean(sample.host.get(what) for sample in self.recent(seconds))

    def all_gpus(self, what: str, seconds: float = NOW) -> list[float]:
        """Of each GPU of which it is known, in order."""
        found = (self.gpu(place, what, seconds) for place in range(len(self.gpus)))
        return [value for value in found if value is not None]

    def util(self, seconds: float = NOW) -> float | None:
        """Mean use of its GPUs in %; of its cores on a node without GPUs."""
        return mean(self.all_gpus("util", seconds)) if self.gpus else self.host("cpu", seconds)


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of those that are known; None without one."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _numbers(names: Sequence[str], row: Mapping[str, str]) -> dict[str, float]:
    values = {name: _number(row.get(name)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _number(text: str | None) -> float | None:
    """A finite number; None for an empty field, and for what is none."""
    try:
        return number(float(text or ""))
    except ValueError:
        return None
