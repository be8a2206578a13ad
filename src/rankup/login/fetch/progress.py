"""How far a download is: a bar on a terminal, else a line now and then, on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ...base.amounts import size
from ...base.text import clean

# Gets the bytes that are there and those there will be, None where that is not known.
Progress = Callable[[int, "int | None"], None]
_LINE_EVERY = 10.0  # seconds


@contextlib.contextmanager
def shown(name: str, out: TextIO | None = None, every: float = _LINE_EVERY) -> Iterator[Progress]:
    """Show the progress of what is called `name` while the body runs."""
    out = out or sys.stderr
    name = clean(name)
    if not out.isatty():
        yield _lines(name, out, every)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.progress import TransferSpeedColumn as Speed

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
    with Bars(*columns, console=Console(file=out)) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _lines(name: str, out: TextIO, every: float) -> Progress:
    last = time.monotonic()

    def progress(done: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            of = "" if total is None else f" of {size(total)}"
            print(f"rankup: {name}: {size(done)}{of}", file=out, flush=True)

    return progress
