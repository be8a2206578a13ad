"""A run that goes on: its nodes, its steps and its log, by what its files have grown by."""

from __future__ import annotations

import csv
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ...base.files import open_regular, tail
from ...base.text import encodable
from ...slurm.job import Attempt
from .. import lines
from ..lines import Gpu, Head, is_final, number

LAST = 64 * 1024  # of a file of gigabytes its newest lines
_MOST_NEWS = 4 * 1024 * 1024  # bytes of news in one look; after that the newest only


@dataclass
class Growing:
    """The lines appended to a file since the last look; it need not be there yet.

    A torn last line waits for its end. A file that was replaced or cut (a resume cuts
    `metrics.jsonl` back) is begun anew, from its end as at first.

    Attributes:
        last: bytes read of its end at the first look.
        begun: how often it was begun; a change says that what was read before is void.
    """

    path: Path
    last: int = LAST
    begun: int = 0
    _offset: int = -1  # behind the last whole line
    _identity: tuple[int, int] = field(default=(0, 0))

    def read(self) -> list[dict[str, Any]]:
        """The objects that came since; at the first look the newest ones."""
        try:
            status = self.path.stat()
        except OSError:
            return []
        identity = (status.st_dev, status.st_ino)
        if self._offset >= 0 and identity == self._identity and status.st_size == self._offset:
            return []
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                size, identity = status.st_size, (status.st_dev, status.st_ino)
                if self._offset < 0 or identity != self._identity or size < self._offset:
                    return self._begin(file, size, identity)
                if size - self._offset > _MOST_NEWS:
                    return self._skip(file, size)
                file.seek(self._offset)
                return self._parsed(file.read(size - self._offset), self._offset)
        except OSError:
            return []

    def _begin(self, file: Any, size: int, identity: tuple[int, int]) -> list[dict[str, Any]]:
        self._identity = identity
        self.begun += 1
        if size > self.last:
            return self._skip(file, size)
        return self._parsed(file.read(size), 0)

    def _skip(self, file: Any, size: int) -> list[dict[str, Any]]:
        """The newest lines only; of the first of them the beginning is missing."""
        file.seek(size - self.last)
        data = file.read(self.last)
        first = data.find(b"\n") + 1
        return self._parsed(data[first:], size - self.last + first)

    def _parsed(self, data: bytes, begin: int) -> list[dict[str, Any]]:
        whole = data[: data.rfind(b"\n") + 1]
        self._offset = begin + len(whole)
        return self._records(whole)

    def _records(self, whole: bytes) -> list[dict[str, Any]]:
        found = map(lines.record, whole.split(b"\n"))
        return [record for record in found if record is not None]


@dataclass
class Table(Growing):
    """The rows appended to a CSV file since the last look, by the names in its header."""

    _names: list[str] = field(default_factory=list)

    def _begin(self, file: Any, size: int, identity: tuple[int, int]) -> list[dict[str, Any]]:
        header = file.readline(self.last)
        if not header.endswith(b"\n"):  # of a sampler that has just begun
            return []
        self._names = header.decode("utf-8", "replace").strip().split(",")
        file.seek(0)
        return super()._begin(file, size, identity)

    def _records(self, whole: bytes) -> list[dict[str, Any]]:
        rows = csv.reader(whole.decode("utf-8", "replace").splitlines())
        return [dict(zip(self._names, row, strict=False)) for row in rows if row != self._names]


KEPT = 120.0  # seconds of samples, up to so many
_MOST = 120
NOW = 10.0  # seconds that the figures shown are means of


@dataclass(frozen=True)
class Sample:
    """One sample, by the names of `lines`; what could not be read is left out."""

    time: float
    gpus: tuple[dict[str, float], ...]
    host: dict[str, float]


