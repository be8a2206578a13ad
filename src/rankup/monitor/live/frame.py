"""One picture of the run, made to fit the terminal: pure, from what `Watch` knows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from rich.table import Table
from rich.text import Text

from ...base.amounts import duration, number, size, words
from ...base.text import clean
from .. import lines
from ..lines import Gpu
from ..thresholds import LIMITS, untouched
from ..words import percent
from .state import Node, Watch, mean
from .troubles import memory, troubles

_GIB = 2.0**30
_SORTED_BY = 60.0  # seconds
_WIDE = 110  # columns, from which on less urgent figures have their place
_NARROW = 60  # below which nothing but the use and the power of GPUs has one
_LEVELS = " ▁▂▃▄▅▆▇█"
_STYLES = {
    **{"RUNNING": "bold green", "COMPLETED": "bold", "PENDING": "bold yellow"},
    **{"NEW": "bold", "UNKNOWN": "bold yellow", "": ""},
}


def frame(
    watch: Watch, now: float, width: int, height: int, fill: bool = True
) -> list[Text | Table]:
    """Return at most `height` lines, just as many to `fill` a terminal."""
    nodes = watch.known()
    top: list[Text | Table] = [
        _title(watch, now),
        *_progress(watch, width),
        *_times(watch, now),
        _overview(nodes),
    ]
    top += _troubles(watch, now, max(2, height // 8))
    left = max(0, height - len(top) - 1)
    least = min(left // 3, 1 + len(watch.log)) if watch.log else 0  # lines of the log for sure
    table, rows = _table(nodes, now, width, left - least)
    left -= rows
    log = _log(watch, width, left if fill else min(left, 10))
    blank = [Text()] * (left - len(log) if fill else 0)
    return [*top, *table, *log, *blank, _footer(watch, now, fill)][-height:]


def small(watch: Watch) -> str:
    """Return the run in one line, safe to show; empty where nothing is known of it yet."""
    parts = _step_parts(watch)
    nodes = [node for node in watch.known() if node.ended is None]
    use = mean(util for node in nodes for util in node.all_gpus("util"))
    power = mean(watts for node in nodes for watts in node.all_gpus("power"))
    if use is not None:
        parts.append(f"GPUs {use:.0f} %" + (f" {power:.0f} W" if power is not None else ""))
    elif (cpu := mean(node.host("cpu") for node in nodes)) is not None:
        parts.append(f"CPU {cpu:.0f} %")
    if (waits := watch.progress.data_wait) is not None:
        parts.append(f"data wait {percent(waits)}")
    return clean(" · ".join(parts))


def _line(text: str, style: str = "") -> Text:
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


def _title(watch: Watch, now: float) -> Table:
    run, attempt = watch.run, watch.run.attempt
    right = attempt.state if attempt else ""
    if attempt and attempt.started is not None and (attempt.live or attempt.state == "UNKNOWN"):
        right += f" {duration(max(0.0, now - attempt.started))}"
    elif attempt and attempt.started is not None and attempt.ended is not None:
        right += f", took {duration(max(0.0, attempt.ended - attempt.started))}"
    style = _STYLES.get(attempt.state if attempt else "", "bold red")
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(justify="right")
    grid.add_row(_line(f"{run.id}  {run.name}".rstrip(), "bold"), _line(right, style))
    return grid


def _step_parts(watch: Watch) -> list[str]:
    progress, total = watch.progress, watch.run.steps
    parts = []
    if progress.newest is not None:
        of = f"/{total:,}" if total else ""
        parts.append(f"step {progress.newest.number:,}{of}")
    if progress.loss is not None:
        parts.append(f"loss {_figure(progress.loss)}")
    if progress.rate is not None:
        rate = f"{progress.rate:,.0f}" if progress.rate >= 100 else f"{progress.rate:.3g}"
        parts.append(f"{rate} {progress.unit}/s")
    return parts


def _progress(watch: Watch, width: int) -> list[Text]:
    progress, total = watch.progress, watch.run.steps
    parts = _step_parts(watch)
    if not parts:
        return [_line("no step is written down yet", "dim")]
    if progress.newest and total:
        parts[0] += f" ({percent(progress.newest.number / total)})"
    if progress.valid is not None:
        parts.append(f"valid {_figure(progress.valid)}")
    if progress.data_wait is not None:
        parts.append(f"data wait {percent(progress.data_wait)}")
    if progress.seconds is not None:
        parts.append(f"{progress.seconds:.2g} s a step")
    found = [_line(" · ".join(parts))]
    if len(progress.losses) > 2:
        label = f"loss of the last {len(progress.losses):,} steps "
        curve = _curve(progress.losses, min(width - len(label), 60 if width < 100 else 90))
        found.append(_line(label, "dim").append(curve, style="not dim cyan"))
    return found


def _times(watch: Watch, now: float) -> list[Text]:
    progress, attempt = watch.progress, watch.run.attempt
    over = attempt is not None and not attempt.live
    parts = []
    if attempt and attempt.words and attempt.state != "RUNNING":
        parts.append(attempt.words)
    needs = None
    if watch.run.steps and progress.newest and progress.seconds and not (over or progress.final):
        needs = max(0, watch.run.steps - progress.newest.number) * progress.seconds
    late = False
    if attempt and attempt.live and attempt.started is not None and attempt.limit is not None:
        left = attempt.started + attempt.limit - now
        ahead = f"{duration(left)} left until the time limit"
        parts.append(ahead if left > 0 else "at its time limit")
        late = needs is not None and needs > left
    if needs is not None:
        parts.append(f"the steps need {duration(needs)} more{': longer than that' if late else ''}")
    if progress.final:
        parts.append("the training has come to its end")
    return [_line(" · ".join(parts), "bold yellow" if late else "")] if parts else []


def _overview(nodes: Sequence[Node]) -> Text:
    if not nodes:
        return _line("no sample of a node yet", "dim")
    gpus, on = sum(len(node.gpus) for node in nodes), words(len(nodes), "node", "nodes")
    parts = [f"{words(gpus, 'GPU', 'GPUs')} on {on}" if gpus else on]
    utils = [util for node in nodes for util in node.all_gpus("util")]
    powers = [power for node in nodes for power in node.all_gpus("power")]
    if utils:
        parts.append(f"use {fmean(utils):.0f} % (lowest {min(utils):.0f})")
    if powers:
        total = sum(powers)
        watts = f"{total / 1000:.3g} kW" if total >= 1000 else f"{total:.0f} W"
        parts.append(f"{fmean(powers):.0f} W each, {watts} in all")
    if (cpu := mean(node.host("cpu") for node in nodes)) is not None:
        parts.append(f"CPU {cpu:.0f} %")
    return _line(" · ".join(parts), "bold")


def _troubles(watch: Watch, now: float, most: int) -> Iterator[Text]:
    found = troubles(watch, now)
    shown = found if len(found) <= most else found[: most - 1]
    yield from (_line(f"! {line}", "yellow") for line in shown)
    if len(found) > len(shown):
        yield _line(f"! and {len(found) - len(shown)} more: rankup report says all", "yellow")


def _table(
    nodes: Sequence[Node], now: float, width: int, room: int
) -> tuple[list[Text | Table], int]:
    """GPU by GPU where that fits, else a line per node, else the worst of them first."""
    if not nodes or room < 2:
        return [], 0
    gpus = any(node.gpus for node in nodes)
    if (rows := sum(1 + len(node.gpus) for node in nodes)) <= room:
        table = _columns(width, [""] * (7 if width >= _WIDE else 5))
        for node in nodes:
            _add(table, *_of_node(node, now, width))
            for place in range(len(node.gpus)):
                _add(table, *_of_gpu(node, place, width))
        return [table], rows
    title = ["node", "GPUs", "use", "power", "GPU GiB", "warmest", "CPU", "RAM GiB"]
    table = _columns(width, title if gpus else ["node", "CPU", "load", "RAM GiB"])
    shown = nodes if len(nodes) <= room - 1 else _worst_first(nodes, now)[: max(1, room - 2)]
    for node in shown:
        _add(table, *(_in_a_line(node, now, width) if gpus else _of_node(node, now, 0)))
    rest = [node for node in nodes if node not in shown]
    return [table, *([_rest(rest)] if rest else [])], min(room, 1 + len(shown) + bool(rest))


def _columns(width: int, title: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(title))
    table.header_style = "dim"
    for name in title[: 3 if width < _NARROW else None]:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column("")  # for words, in what room is left
    return table


def _add(table: Table, *cells: Text | str) -> None:
    """Add a row: what a terminal has no column for is left out, but for the last word."""
    most = len(table.columns)
    row = [*cells[: most - 1], *([""] * (most - len(cells))), cells[-1]][:most]
    table.add_row(*(_line(cell) if isinstance(cell, str) else cell for cell in row))


def _worst_first(nodes: Sequence[Node], now: float) -> list[Node]:
    """Silent nodes, then by the use of each one's least used GPU (or of its cores)."""

    def key(node: Node) -> tuple[bool, bool, float, float]:
        use = node.util(_SORTED_BY)
        least = min(node.all_gpus("util", _SORTED_BY), default=100.0 if use is None else use)
        return not _silence(node, now), node.ended is not None, least, use or 0.0

    return sorted(nodes, key=key)


