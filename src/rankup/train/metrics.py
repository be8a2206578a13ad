"""The run in numbers: a line of `metrics.jsonl` per step, and a bar or lines for people; and which
samples each rank drew."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..base.amounts import size
from ..base.files import cut_json_lines, done_by
from ..base.text import say
from ..runtime.collectives import all_gather_object
from ..runtime.world import World
from .options import TrainOptions
from .plan import Step
from .trackers import Trackers

# Peak dense bfloat16 FLOP/s by the name the driver gives (vendors' data sheets; MI250X per die).
PEAK_FLOPS = {
    "V100": 125e12,
    "A40": 149.7e12,
    "A100": 312e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "MI250X": 191.5e12,
    "MI300X": 1307e12,
}
_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 10.0


@functools.cache
def peak_flops(device: torch.device) -> float | None:
    """Peak bfloat16 FLOP/s of this GPU; None when it is not one we know, rather than a guess."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = [gpu for gpu in PEAK_FLOPS if re.search(rf"(?<![A-Z0-9]){gpu}(?![0-9])", name)]
    return PEAK_FLOPS[max(known, key=len)] if known else None


def peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: of the GPU by tensors, without one of this process's RAM."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Lines:
    """A file of JSON lines that goes on where a resumed run does; a full disk costs lines, not the
    training.

    Args:
        resumed_at: the step that the run goes on from. What a killed attempt did beyond it is done
            again, so its lines go; those of a fresh run (0) all do.
        say: tells the user a line.
    """

    def __init__(self, path: Path, resumed_at: int, say: Callable[[str], None]) -> None:
        self._path, self._say, self._lost = path, say, False
        if resumed_at and not path.exists():
            say(f"{path} is not there: it begins anew, with step {resumed_at + 1}")
        elif resumed_at:
            unreadable = cut_json_lines(path, lambda record: done_by(record, resumed_at))
            if unreadable:
                say(f"{path}: left out {unreadable} unreadable line{'s' * (unreadable > 1)}")
        self._file = path.open("ab" if resumed_at else "wb", buffering=0)

    def write(self, *records: dict[str, Any]) -> None:
        """Append all of these lines or none."""
        data = "".join(json.dumps(record) + "\n" for record in records).encode()
        end = os.fstat(self._file.fileno()).st_size
        with contextlib.suppress(OSError):
            if self._file.write(data) == len(data):
                return
        with contextlib.suppress(OSError):
            self._file.truncate(end)
        self._cannot()

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint says that their steps are done."""
        try:
            os.fsync(self._file)
        except OSError as error:
            if error.errno != errno.EINVAL:  # what is no file has no disk
                self._cannot()

    def close(self) -> None:
        self._file.close()

    def _cannot(self) -> None:
        if not self._lost:
            self._say(f"{self._path} cannot be written (disk full?); training goes on without")
        self._lost = True


class Trace:
    """Appends a JSON line per step and rank: `step`, `epoch`, `rank`, `samples`.

    Ranks send what they drew to rank 0, the one writer. A resumed run first cuts the file back to
    the checkpoint it starts from, so that it lists committed steps alone.
    """

    def __init__(self, path: str | None, world: World, resumed_at: int) -> None:
        self.on = path is not None
        self._drawn: list[int] = []
        self._lines: Lines | None = None
        if path is not None and world.is_root:
            self._lines = Lines(Path(path).expanduser(), resumed_at, partial(say, prefix=""))

    def drew(self, samples: torch.Tensor) -> None:
        """Note samples as they are read for training."""
        if self.on:
            self._drawn += samples.tolist()

    def write(self, step: Step) -> None:
        """Write down what all ranks drew in `step`; call on every rank after it."""
        if not self.on:
            return
        drawn, self._drawn = self._drawn, []
        everyone = all_gather_object(drawn)
        if self._lines:
            place = {"step": step.number, "epoch": step.after.epoch}
            self._lines.write(
                *({**place, "rank": r, "samples": samples} for r, samples in enumerate(everyone))
            )

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint says that their steps are done."""
        if self._lines:
            self._lines.sync()


