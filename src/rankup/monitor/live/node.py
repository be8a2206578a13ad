"""What is known of one node now: its head, its newest samples, what its sampler has said."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeGuard

from .. import lines
from ..jsonl import number

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
        gpus: static facts of its GPUs, from the head: name, memory in bytes, power_limit in W.
        memory: bytes that the job may use.
        ended: why its sampler ended; None while it goes on.
    """

    name: str
    begun: float | None = None
    every: float = 2.0
    gpus: tuple[dict[str, Any], ...] = ()
    gpu_error: str = ""
    cores: int = 0
    memory: float | None = None
    swap: float = 0.0
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
                own = tuple(found.get(gpu.get("index", -1), {}) for gpu in self.gpus)
                self._add(Sample(time, own, _numbers(lines.HOST, row)))
        self._waiting = {t: rows for t, rows in self._waiting.items() if t > (self.last or 0.0)}

    def _take(self, record: Mapping[str, Any]) -> None:
        kind = record.get("kind")
        time = number(record.get("t"))
        if kind == "head":
            self._take_head(record, time)
        elif kind == "end":
            self.ended = str(record.get("why") or "without a reason")
        elif kind == "note":
            note = Note(time or 0.0, str(record.get("code", "")), str(record.get("text", "")))
            self.notes[note.code, note.text] = note

    def _take_head(self, record: Mapping[str, Any], time: float | None) -> None:
        self.ended = None
        self.begun = time
        self.name = str(record.get("node") or self.name)
        self.every = number(record.get("every")) or self.every
        gpus = record.get("gpus")
        self.gpus = tuple(g for g in gpus if isinstance(g, dict)) if _listed(gpus) else ()
        self.gpu_error = str(record.get("gpu_error") or "")
        self.cores = len(usable) if _listed(usable := record.get("usable")) else 0
        self.memory = number(record.get("memory_limit")) or number(record.get("memory"))
        self.swap = number(record.get("swap")) or 0.0

    def _add(self, sample: Sample) -> None:
        if self.samples and sample.time < self.samples[-1].time:
            self.samples.clear()  # the clock was set back, or the file was begun anew
        self.samples.append(sample)
        while sample.time - self.samples[0].time > KEPT:
            self.samples.popleft()

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
        if len(self.samples) < 2:
            return self.every
        return max(self.every, self.samples[-1].time - self.samples[-2].time)

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


def _listed(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)