def _of_node(node: Node, now: float, width: int) -> Iterator[Text | str]:
    load, cores = node.host("load"), len(node.head.usable) if node.head else 0
    yield Text(clean(node.name), style="bold").append("  CPU" if width else "", style="not bold")
    yield _silence(node, now) or _use(node.host("cpu"), width, plain=bool(node.gpus))
    yield "" if load is None else f"{'load ' if width else ''}{load:.0f}/{cores}"
    yield _part(memory(node), node.memory, " GiB" if width else "")
    if width >= _WIDE:
        net = [node.host(name) for name in ("net_rx", "net_tx", "ib_rx", "ib_tx")]
        disk = [node.host(name) for name in ("disk_read", "disk_write")]
        yield ""
        yield _rate("network", net)
        yield _rate("disk", disk)
    yield _ended(node)


def _of_gpu(node: Node, place: int, width: int) -> Iterator[Text | str]:
    gpu = node.gpus[place]
    power, limit = node.gpu(place, "power"), gpu.power_limit
    yield f"  GPU {gpu.index}"
    yield _use(node.gpu(place, "util"), width)
    yield "" if power is None else f"{power:.0f}" + (f"/{limit:.0f}" if limit else "") + " W"
    yield _part(node.gpu(place, "memory"), gpu.memory or None)
    yield _or(node.gpu(place, "temperature"), "°C")
    if width >= _WIDE:
        yield _or(node.gpu(place, "clock"), "MHz")
        yield _rate("PCIe", [node.gpu(place, name) for name in ("pcie_rx", "pcie_tx")])
    yield _line(_remark(node, place, gpu), "bold yellow")


