"""A synthetic run, written as its samplers and its training would have written it."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rankup.monitor import lines
from rankup.monitor.lines import Gpu, Head
from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Recording

from . import handmade
from .channels import (
    GPU_MEMORY,
    GPU_POWER,
    STARTUP,
    Channel,
    Numbers,
    Value,
    computing,
    feeding,
    learning,
    level,
    serving,
    values_of,
)

BEGIN = 1763834400.0  # 2025-11-22 18:00 UTC
Columns = dict[str, list[Any]]
# Columns of `lines.HOST` that a sampler reads; the others it makes of cores and file systems.
OWN = tuple(name for name in lines.HOST if name != "busiest" and not name.startswith("fs_"))
# Columns that are rates, of all kinds but file systems, all of which are.
_GAUGES = {"load", "memory", "cgroup", "swap", "workers"}
RATES = {"pcie_rx", "pcie_tx", "nvlink", *lines.FS, *OWN, *lines.RANK} - _GAUGES


@dataclass(frozen=True)
class Stay:
    """An attempt of the run: seconds since the trace's begin; `closed`: its samplers say an end."""

    begin: float
    end: float
    state: str = "COMPLETED"
    closed: bool = True
    words: str = ""


@dataclass(frozen=True)
class Silence:
    """A node's sampler is killed, and where `again` holds another one starts at the end."""

    node: int
    begin: float
    end: float
    again: bool = False


