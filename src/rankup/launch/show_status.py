"""The output of `rankup status`: a table, a page about one run, JSON, or the live view."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..base import gone
from ..base.amounts import duration
from ..base.files import user_path
from ..base.text import clean, json_text
from ..site import rundir
from ..slurm import hostlist, reasons
from ..slurm.client import Client
from . import attempts, meant, status
from .attempts import Attempt
from .scale import series as scale_series
from .status import Report, Summary, clock

if TYPE_CHECKING:
    from ..monitor.live import Run

_COLOURS = {
    "RUNNING": "green",
    "COMPLETED": "dim",
    "PENDING": "yellow",
    "FAILED": "red",
    "DAMAGED": "red",
    "TIMEOUT": "red",
    "NODE_FAIL": "red",
    "OUT_OF_MEMORY": "red",
}
_ATTEMPTS = 30
_PLAIN = reasons.ended("COMPLETED", 0, 0, "")  # which its state says already


def show(run: str | None = None, *, as_json: bool = False) -> int:
    """Print the newest runs, or all about one.

    Raises:
        UserError: there is no such run.
    """
    here, client = meant.here()
    if run is None:
        found, note = status.newest(here.runs, client)
        if as_json:
            print(json_text([asdict(short) for short in found]))
            return 0
        print_table(found, here.runs)
        if note:
            print("", *map(clean, note.splitlines()), sep="\n", file=sys.stderr)
        return 0
    if run != "last" and (path := scale_series.find(here.runs, run)) is not None:
        from .scale import result as scale_result  # with NumPy, which the table can do without

        if as_json:
            print(json_text(scale_result.as_json(path, client)))
            return 0
        return scale_result.show_series(path, here, client)
    path = meant.locate(here.runs, run, client)
    full = status.report(path, here, client)
    if as_json:
        print(json_text(_as_json(full)))
    else:
        print_page(full)
    return 0


def show_live(run: str) -> int:
    """Show a run until it has ended or the view is.

    Args:
        run: as `meant.locate` takes it, or a folder that holds a recording alone (`meant.bare`).

    Raises:
        UserError: there is no such run.
    """
    from ..monitor.live import Run, live  # which the table can do without

    given = user_path(run, "RUN")
    if meant.bare(given):
        return live(given.resolve(), lambda: Run(given.resolve().name))
    here, client = meant.here()
    path = meant.locate(here.runs, run, client)
    return live(path, lambda: _run(path, client))


def _run(path: Path, client: Client) -> Run:
    from ..monitor.live import Run

    job = rundir.read(path)
    attempt = attempts.newest(attempts.of_run(path, job, client))
    return Run(job.id, job.name, attempt or attempts.NEW, status.steps(job))


def print_table(found: list[Summary], runs: Path) -> None:
    console = _console()
    if not found:
        console.print(Text(f"no runs in {runs} yet; `rankup run` makes one"))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "name", "job / node"):
        table.add_column(name, no_wrap=name == "run", overflow="fold")
    table.add_column("state", overflow="fold")
    table.add_column("since", overflow="fold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    for short in found:
        table.add_row(
            _text(short.id),
            _text(short.name),
            _text(short.where),
            _state(short.state),
            _text(status.elapsed(short)),
            _text(_step(short)),
            _text(short.words),
        )
    console.print(table)


def print_page(full: Report) -> None:
    console = _console()
    short, job = full.summary, full.job
    rows = {
        "run": f"{short.id} · {short.state}",
        "directory": short.path,
        "target": shlex.join([job.target, *job.args]),
        "gone": gone.of_run(job.target, job.args) if job.kind == "recipe" else "",
        "started in": job.cwd,
        "step": _metrics(short, full.metrics),
        "now": short.words,
        "cause": full.cause,
        "says": _source(short.source) if any(attempt.job for attempt in full.attempts) else "",
        "may start": clock(short.since) if short.state == "PENDING" else "",
        "monitoring": full.monitoring,
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            grid.add_row(name, _text(value))
    console.print(grid)
    console.print()
    _attempts(console, full)
    if full.next_steps:
        console.print()
        for command in full.next_steps:
            console.print(_text(f"next: {command}"))


def _attempts(console: Console, full: Report) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("job", "attempt", "state", "nodes", "start", "end", "took", "exit", ""):
        table.add_column(name, overflow="fold", no_wrap=name == "job")
    earlier = max(0, len(full.attempts) - _ATTEMPTS)
    if earlier:
        console.print(Text(f"{earlier} earlier attempts are not shown (--json has all)"))
    for number, attempt in enumerate(full.attempts[earlier:], earlier + 1):
        table.add_row(_text(attempt.job or "local"), *_cells(attempt, number))
    if table.row_count:
        console.print(table)


def _cells(attempt: Attempt, number: int) -> list[Text]:
    restart = str(number)
    if attempt.follows:
        restart += f" (after {attempt.follows})"
    words = attempt.words if attempt.state != "RUNNING" and attempt.words != _PLAIN else ""
    end = attempt.ended or (time.time() if attempt.live and attempt.started else None)
    took = duration(end - attempt.started) if end and attempt.started else ""
    begins = attempt.started or attempt.expected
    begin = ("~" if attempt.started is None and begins else "") + clock(begins)
    code = "" if attempt.exit_code is None else str(attempt.exit_code)
    state = _state(attempt.state)
    cells = (restart, hostlist.short(attempt.nodes), begin, clock(attempt.ended), took, code, words)
    first, *others = map(_text, cells)
    return [first, state, *others]


def _as_json(full: Report) -> dict[str, Any]:
    return {
        **asdict(full.summary),
        "kind": full.job.kind,
        "target": full.job.target,
        "args": full.job.args,
        "cwd": full.job.cwd,
        "attempts": [
            {name: value for name, value in asdict(attempt).items() if name != "asked"}
            for attempt in full.attempts
        ],
        "metrics": dict(full.metrics),
        "cause": full.cause or None,
        "next": list(full.next_steps),
        "monitoring": full.monitoring or None,
    }


def _metrics(short: Summary, metrics: Mapping[str, Any]) -> str:
    if short.step is None:
        return ""
    said = [_step(short)]
    said += [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name in ("loss", "valid_loss")
        if isinstance(value := metrics.get(name), int | float)
    ]
    when = metrics.get("time")
    if isinstance(when, int | float):
        said.append(f"{duration(time.time() - when)} ago")
    return " · ".join(said)


def _step(short: Summary) -> str:
    if short.step is None:
        return ""
    return f"{short.step}/{short.steps}" if short.steps else str(short.step)


def _source(source: str) -> str:
    return {
        "own record": "the run's own record (Slurm was not asked, or does not know more)",
        "none": "nobody: neither Slurm nor the run's own record knows it",
    }.get(source, source)


def _state(state: str) -> Text:
    return Text(_plain(state), style=_COLOURS.get(state, ""))


def _text(value: str) -> Text:
    return Text(" ".join(map(_plain, value.split("\n"))))


def _plain(line: str) -> str:
    """A line that is safe to show, without colours of its own: those are rankup's here."""
    return clean(line.replace("\x1b", "\\x1b"))


def _console() -> Console:
    # A pipe has no width; lines that are cut or wrapped help no script.
    return Console() if sys.stdout.isatty() else Console(width=200)
