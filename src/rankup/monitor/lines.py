"""The files that a node's sampler appends to in `monitor/`: a table per kind, and a journal.

`<node>.gpu.csv`, `<node>.host.csv`, `<node>.rank.csv` and `<node>.fs.csv` are CSV, header first: a
row for each sample and GPU, node, rank or mount point, in that order:

    t,dt,gpu,util,memory,power,…
    1763834402.1,2.0,0,99,31000000000,391.2,…

`t` is unix seconds and `dt` the time in seconds that a sample stands for, empty for a sampler's
first one, whose rates are empty too. Empty is a value that could not be read. The row of `host` is
written last, so that what belongs to it is there. `cores` has a character per usable core: its use
in tenths, `0` to `9` and `a` for all of it.

`<node>.jsonl` is the journal, one JSON object per line. A sampler begins with a `Head` (a later
attempt of the run appends another) and ends with `end` where it was not killed:

    {"kind": "head", "v": 2, "t": …, "node": "jwb0001", "gpus": […], …}
    {"kind": "note", "t": …, "code": "RK701", "text": "what was said in the job's log"}
    {"kind": "end", "t": …, "why": …}

A sampler that is killed may leave part of a last line, which the next one cuts off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..base.files import open_regular
from ..base.text import encodable

VERSION = 2
FOLDER = "monitor"  # in the run directory
STOP = "stop"  # in that folder: a sampler that sees it ends
JOURNAL = ".jsonl"  # ending of its name

# Units: % of one GPU; bytes; W; °C; MHz; NVML's bits of clocks event reasons; bytes/s; a number.
GPU = (
    "util",
    "memory",
    "power",
    "temperature",
    "clock",
    "throttle",
    "pcie_rx",
    "pcie_tx",
    "nvlink",
    "processes",
)
# % of all usable cores; % of the busiest one; processes; bytes; bytes; bytes; then bytes/s, of the
# network file systems all together; operations/s. `cgroup` is what counts against the cgroup's
# limit; `disk` are the node's own block devices; `net` all interfaces but loopback and InfiniBand;
# `ib` all InfiniBand ports.
HOST = (
    "cpu",
    "busiest",
    "load",
    "memory",
    "cgroup",
    "swap",
    "disk_read",
    "disk_write",
    "net_rx",
    "net_tx",
    "ib_rx",
    "ib_tx",
    "fs_read",
    "fs_write",
    "fs_operations",
)
# % of one core; bytes (resident); number of data workers (child processes); % of one core that all
# of them take; bytes/s that the rank and its workers read and wrote.
RANK = ("cpu", "memory", "workers", "workers_cpu", "read", "write")
# Of a network file system, by mount point: bytes/s, bytes/s, operations/s.
FS = ("read", "write", "operations")
COLUMNS = {"gpu": GPU, "host": HOST, "rank": RANK, "fs": FS}
# What tells the rows of a sample apart: NVML's index, the number of the rank, the mount point.
KEYS = {"gpu": ("gpu",), "host": (), "rank": ("rank",), "fs": ("mount",)}
MOST_KEYS = 100_000  # no node has such an index, and no run such a rank
KINDS = ("fs", "rank", "gpu", "host")  # in the order in which a sample is written


def header(kind: str) -> tuple[str, ...]:
    """Return the names of the columns of a kind's table."""
    cores = ("cores",) if kind == "host" else ()
    return ("t", "dt", *KEYS[kind], *COLUMNS[kind], *cores)


def ending(kind: str) -> str:
    """Return how the name of a kind's table ends, behind the node's."""
    return f".{kind}.csv"


