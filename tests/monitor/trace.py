"""A synthetic run, written as its samplers and its training would have written it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rankup.monitor import lines
from rankup.monitor.lines import Gpu, Head
from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Life, Recording

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


@dataclass(frozen=True)
class Stay:
    """A life of the run: seconds since the trace's begin; `closed`: its samplers say an end."""

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
        stays: lives; none given: one of `seconds`.
        gpu, host, rank: channels by the columns of `lines`; metrics: by the keys of a step's line.
        step_seconds: of each step, as a channel of (seconds, step); None: `step` and some noise.
        core_use: per core in % of it, of (seconds, core); None: what the ranks take.
        fs: by mount point, channels `read`, `write`, `operations`.
        checkpoints, validations: steps between them, None: never; stall: seconds of a checkpoint.
        environment: of every head; heads: changes of every head.
        silences, torn: what was not written; torn: (node, seconds) of half a line.
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
    torn: tuple[tuple[int, float], ...] = ()
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
    def lives(self) -> tuple[Stay, ...]:
        return self.stays or (Stay(0, self.seconds),)

    def write(self, directory: Path) -> Path:
        """Write `monitor/<node>.jsonl` and `metrics.jsonl`; the directory."""
        folder = directory / lines.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for node in range(self.nodes):
            with (folder / f"{self.node_name(node)}.jsonl").open("wb") as file:
                for piece in self._node_lines(node):
                    file.write(piece)
        if self.metrics is not None:
            (directory / "metrics.jsonl").write_bytes(b"".join(self._metrics_lines()))
        return directory

    def facts(self, **changes: Any) -> Facts:
        """What would be known of the run; `changes` are attributes of `Facts`."""
        names = tuple(map(self.node_name, range(self.nodes)))
        lives = tuple(
            Life(
                begin=self.begin + stay.begin,
                end=None if stay.state == "RUNNING" else self.begin + stay.end,
                state=stay.state,
                words=stay.words,
                limit=self.limit,
                nodes=names,
                job="13815915",
            )
            for stay in self.lives
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
            lives=lives,
            queued=120.0,
        )
        return replace(facts, **{**self.known, **changes})

    def recording(self, **changes: Any) -> Recording:
        """What `load` makes of it; `changes` are attributes of `Facts`."""
        with tempfile.TemporaryDirectory() as folder:
            return load(self.write(Path(folder)), self.facts(**changes))

    def head(self, node: int, t: float, life: int = 0) -> Head:
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
            life=f"13815915.{life}",
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

    def _node_lines(self, node: int) -> Iterator[bytes]:
        """A node's file: heads, samples and ends of all its lives."""
        for number, stay in enumerate(self.lives):
            pauses = [s for s in self.silences if s.node == node and s.end > stay.begin]
            begin = stay.begin
            for pause in sorted(pauses, key=lambda pause: pause.begin):
                if pause.begin > begin:
                    yield from self._sampler(node, number, begin, pause.begin)
                begin = pause.end if pause.again else stay.end
            if begin < stay.end:
                yield from self._sampler(node, number, begin, stay.end)
                if stay.closed:
                    end = {"kind": "end", "t": self.begin + stay.end, "why": "the job is over"}
                    yield orjson.dumps(end) + b"\n"

    def _sampler(self, node: int, life: int, begin: float, end: float) -> Iterator[bytes]:
        """The lines of one sampler, but its last."""
        draw = np.random.default_rng((self.seed, node, life, int(begin)))
        head = self.head(node, self.begin + begin, life).line()
        yield orjson.dumps(head) + b"\n"
        count = int((end - begin) / self.every + 1e-9) + 1
        jitter = draw.uniform(0, min(0.005, self.every / 100), count)
        t = begin + np.arange(count) * self.every + jitter
        at = t[:, None]

        def table(channels: dict[str, Value], names: tuple[str, ...], things: range) -> Any:
            numbers = np.array(things)[None]
            columns = [_column(name, channels.get(name), at, numbers, draw) for name in names]
            return list(zip(*columns, strict=True))

        def rows(channels: dict[str, Value], names: tuple[str, ...], per_node: int) -> Any:
            if not per_node:
                return [()] * count
            flat = iter(table(channels, names, range(node * per_node, (node + 1) * per_node)))
            return list(zip(*[flat] * per_node, strict=True))

        own = range(self.local_ranks * node, self.local_ranks * (node + 1))
        gpus = rows(self.gpu, lines.GPU, self.gpus)
        hosts = table(self.host, lines.HOST, range(node, node + 1))
        numbered = {**self.rank, "rank": lambda t, rank, draw: rank + 0 * t}
        ranks = rows(numbered, lines.RANKS, len(own))
        mounts = {m: table(c, lines.FS, range(node, node + 1)) for m, c in self.fs.items()}
        cores = self._cores(at, draw)
        wide = self.cores
        times = np.round(self.begin + t, 3).tolist()
        dts: list[float | None] = np.round(np.diff(t), 3).tolist()
        dts.insert(0, None)
        torn = {round((when - begin) / self.every) for where, when in self.torn if where == node}
        block = []
        for k in range(count):
            sample: dict[str, Any] = {
                "t": times[k],
                "dt": dts[k],
                "gpu": gpus[k],
                "host": hosts[k],
                "cores": cores[k * wide : (k + 1) * wide],
                "ranks": ranks[k],
            }
            if mounts:
                sample["fs"] = {mount: rows[k] for mount, rows in mounts.items()}
            if k == 0:
                _without_rates(sample)
            line = orjson.dumps(sample)
            block.append(line[: len(line) // 2] if k in torn else line)
        block.append(b"")
        yield b"\n".join(block)

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
        """The training's record: the steps of all lives, later ones from the last checkpoint on."""
        assert self.metrics is not None
        draw = np.random.default_rng((self.seed, 999))
        done = 0
        whole: list[tuple[int, bytes]] = []
        for number, stay in enumerate(lives := self.lives):
            last = number == len(lives) - 1
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
                    whole.append((at, orjson.dumps(save) + b"\n"))
            done = int(step[-1, 0]) if count else done
            if last and stay.state == "COMPLETED" and count:
                final = {"final": True, "step": done, "valid_loss": 2.2, "time": record["time"]}
                whole.append((done, orjson.dumps(final) + b"\n"))
            elif not last:
                done = done // saves * saves if saves else 0
                whole = [(at, line) for at, line in whole if at <= done]
        yield from (line for _, line in whole)
        yield from (orjson.dumps(record) + b"\n" for record in self.records)


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


def _without_rates(sample: dict[str, Any]) -> None:
    """A sampler's first sample has nothing to compare with: what is a rate is null."""

    def blank(row: Any, names: tuple[str, ...], rates: set[str]) -> list[Any]:
        return [None if n in rates else v for n, v in zip(names, row, strict=True)]

    gauges = {"load", "memory", "cgroup", "swap", "rank", "workers"}
    sample["host"] = blank(sample["host"], lines.HOST, set(lines.HOST) - gauges)
    sample["ranks"] = [blank(r, lines.RANKS, set(lines.RANKS) - gauges) for r in sample["ranks"]]
    sample["gpu"] = [blank(r, lines.GPU, {"pcie_rx", "pcie_tx", "nvlink"}) for r in sample["gpu"]]
    sample["cores"] = None
    if "fs" in sample:
        sample["fs"] = {mount: [None] * len(lines.FS) for mount in sample["fs"]}