@dataclass(frozen=True)
class Trace:
    """A run: how long, how wide, and how each channel goes.

    Attributes:
        gpus, cores, memory: of each node.
        ranks: per node; None: one per GPU, without GPUs one.
        every: seconds between samples; step: between steps; limit: of time, in seconds.
        stays: attempts; none given: one of `seconds`.
        gpu, host, rank: channels by the columns of `lines`; metrics: by the keys of a step's line.
        step_seconds: of each step, as a channel of (seconds, step); None: `step` and some noise.
        core_use: per core in % of it, of (seconds, core); None: what the ranks take.
        fs: by mount point, channels `read`, `write`, `operations`.
        checkpoints, validations: steps between them, None: never; stall: seconds of a checkpoint.
        environment: of every head; heads: changes of every head.
        silences: what was not written; torn: nodes whose last row is cut in its middle.
        records: further lines of `metrics.jsonl`.
    """

    nodes: int = 1
    gpus: int = 4
    cores: int = 48
    seconds: float = 5520.0
    every: float = 10.0
    ranks: int | None = None
    begin: float = BEGIN
    seed: int = 0
    memory: float = 512e9
    memory_limit: float | None = None
    gpu_error: str | None = None
    limit: float | None = 7200.0
    step: float = 0.5
    stays: tuple[Stay, ...] = ()
    gpu: dict[str, Value] = field(default_factory=computing)
    host: dict[str, Value] = field(default_factory=serving)
    rank: dict[str, Value] = field(default_factory=feeding)
    metrics: dict[str, Value] | None = field(default_factory=learning)
    step_seconds: Channel | None = None
    core_use: Channel | None = None
    fs: dict[str, dict[str, Value]] = field(default_factory=dict)
    checkpoints: int | None = None
    validations: int | None = None
    stall: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)
    heads: dict[str, Any] = field(default_factory=dict)
    silences: tuple[Silence, ...] = ()
    torn: tuple[int, ...] = ()
    records: tuple[dict[str, Any], ...] = ()
    known: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> Trace:
        """The same with other attributes."""
        return replace(self, **changes)

    def with_gpu(self, **channels: Value) -> Trace:
        return replace(self, gpu={**self.gpu, **channels})

    def with_host(self, **channels: Value) -> Trace:
        return replace(self, host={**self.host, **channels})

    def with_rank(self, **channels: Value) -> Trace:
        return replace(self, rank={**self.rank, **channels})

    def with_metrics(self, **channels: Value) -> Trace:
        return replace(self, metrics={**(self.metrics or {}), **channels})

    def node_name(self, node: int) -> str:
        return f"jrc{node + 1:04d}"

    @property
    def local_ranks(self) -> int:
        return (self.gpus or 1) if self.ranks is None else self.ranks

    @property
    def attempts(self) -> tuple[Stay, ...]:
        return self.stays or (Stay(0, self.seconds),)

    def write(self, directory: Path) -> Path:
        """Write the files of all samplers and `metrics.jsonl`; the directory."""
        folder = directory / lines.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for node in range(self.nodes):
            with ExitStack() as stack:
                names = {kind: lines.ending(kind) for kind in lines.KINDS}
                names["journal"] = lines.JOURNAL
                path = folder / self.node_name(node)
                files = {
                    kind: stack.enter_context(path.with_name(path.name + name).open("w"))
                    for kind, name in names.items()
                }
                for kind in lines.KINDS:
                    csv.writer(files[kind], lineterminator="\n").writerow(lines.header(kind))
                self._write_node(node, files)
                if node in self.torn:
                    files["host"].write("1763834")
        if self.metrics is not None:
            (directory / "metrics.jsonl").write_bytes(b"".join(self._metrics_lines()))
        return directory

    def facts(self, **changes: Any) -> Facts:
        """What would be known of the run; `changes` are attributes of `Facts`."""
        names = tuple(map(self.node_name, range(self.nodes)))
        attempts = tuple(
            handmade.attempt(
                begin=self.begin + stay.begin,
                end=None if stay.state == "RUNNING" else self.begin + stay.end,
                state=stay.state,
                words=stay.words,
                limit=self.limit,
                nodes=names,
            )
            for stay in self.attempts
        )
        facts = Facts(
            run="20251122-180000-abcd",
            name="train",
            command=f"rankup run --nodes {self.nodes} train.py",
            directory="/p/scratch/course/runs/train/20251122-180000-abcd",
            site="jureca",
            partition="dc-gpu" if self.gpus else "dc-cpu",
            account="training",
            nodes=self.nodes,
            ranks=self.local_ranks,
            gpus=self.gpus,
            unit="core-h",
            per_node_hour=float(self.cores),
            attempts=attempts,
            queued=120.0,
        )
        return replace(facts, **{**self.known, **changes})

    def recording(self, **changes: Any) -> Recording:
        """What `load` makes of it; `changes` are attributes of `Facts`."""
        with tempfile.TemporaryDirectory() as folder:
            return load(self.write(Path(folder)), self.facts(**changes))

    def head(self, node: int, t: float, attempt: int = 0) -> Head:
        """A sampler's first line."""
        gpus = tuple(
            Gpu(
                index=index,
                name="NVIDIA A100-SXM4-40GB",
                uuid=f"GPU-{node:08x}-{index}",
                memory=GPU_MEMORY,
                power_limit=GPU_POWER,
                clock_max=1410.0,
            )
            for index in range(self.gpus)
        )
        head = Head(
            node=self.node_name(node),
            t=round(t, 3),
            every=self.every,
            attempt=f"13815915.{attempt}",
            cores=self.cores,
            usable=tuple(range(self.cores)),
            memory=self.memory,
            memory_limit=self.memory_limit,
            gpus=gpus,
            gpu_error=self.gpu_error,
            ranks=self.local_ranks,
            environment=self.environment,
        )
        return replace(head, **self.heads)

    def _write_node(self, node: int, files: dict[str, TextIO]) -> None:
        """Write what the samplers of all attempts have written."""
        for number, stay in enumerate(self.attempts):
            pauses = [s for s in self.silences if s.node == node and s.end > stay.begin]
            begin = stay.begin
            for pause in sorted(pauses, key=lambda pause: pause.begin):
                if pause.begin > begin:
                    self._write_sampler(node, number, begin, pause.begin, files)
                begin = pause.end if pause.again else stay.end
            if begin < stay.end:
                self._write_sampler(node, number, begin, stay.end, files)
                if stay.closed:
                    end = {"kind": "end", "t": self.begin + stay.end, "why": "the job is over"}
                    files["journal"].write(json.dumps(end) + "\n")

    def _write_sampler(
        self, node: int, attempt: int, begin: float, end: float, files: dict[str, TextIO]
    ) -> None:
        """Write what one sampler writes, but its end."""
        draw = np.random.default_rng((self.seed, node, attempt, int(begin)))
        head = self.head(node, self.begin + begin, attempt).line()
        files["journal"].write(json.dumps(head) + "\n")
        count = int((end - begin) / self.every + 1e-9) + 1
        jitter = draw.uniform(0, min(0.005, self.every / 100), count)
        t = begin + np.arange(count) * self.every + jitter
        at = t[:, None]
        times = np.round(self.begin + t, 3)
        dts = np.round(np.diff(t, prepend=np.nan), 3)

        def table(channels: dict[str, Value], names: tuple[str, ...], things: range) -> Columns:
            numbers = np.array(things)[None]
            found = {n: _column(n, channels.get(n), at, numbers, draw) for n in names}
            # A sampler's first sample has nothing to compare with: what is a rate is empty.
            for name in set(names) & RATES:
                found[name][: len(things)] = [None] * len(things)
            return found

        def write(kind: str, things: Sequence[Any], columns: Columns, *more: list[Any]) -> None:
            many = len(things)
            whens = [_shown(np.repeat(times, many)), _shown(np.repeat(dts, many))]
            keys = [list(things) * count] if lines.KEYS[kind] else []
            ordered = [columns[name] for name in lines.COLUMNS[kind]]
            rows = zip(*whens, *keys, *ordered, *more, strict=True)
            csv.writer(files[kind], lineterminator="\n").writerows(rows)

        own = range(self.local_ranks * node, self.local_ranks * (node + 1))
        gpus = range(self.gpus * node, self.gpus * (node + 1))
        columns = table(self.gpu, lines.GPU, gpus)
        if self.gpus:
            write("gpu", range(self.gpus), columns)
        host = table(self.host, OWN, range(node, node + 1))
        write("rank", own, table(self.rank, lines.RANK, own))
        mounts = [table(c, lines.FS, range(node, node + 1)) for c in self.fs.values()]
        for name in lines.FS:
            samples = list(zip(*(mount[name] for mount in mounts), strict=True))
            columns[name] = [value for values in samples for value in values]
            host[f"fs_{name}"] = [_sum(values) for values in samples] or [None] * count
        if self.fs:
            write("fs", list(self.fs), columns)
        cores = self._cores(at, draw)
        texts = [cores[k * self.cores : (k + 1) * self.cores] for k in range(count)]
        host["busiest"] = [10 * "0123456789a".index(max(text)) for text in texts]
        host["busiest"][0], texts[0] = None, ""
        write("host", [0], host, texts)

    def _cores(self, at: Numbers, draw: np.random.Generator) -> str:
        """The characters of all samples' cores, one after the other."""
        cores = np.arange(self.cores)[None]
        if self.core_use is not None:
            use = np.broadcast_to(self.core_use(at, cores, draw), (len(at), self.cores))
        else:
            ranks = self.local_ranks
            use = np.where(cores < ranks, 98, np.where(cores < 5 * ranks, 30, 1))
            use = use + draw.integers(-3, 3, (len(at), self.cores), dtype=np.int8)
        tenths = np.rint(np.clip(use, 0, 100) / 10).astype(np.uint8)
        return np.frombuffer(b"0123456789a", np.uint8)[tenths].tobytes().decode()

    def _metrics_lines(self) -> Iterator[bytes]:
        """The training's record: of all attempts, later ones from the last checkpoint on."""
        assert self.metrics is not None
        draw = np.random.default_rng((self.seed, 999))
        done = 0
        whole: list[tuple[int, bytes]] = []
        for number, stay in enumerate(attempts := self.attempts):
            last = number == len(attempts) - 1
            begin = stay.begin + STARTUP
            count = max(0, int((stay.end - begin) / self.step * 1.5))
            step = done + 1 + np.arange(count)[:, None]
            about = begin + self.step * np.arange(1, count + 1)[:, None]
            shape = self.step_seconds or level(self.step, self.step / 50)
            took = np.broadcast_to(shape(about, step, draw), (count, 1))[:, 0].copy()
            saves = self.checkpoints or 0
            if saves:
                # The step after a checkpoint is the one that waits for it.
                took += np.where((step[:, 0] - 1) % saves == 0, self.stall, 0) * (step[:, 0] > 1)
            time = begin + np.cumsum(took)
            count = int((time <= stay.end).sum())
            step, time = step[:count], time[:count]
            columns: dict[str, Any] = {
                "step": step[:, 0].tolist(),
                "epoch": [0] * count,
                "lr": [3e-4] * count,
            }
            for name, value in self.metrics.items():
                columns[name] = _metric(name, value, time[:, None], step, draw)
            columns["time"] = np.round(self.begin + time, 3).tolist()
            names = list(columns)
            for row in zip(*columns.values(), strict=True):
                record = dict(zip(names, row, strict=True))
                at = record["step"]
                if self.validations and at % self.validations == 0:
                    record["valid_loss"] = round((record["loss"] or 0.0) + 0.1, 4)
                whole.append((at, json.dumps(record).encode() + b"\n"))
                if saves and at % saves == 0:
                    when = round(record["time"] + self.stall, 3)
                    save = {"time": when, "checkpoint": at, "stall": self.stall}
                    whole.append((at, json.dumps(save).encode() + b"\n"))
            done = int(step[-1, 0]) if count else done
            if last and stay.state == "COMPLETED" and count:
                final = {"final": True, "step": done, "valid_loss": 2.2, "time": record["time"]}
                whole.append((done, json.dumps(final).encode() + b"\n"))
            elif not last:
                done = done // saves * saves if saves else 0
                whole = [(at, line) for at, line in whole if at <= done]
        yield from (line for _, line in whole)
        yield from (json.dumps(record).encode() + b"\n" for record in self.records)


