"""The newest of a run's files: the last sample of each node, and the last steps."""

from __future__ import annotations

import csv
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ..base.files import open_regular, tail
from . import lines
from .lines import Gpu, Head, is_final, number

_TAIL = 64 * 1024  # bytes of the end of each file
_RECENT = 50  # steps that the share of waiting is the mean of


@dataclass
class Node:
    """The newest sample of a node.

    Attributes:
        time: of the newest sample, or of the sampler's start, in unix seconds.
        gpus: of the whole node, each with its channels (`lines.GPU`); `host`: those of the node.
    """

    name: str
    time: float
    every: float = 2.0
    ended: bool = False
    gpus: list[tuple[Gpu, dict[str, float]]] = field(default_factory=list)
    host: dict[str, float] = field(default_factory=dict)

    def values(self, channel: str) -> list[float]:
        return [row[channel] for _, row in self.gpus if channel in row]


@dataclass
class Steps:
    """The newest lines of `metrics.jsonl`; losses may be NaN or infinite."""

    number: int | None = None
    losses: list[float] = field(default_factory=list)
    rate: float | None = None  # units per second
    unit: str = ""
    data_wait: float | None = None  # share of the time, 0 to 1
    final: bool = False


def newest_steps(run_dir: Path) -> Steps:
    """Return what the newest lines of `metrics.jsonl` say of steps."""
    steps, waits, losses = Steps(), [], dict[int, float]()
    for line in tail(run_dir / "metrics.jsonl", 4 * _TAIL):
        record = lines.record(line) or {}
        step = number(record.get("step"))
        steps.final = is_final(record) or (steps.final and step is None)
        if step is None:
            continue
        steps.number = int(step)
        # An attempt that begins before the last step does some steps again.
        losses = {done: loss for done, loss in losses.items() if done <= step}
        loss = record.get("loss")
        value = loss if isinstance(loss, float) else number(loss)  # NaN is worth showing
        if value is not None:
            losses[steps.number] = value
        if (wait := number(record.get("data_wait"))) is not None:
            waits.append(wait)
        for name, value in record.items():
            if name.endswith("_per_s") and (rate := number(value)) is not None:
                steps.rate, steps.unit = rate, name.removesuffix("_per_s").replace("_", " ")
                break
    steps.losses = list(losses.values())
    steps.data_wait = fmean(waits[-_RECENT:]) if waits else None
    return steps


def newest_nodes(run_dir: Path) -> list[Node]:
    """Return the nodes whose samplers have begun, by name."""
    folder = run_dir / lines.FOLDER
    found = (_node(folder, path.name) for path in sorted(folder.glob(f"*{lines.JOURNAL}")))
    return [node for node in found if node is not None]


def _node(folder: Path, journal: str) -> Node | None:
    head, ended = None, False
    for record in map(lines.record, tail(folder / journal, 1 << 20)):
        kind = record.get("kind") if record else None
        if record and kind == "head":
            # It may be of a version that this one does not know.
            with suppress(KeyError, TypeError, ValueError):
                head, ended = Head.of(record), False
        ended = ended or kind == "end"
    if head is None:
        return None
    node = Node(journal.removesuffix(lines.JOURNAL), head.t, head.every, ended)
    for row in _newest(folder / f"{node.name}{lines.ending('host')}"):
        node.time, node.host = row["t"], row
    rows = {row.get("gpu"): row for row in _newest(folder / f"{node.name}{lines.ending('gpu')}")}
    node.gpus = [(gpu, rows.get(gpu.index, {})) for gpu in head.gpus]
    return node


def _newest(table: Path) -> list[dict[str, float]]:
    """Return the rows of a table's last sample, by the names in its header; numbers alone."""
    with suppress(OSError), open_regular(table) as file:
        names = file.readline(_TAIL).decode("utf-8", "replace").strip().split(",")
        text = [line.decode("utf-8", "replace") for line in tail(table, _TAIL)[:-1]]
        rows = []
        for line in csv.DictReader(text, names):
            values = {name: _float(value) for name, value in line.items()}
            rows.append({name: value for name, value in values.items() if value is not None})
        times = [row["t"] for row in rows if "t" in row]
        return [row for row in rows if row.get("t") == times[-1]] if times else []
    return []


def _float(text: object) -> float | None:
    """Return a finite number; None for an empty field, and for what is none."""
    try:
        return number(float(str(text or "")))
    except ValueError:
        return None