# NVML's nvmlClocksEventReason* bits that are no free choice of the user's.
THROTTLE_POWER = 0x4 | 0x80  # software power cap, power brake
THROTTLE_HEAT = 0x20 | 0x40  # software and hardware thermal slowdown
THROTTLE_HARDWARE = 0x8  # hardware slowdown: heat, power brake or a fault


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        index: NVML's, in PCI order, over all GPUs of the node.
        memory: bytes.
        power_limit: W; None where the driver does not say.
        clock_max: MHz of the SM clock.
        granted: whether Slurm gave it to this job; None where nobody says.
    """

    index: int
    name: str
    uuid: str
    memory: float
    power_limit: float | None = None
    clock_max: float | None = None
    granted: bool | None = None


@dataclass(frozen=True)
class Head:
    """What is known of a node when its sampler starts.

    Attributes:
        node: Slurm's name of it, else the host name.
        t: unix seconds.
        every: seconds between samples, at first.
        attempt: `<job>.<restart>` of Slurm; where there is none, when the sampler started, in unix
            seconds. Tells attempts apart.
        cores: that the node has.
        usable: numbers of the cores that the job may use.
        memory: bytes of the node.
        memory_limit: bytes that the cgroup or Slurm allows; None without a limit.
        swap: bytes.
        gpus: of the whole node.
        gpu_error: why no GPU is seen; None where there are GPUs, or none was looked for.
        ranks: that the run starts on this node; None where nobody says.
        environment: what tells how the job was started (SLURM_CPUS_PER_TASK, SRUN_CPUS_PER_TASK,
            OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, SLURM_JOB_GPUS, SLURM_GPUS_ON_NODE), no more.
    """

    node: str
    t: float
    every: float
    attempt: str
    cores: int
    usable: tuple[int, ...]
    memory: float
    memory_limit: float | None = None
    swap: float = 0.0
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str | None = None
    ranks: int | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Head:
        """Return that of its JSON object; what this version does not know is left out.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        if record["v"] < VERSION:
            raise ValueError(f"of version {record['v']}, where {VERSION} is the first that is read")
        known = {each.name: record[each.name] for each in fields(cls) if each.name in record}
        names = [each.name for each in fields(Gpu)]
        gpus = [{name: gpu[name] for name in names if name in gpu} for gpu in record["gpus"]]
        known["gpus"] = tuple(Gpu(**gpu) for gpu in gpus)
        if not all(abs(known[name]) < math.inf for name in ("t", "every")):
            raise ValueError("its t or every is no number of seconds")
        if not all(type(gpu.index) is int and 0 <= gpu.index < MOST_KEYS for gpu in known["gpus"]):
            raise ValueError("a GPU of it has no index")
        return cls(**{**known, "usable": tuple(record["usable"])})

    def line(self) -> dict[str, Any]:
        """Return the JSON object of it."""
        return {"kind": "head", "v": VERSION, **asdict(self)}


CHUNK = 4 << 20  # bytes read at once, about

Record = dict[str, Any]


def records(path: Path) -> Iterator[list[Record | None]]:
    """Yield what a file's lines say in order, many at once; None for one that is no JSON object.

    Raises:
        OSError: it cannot be read, or is no regular file (a pipe would never answer).
    """
    with open_regular(path) as file:
        while read := file.readlines(CHUNK):
            text = [line for line in read if line.strip()]
            joined = b"[" + b",".join(text) + b"]"
            try:
                # One document is read twice as fast as its lines.
                found = json.loads(joined) if b"\\u" not in joined else []
            except (ValueError, RecursionError):
                found = []
            if len(found) != len(text):
                found = map(one, text)
            yield [each if isinstance(each, dict) else None for each in found]


def record(line: bytes) -> Record | None:
    found = one(line)
    return found if isinstance(found, dict) else None


def one(line: bytes) -> Any:
    """Return what a line says; None for one that is no JSON. Its texts can be encoded."""
    try:
        text = line.decode("utf-8-sig")
        found = json.loads(text)
        return _encodable(found) if "\\u" in text else found
    except (ValueError, RecursionError):
        return None


def _encodable(value: Any) -> Any:
    """Return the value with texts that can be written, without lone surrogates."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(name): _encodable(item) for name, item in value.items()}
    return value


def number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def is_checkpoint(record: Mapping[str, Any]) -> bool:
    """Return whether a line says that the run was saved; with a `step` it is the script's."""
    return "checkpoint" in record and "stall" in record and "step" not in record


def is_final(record: Mapping[str, Any]) -> bool:
    """Return whether a line says that the run came to its end, as its last one does.

    A script may call a value of its steps `final`; but ours has results of the whole run, and no
    loss.
    """
    return (
        record.get("final") is True
        and "loss" not in record
        and any(name in record for name in ("valid_loss", "test_loss", "exchange"))
    )