def _column(
    name: str, value: Value, t: Numbers, things: Numbers, draw: np.random.Generator
) -> list[Any]:
    """All values of a column, sample by sample; NaN and what nobody gives are null."""
    values = values_of(value, t, things, draw)
    if name in ("power", "cpu", "load", "workers_cpu"):
        column: list[Any] = np.round(values, 1).ravel().tolist()
        return [None if v != v else v for v in column] if np.isnan(values).any() else column
    if np.isnan(values).any():
        return [None if v != v else round(v) for v in values.ravel().tolist()]
    return np.rint(values).astype(np.int64).ravel().tolist()  # type: ignore[no-any-return]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _shown(values: Numbers) -> list[float | None]:
    """Numbers as a sampler writes them; NaN is empty."""
    return [None if v != v else v for v in values.tolist()]


def _metric(
    name: str, value: Value, time: Numbers, step: Numbers, draw: np.random.Generator
) -> list[Any]:
    """A key of all steps' lines; NaN stays NaN, as the training writes it."""
    if value is None:
        return [None] * len(time)
    if not callable(value):
        return [value] * len(time)
    values = value(time, step, draw)
    array = np.broadcast_to(np.asarray(values, float), (len(time), 1))[:, 0]
    return np.round(array, 4).tolist()  # type: ignore[no-any-return]
