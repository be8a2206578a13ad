"""How far a pack is: a bar on a terminal, else a line now and then, on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from ...base.amounts import number, size

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

# Most packs of a test set are over before; they need not wait for the import of Rich.
_PATIENCE = 0.5
_LINE_EVERY = 10.0


class Progress:
    """Shows bytes and samples as they are done.

    Args:
        what: the line's first word, as `packing`.
        total: bytes that there will be; 0 where that is not known.
        samples: that there will be.
        quiet: show nothing.
    """

    def __init__(
        self,
        what: str,
        total: int,
        samples: int,
        *,
        before: int = 0,
        quiet: bool = False,
        out: TextIO | None = None,
    ) -> None:
        self._what, self._total, self._samples = what, total, samples
        self._before, self._quiet = before, quiet
        self._out = out or sys.stderr
        self._start = self._said = time.monotonic()
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __call__(self, count: int, samples: int) -> None:
        """Show that so many bytes and samples are done since the start."""
        now = time.monotonic()
        if self._quiet or now - self._start < _PATIENCE:
            return
        if self._out.isatty():
            self._bar(count + self._before, samples)
        elif now - self._said >= _LINE_EVERY:
            self._said = now
            self._line(count, samples, now - self._start)

    def close(self) -> None:
        """End the bar."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _line(self, count: int, samples: int, seconds: float) -> None:
        speed = count / seconds
        of = f" of {size(self._total)}" if self._total else ""
        left = self._total - self._before - count
        eta = f", {duration(left / speed)} left" if self._total and speed > 0 and left > 0 else ""
        print(
            f"rankup: {self._what}: {size(count + self._before)}{of}, {number(samples)} samples, "
            f"{size(speed)}/s{eta}",
            file=self._out,
            flush=True,
        )

    def _bar(self, count: int, samples: int) -> None:
        if self._bars is None:
            self._bars, self._task = _bars(self._what, self._total, self._out, self._before)
        assert self._task is not None
        self._bars.update(self._task, completed=count, samples=f"{number(samples)} samples")


def _bars(what: str, total: int, out: TextIO, before: int) -> tuple[Bars, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress import TransferSpeedColumn as Speed

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TextColumn("{task.fields[samples]}", markup=False),
        TimeRemainingColumn(),
        console=Console(file=out),
    )
    task = bars.add_task(what, total=total or None, samples="")
    bars.update(task, completed=before)
    bars.start()
    return bars, task


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.4 s`, `45 s`, `12 min`, `3.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
