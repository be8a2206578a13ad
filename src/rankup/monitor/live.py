"""`rankup status RUN --live`: one screen of a run, drawn anew each second; and the run in a line.

Each picture is made from the ends of the run's files as they are at that moment.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.text import Text

from ..base.amounts import duration, words
from ..base.processes import ended_as_an_exception
from ..base.text import clean
from ..slurm.job import Attempt
from .newest import Node, Steps, newest_nodes, newest_steps
from .words import percent

_PAUSE = 1.0  # seconds between pictures
_ASK = 15.0  # seconds between questions about the state
_ENDED_LOOKS = 3  # pictures of a run that has ended: its last lines may come late
_SILENT = 15.0  # seconds without a sample after which that is said, or three of the sampler's steps
_LINES = 60  # of a picture that is printed where there is no terminal
_BAR = 20  # characters
_LEVELS = "▁▂▃▄▅▆▇█"
_GIB = 2.0**30


@dataclass(frozen=True)
class Run:
    """A run as its launcher knows it.

    Attributes:
        attempt: its newest; None where nobody knows of one.
        steps: that it is to take; None where nobody says.
    """

    id: str
    name: str = ""
    attempt: Attempt | None = None
    steps: int | None = None


def live(run_dir: Path, ask: Callable[[], Run]) -> int:
    """Show the run until it has ended, or until Ctrl-C; then leave its last picture.

    Where there is no terminal to draw on, one picture is printed.

    Args:
        ask: tells how the run is. It may take long: it is asked beside the view.

    Returns:
        0.
    """
    # COLUMNS and LINES tell how large a terminal once was.
    sizes = ("COLUMNS", "LINES") if sys.stdout.isatty() else ()
    console = Console(_environ={k: v for k, v in os.environ.items() if k not in sizes})
    shown = _Picture(run_dir, ask())
    if console.is_terminal and not console.is_dumb_terminal:
        over = threading.Event()

        def keep_asking() -> None:
            while not over.wait(_ASK):
                shown.run = ask()

        threading.Thread(target=keep_asking, daemon=True).start()
        screen = Live(shown, console=console, screen=True, auto_refresh=False)
        with suppress(KeyboardInterrupt), ended_as_an_exception(), screen:
            looks = 0
            while looks < _ENDED_LOOKS:
                time.sleep(_PAUSE)
                screen.refresh()
                looks = looks + 1 if shown.ended else 0
        over.set()
    console.print(shown)
    return 0


def small(run_dir: Path, steps: int | None = None) -> str:
    """Return the run in a line: "step 120/4,000 · loss 3.210 · 51,000 tokens/s · GPUs 94 % 310 W".

    Empty where nothing is known yet.
    """
    return clean(" · ".join(_now(newest_steps(run_dir), steps) + _use(newest_nodes(run_dir))))


class _Picture:
    """The picture that Rich draws, as large as its console is at that moment."""

    def __init__(self, run_dir: Path, run: Run) -> None:
        self.run_dir, self.run = run_dir, run
        self.ended = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        nodes, steps = newest_nodes(self.run_dir), newest_steps(self.run_dir)
        attempt = self.run.attempt
        # Of a run on another machine nobody here knows: its samplers say whether it goes on.
        self.ended = bool(nodes) and all(node.ended for node in nodes)
        if attempt is not None and attempt.state != "UNKNOWN":
            self.ended = not attempt.live
        height = options.size.height - 1 if sys.stdout.isatty() else _LINES
        yield Group(*picture(self.run, nodes, steps, time.time(), options.max_width, height))


def picture(
    run: Run, nodes: Sequence[Node], steps: Steps, now: float, width: int, height: int
) -> list[Text]:
    """Return at most `height` lines: state, steps, losses, and a bar for each GPU or node."""
    attempt = run.attempt
    state = f"{run.id}  {run.name}  {attempt.state if attempt else ''}"
    if attempt and attempt.started is not None:
        state += f" for {duration(max(0.0, (attempt.ended or now) - attempt.started))}"
        if attempt.live and attempt.limit is not None:
            left = attempt.started + attempt.limit - now
            state += f", {duration(max(0.0, left))} left of its time limit"
    figures = _now(steps, run.steps)
    top = [_line(state, "bold"), _line(" · ".join(figures) or "no step is written down yet")]
    if len(steps.losses) > 2:
        curve = sparkline(steps.losses, max(10, min(60, width - 30)))
        top.append(_line(f"loss of the last {len(steps.losses):,} steps {curve}"))
    gpus = sum(len(node.gpus) for node in nodes)
    count = words(len(nodes), "node", "nodes")
    on = [f"{words(gpus, 'GPU', 'GPUs')} on {count}" if gpus else count]
    top.append(_line(" · ".join(on + _use(nodes)) if nodes else "no sample of a node yet"))
    bars = [bar for node in nodes for bar in _bars(node, now)]
    if len(bars) > height - len(top) - 1:  # what is used least comes first
        bars.sort(key=lambda bar: bar[0])
        hidden = bars[max(0, height - len(top) - 2) :]
        bars = bars[: -len(hidden)]
        least = hidden[0][0]
        rest = f"… {len(hidden):,} more" + (f", of {least:.0f} % and above" if least >= 0 else "")
        bars.append((0.0, _line(rest, "dim")))
    end = "Ctrl-C ends the view, the run goes on"
    if attempt is not None and not attempt.live:
        end = f"ended; next: rankup report {run.id}"
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    return [*top, *(line for _, line in bars), _line(f"{clock} · {end}", "dim")][-height:]


def _now(steps: Steps, total: int | None) -> list[str]:
    """Return how far the training is, in a few words each."""
    parts = []
    if steps.number is not None:
        parts.append(f"step {steps.number:,}" + (f"/{total:,}" if total else ""))
    if steps.losses:
        parts.append(f"loss {steps.losses[-1]:.4g}")
    if steps.rate is not None:
        rate = f"{steps.rate:,.0f}" if steps.rate >= 100 else f"{steps.rate:.3g}"
        parts.append(f"{rate} {steps.unit}/s")
    if steps.data_wait is not None:
        parts.append(f"data wait {percent(steps.data_wait)}")
    return parts + (["the training has come to its end"] if steps.final else [])


def _use(nodes: Sequence[Node]) -> list[str]:
    """Return the use of all GPUs, else of all cores."""
    running = [node for node in nodes if not node.ended] or nodes
    use = [value for node in running for value in node.values("util")]
    power = [value for node in running for value in node.values("power")]
    cpu = [node.host["cpu"] for node in running if "cpu" in node.host]
    if use:
        return [f"GPUs {fmean(use):.0f} %" + (f" {fmean(power):.0f} W" if power else "")]
    return [f"CPU {fmean(cpu):.0f} %"] if cpu else []


def _bars(node: Node, now: float) -> Iterator[tuple[float, Text]]:
    """Yield the use (%) of each GPU of a node, and its line; of the node's cores without GPUs."""
    if not node.ended and now - node.time > max(_SILENT, 3 * node.every):
        yield -1.0, _line(f"{node.name:<10} no sample for {duration(now - node.time)}", "bold red")
        return
    for gpu, row in node.gpus:
        use, memory = row.get("util"), row.get("memory")
        parts = [_bar(use)]
        if (power := row.get("power")) is not None:
            parts.append(f"{power:.0f}{f'/{gpu.power_limit:.0f}' if gpu.power_limit else ''} W")
        if memory is not None:
            parts.append(f"{memory / _GIB:.0f}/{gpu.memory / _GIB:.0f} GiB")
        if gpu.granted is False:
            parts.append("not this job's")
        # A GPU that other jobs have, or of which nothing is known, says nothing of this run.
        rank = 101.0 if gpu.granted is False or use is None else use
        yield rank, _line(f"{node.name:<10} GPU {gpu.index}  {'  '.join(parts)}", _style(use))
    if not node.gpus:
        use = node.host.get("cpu")
        yield use or 0.0, _line(f"{node.name:<10} CPU    {_bar(use)}", _style(use))


def _bar(use: float | None) -> str:
    if use is None:
        return "?".ljust(_BAR + 6)
    filled = max(int(use > 0.5), round(min(1.0, max(0.0, use / 100)) * _BAR))
    return f"{'█' * filled}{'░' * (_BAR - filled)} {use:3.0f} %"


def _style(use: float | None) -> str:
    if use is None:
        return "dim"
    return "red" if use < 5 else "yellow" if use < 50 else "green"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the course of the finite values; each character is the mean of some of them."""
    finite = [value for value in values if math.isfinite(value)]
    width = min(width, len(finite))
    if width < 2:
        return ""
    edges = [round(place * len(finite) / width) for place in range(width + 1)]
    means = [fmean(finite[a:b]) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(_LEVELS[round(7 * (mean - low) / span) if span > 0 else 3] for mean in means)


def _line(text: str, style: str = "") -> Text:
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")
