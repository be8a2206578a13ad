"""The progress of what takes a while: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

from .amounts import duration, number, size
from .text import clean

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

# What is over before needs no bar, nor the import of Rich.
_PATIENCE = 0.5
_LINE_EVERY = 10.0


class Progress(Protocol):
    """Shows the bytes that are done, and those there will be where that is known only now."""

    def __call__(
        self, done: int, total: int | None = None, *, samples: int | None = None
    ) -> None: ...


@contextlib.contextmanager
def shown(
    what: str, total: int | None = None, *, quiet: bool = False, out: TextIO | None = None
) -> Iterator[Progress]:
    """Show on stderr how far the body is.

    Args:
        what: the line's first words, as `packing`.
        total: bytes that there will be, where that is known.
        quiet: show nothing.
    """
    out = out or sys.stderr
    what, known = clean(what), total
    start = said = time.monotonic()
    first: int | None = None
    bars: Bars | None = None

    def show(done: int, total: int | None = None, *, samples: int | None = None) -> None:
        nonlocal said, first, bars
        now, total = time.monotonic(), total or known or None
        first = done if first is None else min(first, done)
        if quiet or now - start < _PATIENCE:
            return
        words = "" if samples is None else f"{number(samples)} samples"
        if out.isatty():
            if bars is None:
                bars = _bars(out)
                bars.add_task(what, samples="")
            bars.update(bars.task_ids[0], completed=done, total=total, samples=words)
        elif now - said >= _LINE_EVERY:
            said, speed = now, (done - first) / (now - start)
            parts = [f"{size(done)} of {size(total)}" if total else size(done), words]
            parts.append(f"{size(speed)}/s")
            if total and total > done and speed > 0:
                parts.append(f"{duration((total - done) / speed)} left")
            print(f"rankup: {what}: {', '.join(filter(None, parts))}", file=out, flush=True)

    try:
        yield show
    finally:
        if bars is not None:
            bars.stop()


def _bars(out: TextIO) -> Bars:
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
    bars.start()
    return bars