class Metrics:
    """Rank 0's record of the run. On other ranks use `Silence`."""

    def __init__(
        self, directory: Path, unit: str, last_step: int, resumed_at: int, options: TrainOptions
    ) -> None:
        self._path = directory / "metrics.jsonl"
        self._unit = unit
        self._last_step = last_step
        self._shown = 0.0
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=last_step, completed=resumed_at)
            self._bar.start()
        self._trackers: Trackers | None = None
        if options.trackers:
            self._trackers = Trackers(
                options.trackers, directory, resumed_at, asdict(options), self.say
            )
        self._lines = Lines(self._path, resumed_at, self.say)

    def step(self, record: dict[str, Any]) -> None:
        """Append a step's line and show it, at most a few times per second."""
        self._lines.write(record)
        if self._trackers is not None:
            self._trackers.step(record)
        now = time.monotonic()
        done = record["step"] == self._last_step
        pause = _REFRESH_SECONDS if self._bar else _LINE_SECONDS
        if now - self._shown < pause and not done:
            return
        self._shown = now
        text = f"loss {record['loss']:.4f}"
        if "valid_loss" in record:
            text += f" · valid {record['valid_loss']:.4f}"
        text += f" · {record[f'{self._unit}_per_s']:,.0f} {self._unit}/s"
        if self._bar:
            self._bar.update(self._task, completed=record["step"], description=text)
            self._bar.refresh()
        else:
            say(f"step {record['step']}/{self._last_step} · {text}", "")

    def checkpoint(self, step: int, seconds: float, ended: float) -> None:
        """The run stood for so long, until `ended`, while it was saved after this step."""
        self._lines.write({"checkpoint": step, "stall": round(seconds, 4), "time": round(ended, 3)})

    def say(self, text: str) -> None:
        """A line of its own above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            say(text, "")

    def final(self, record: dict[str, Any]) -> None:
        """The last line of a run that came to its end, with what its exchanges came to."""
        exchange: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # a line that a full disk cut short
            exchange = _totals(self._path, self._last_step)
        if "waited" in exchange:
            self.say(_in_words(exchange))
        if exchange:
            record = {**record, "exchange": exchange}
        self._lines.write({"final": True, **record})

    def sync(self) -> None:
        """Put the lines on disk before a checkpoint says that their steps are done."""
        self._lines.sync()

    def close(self) -> None:
        if self._bar:
            self._bar.refresh()
            self._bar.stop()
        if self._trackers is not None:
            self._trackers.close()
        self._lines.close()


class Silence:
    """What the other ranks have in place of `Metrics`."""

    def step(self, record: dict[str, Any]) -> None: ...

    def checkpoint(self, step: int, seconds: float, ended: float) -> None: ...

    def say(self, text: str) -> None: ...

    def final(self, record: dict[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


def _totals(path: Path, steps: int) -> dict[str, Any]:
    """Return what the exchanges of all attempts came to, for the last line; empty: not measured.

    `bytes_sent` and `bytes_per_step` of a rank, `waited` and `extra_compute` in seconds of a rank,
    `extra_memory` in bytes at most.
    """
    sums: Counter[str] = Counter()
    memory = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            for name in ("bytes_sent", "waited", "extra_compute"):
                if name in record:
                    sums[name] += record[name]
            memory = max(memory, record.get("extra_memory", 0))
    if "bytes_sent" not in sums:
        return {}
    totals: dict[str, Any] = {name: round(value, 6) for name, value in sums.items()}
    totals["bytes_per_step"] = round(sums["bytes_sent"] / max(1, steps))
    if "waited" in sums:
        totals["extra_memory"] = memory
    return totals


def _in_words(totals: dict[str, Any]) -> str:
    """Return totals in a line for people, where all was measured."""
    return (
        f"exchange: {size(totals['bytes_per_step'])} sent per rank and step, "
        f"{totals['waited']:.1f} s waited and {totals['extra_compute']:.1f} s of extra compute in "
        f"all, {size(totals['extra_memory'])} of extra memory"
    )