def _in_a_line(node: Node, now: float, width: int) -> Iterator[Text | str]:
    levels = Text()
    for place in range(len(node.gpus)):
        util = node.gpu(place, "util")
        level = "?" if util is None else _LEVELS[min(8, max(0, math.ceil(util / 12.5 - 0.02)))]
        levels.append(level, style=_style(util))
    totals = [gpu.memory for gpu in node.gpus if gpu.memory]
    yield Text(clean(node.name), style="bold")
    yield levels
    yield _silence(node, now) or _use(node.util() if node.gpus else None, width)
    yield _or(mean(node.all_gpus("power")), "W")
    yield _part(mean(node.all_gpus("memory")), mean(totals), "")
    yield _or(max(node.all_gpus("temperature"), default=None), "°C")
    yield _or(node.host("cpu"), "%")
    yield _part(memory(node), node.memory, "")
    yield _ended(node)


def _rest(nodes: Sequence[Node]) -> Text:
    """One line for the nodes that have none of their own."""
    utils = [util for node in nodes for util in node.all_gpus("util")]
    powers = [power for node in nodes for power in node.all_gpus("power")]
    what = "GPUs"
    if not any(node.gpus for node in nodes):
        what, utils = "CPU", [cpu for node in nodes if (cpu := node.host("cpu")) is not None]
    text = f"… {len(nodes):,} more nodes"
    text += f": {what} {_span(utils, '%')}" if utils else ""
    return _line(text + (f", {_span(powers, 'W')}" if powers else ""), "dim")