@dataclass
class Node:
    """A node of the run.

    Attributes:
        head: of its newest sampler.
        ended: why its sampler ended; None while it goes on.
        notes: code and text of what its sampler has said in the job's log, in order.
    """

    name: str
    head: Head | None = None
    ended: str | None = None
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_MOST))
    notes: dict[tuple[str, str], None] = field(default_factory=dict)
    _waiting: dict[float, dict[int, dict[str, float]]] = field(default_factory=dict)

    def take(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take lines of the node's journal, whatever they hold."""
        for record in records:
            kind = record.get("kind")
            if kind == "head":
                # It may be of a version that this one does not know.
                with suppress(KeyError, TypeError, ValueError):
                    self.head, self.ended = Head.of(record), None
            elif kind == "end":
                self.ended = str(record.get("why") or "without a reason")
            elif kind == "note":
                self.notes[str(record.get("code", "")), str(record.get("text", ""))] = None

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


_KEPT_STEPS = 1000
_RECENT = 50


@dataclass(frozen=True)
class Step:
    """Return what lines say of a step; None where they do not. `loss` may be NaN or infinite."""

    number: int
    time: float | None = None
    loss: float | None = None
    data_wait: float | None = None


@dataclass
class Progress:
    """The newest steps.

    Attributes:
        rate, unit: units per second of the newest step that says one; "tokens".
        valid: newest validation loss.
        final: the run came to its end.
    """

    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))
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
        found = {name: number(record.get(name)) for name in ("time", "data_wait")}
        found["loss"] = _loss(record.get("loss"))
        while self.steps and self.steps[-1].number > step:
            self.steps.pop()  # an attempt that does some steps again
        # There may be several lines about one step.
        same = bool(self.steps) and self.steps[-1].number == step
        before = self.steps.pop() if same else Step(step)
        said: Any = {name: value for name, value in found.items() if value is not None}
        self.steps.append(replace(before, **said))

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


def _loss(value: object) -> float | None:
    """A loss, NaN and infinity included; None for what is no number."""
    return value if isinstance(value, float) else number(value)


_LOG_BYTES = 16 * 1024
_METRICS = 256 * 1024
_JOURNAL = 1024 * 1024  # it has few lines, and is read whole


@dataclass(frozen=True)
class Run:
    """The view's knowledge of a run.

    Attributes:
        attempt: its newest; None where nobody knows of one.
        steps: that it is to take; None where nobody says.
        log: the file that it prints into.
    """

    id: str
    name: str = ""
    attempt: Attempt | None = None
    steps: int | None = None
    log: Path | None = None


@dataclass
class Watch:
    """A run that is being looked at; `look` reads what is new.

    Attributes:
        log: its newest lines, as they stand in the file: not `clean`.
    """

    path: Path
    run: Run
    last: int = LAST
    progress: Progress = field(default_factory=Progress)
    nodes: dict[str, Node] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    _files: dict[str, Growing] = field(default_factory=dict)
    _tables: dict[str, tuple[Table, Table]] = field(default_factory=dict)
    _metrics: Growing | None = None

    def look(self) -> None:
        """Read what the files of nodes and steps have grown by, and the end of the log."""
        self._find_nodes()
        for name, file in self._files.items():
            begun = file.begun
            found = file.read()
            if file.begun != begun and begun:
                self.nodes[name] = Node(encodable(name))
            if found:
                self.nodes[name].take(found)
            host, gpu = self._tables[name]
            # The host's row is written last, so that the rows of its GPUs are there.
            self.nodes[name].sampled(host.read(), gpu.read())
        self._look_at_steps()
        self._look_at_log()

    def known(self) -> list[Node]:
        """Nodes that have said something, by name."""
        said = [node for node in self.nodes.values() if node.begun is not None or node.samples]
        return sorted(said, key=lambda node: node.name)

    def over(self) -> bool:
        """True if nothing more will come."""
        attempt = self.run.attempt
        # Of a run on another node nobody here knows; its samplers say whether it goes on.
        if attempt is not None and attempt.state != "UNKNOWN":
            return not attempt.live
        nodes = self.known()
        ended = bool(nodes) and all(node.ended is not None for node in nodes)
        return ended or (self.progress.final and not nodes)

    def _find_nodes(self) -> None:
        folder = self.path / lines.FOLDER
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name.removesuffix(lines.JOURNAL)
                if name != entry.name and name not in self._files:
                    self._files[name] = Growing(folder / entry.name, _JOURNAL)
                    self._tables[name] = (self._table(name, "host"), self._table(name, "gpu"))
                    self.nodes[name] = Node(encodable(name))

    def _table(self, node: str, kind: str) -> Table:
        return Table(self.path / lines.FOLDER / f"{node}{lines.ending(kind)}", self.last)

    def _look_at_steps(self) -> None:
        if self._metrics is None:
            self._metrics = Growing(self.path / "metrics.jsonl", _METRICS)
        begun = self._metrics.begun
        found = self._metrics.read()
        if self._metrics.begun != begun:
            self.progress = Progress()
        for record in found:
            self.progress.take(record)

    def _look_at_log(self) -> None:
        if self.run.log is not None:
            found = (line.decode("utf-8", "replace") for line in tail(self.run.log, _LOG_BYTES))
            self.log = [line for line in found if line.strip()]