def _remark(node: Node, place: int, gpu: Gpu) -> str:
    """Say in words what is wrong with a GPU: not everybody sees colours."""
    newest = node.samples[-1].gpus if node.samples else ()
    row = newest[place] if place < len(newest) else {}
    throttle = int(row.get("throttle", 0))
    if gpu.granted is False:
        return "not this job's"
    if untouched(row.get("util"), row.get("memory"), row.get("processes")):
        return "nobody uses it"
    if throttle & lines.THROTTLE_HEAT:
        return "slowed by heat"
    if throttle & lines.THROTTLE_POWER:
        return "at power limit"
    if throttle & lines.THROTTLE_HARDWARE:
        return "slowed by hardware"
    return ""


def _silence(node: Node, now: float) -> Text | None:
    """Return the text in the place of figures that are old, or that are not there."""
    age = node.stale(now)
    if age is None and (node.samples or node.ended is not None):
        return None
    return _line("no sample yet" if age is None else f"no sample for {duration(age)}", "bold red")


def _ended(node: Node) -> Text:
    return Text("" if node.ended is None else "ended", style="dim")


def _use(use: float | None, width: int, plain: bool = False) -> Text:
    """A bar and the number."""
    if use is None:
        return Text("?")
    cells = 10 if width < _WIDE else min(30, 10 + (width - _WIDE) // 2)
    filled = max(use > 0.5, round(min(1.0, max(0.0, use / 100)) * cells))
    bar = "█" * filled + "░" * (cells - filled)
    return Text(bar, style="" if plain else _style(use)).append(f" {use:4.0f} %", style="default")


def _style(use: float | None) -> str:
    if use is None:
        return "dim"
    if use < LIMITS.idle_util:
        return "red"
    return "yellow" if use < 50 else "green"


def _curve(values: Sequence[float], width: int) -> str:
    """The course of finite values, each cell the mean of those that fall into it."""
    finite = [value for value in values if math.isfinite(value)]
    width = min(width, len(finite))
    if width < 2:
        return ""
    edges = [round(k * len(finite) / width) for k in range(width + 1)]
    means = [fmean(finite[a:b]) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(_LEVELS[1 + (round(7 * (v - low) / span) if span > 0 else 4)] for v in means)


def _figure(value: float) -> str:
    """A loss in four digits: "3.214", "0.0312", "nan"."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.3f}" if 0.1 <= abs(value) < 1000 else f"{value:.4g}"


def _or(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _rate(what: str, rates: Sequence[float | None]) -> str:
    known = [rate for rate in rates if rate is not None]
    return f"{what} {size(sum(known))}/s" if known else ""


def _part(used: float | None, total: float | None, unit: str = " GiB") -> str:
    """ "28/40 GiB"."""
    if used is None:
        return ""
    amount = f"{used / _GIB:.{'0' if used >= 10 * _GIB or used < 0.05 * _GIB else '1'}f}"
    return f"{amount}/{number(total / _GIB)}{unit}" if total else f"{amount}{unit}"


def _span(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}-{high:.0f} {unit}" if round(low) != round(high) else f"{low:.0f} {unit}"


def _log(watch: Watch, width: int, room: int) -> list[Text]:
    if room < 2 or watch.run.log is None or not watch.log:
        return []
    title = f"--- {clean(watch.run.log.name)} "
    found = [_line(title.ljust(width, "-"), "dim")]
    for line in watch.log[-(room - 1) :]:
        text = Text.from_ansi(clean(line).expandtabs(4))
        text.no_wrap, text.overflow = True, "crop"
        found.append(text)
    return found


def _footer(watch: Watch, now: float, keys: bool) -> Text:
    text = time.strftime("%H:%M:%S", time.localtime(now))
    if watch.over():
        text += f" · ended; next: rankup report {watch.run.id}"
    elif keys:
        text += " · q ends the view, the run goes on"
    return _line(text, "dim")
