"""One picture of the run, made to fit the terminal: pure, from what `Watch` knows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from ...base.text import clean
from ..words import duration, percent
from . import rows
from .node import Node, mean
from .rows import Paper, cut
from .troubles import troubles
from .watch import Watch
from .words import figure

_STATE_STYLES = {
    **{"RUNNING": "bold green", "COMPLETED": "bold", "PENDING": "bold yellow"},
    **{"NEW": "bold", "UNKNOWN": "bold yellow", "": ""},
}
HELP = "q ends the view, the run goes on"


def frame(
    watch: Watch, paper: Paper, height: int, scroll: int = 0, keys: bool = False, fill: bool = True
) -> list[Text]:
    """At most `height` lines, just as many to `fill` a terminal.

    Args:
        scroll: nodes that are left out at the top of the table.
        keys: whether there is a keyboard to scroll with.
    """
    nodes = watch.known()
    top = [_title(watch, paper), *_progress(watch, paper), *_times(watch, paper)]
    top += _overview(nodes, paper)
    top += _troubles(watch, paper, max(2, height // 8))
    bottom = [_footer(watch, paper, keys)]
    left = max(0, height - len(top) - len(bottom))
    table = _table(nodes, paper, max(0, left - _least_log(watch, left)), scroll)
    log = _log(watch, paper, left - len(table) if fill else min(left - len(table), 10))
    body = [*top, *table, *log]
    filler = [Text() for _ in range(height - len(body) - len(bottom) if fill else 0)]
    lines = [*body, *filler, *bottom][:height]
    for line in lines:
        line.no_wrap = True
        rows.fit(line, paper)
    return lines


def small(watch: Watch) -> str:
    """The run in one line, safe to show; empty where nothing is known of it yet."""
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


def _title(watch: Watch, paper: Paper) -> Text:
    state = watch.state
    right = state.state
    if state.begin is not None and state.live is not False:
        right += f" {duration(max(0.0, paper.now - state.begin))}"
    elif state.begin is not None and state.end is not None:
        right += f", took {duration(max(0.0, state.end - state.begin))}"
    right = clean(right)
    left = clean(f"{state.id}  {state.name}" if state.name else state.id)
    left = cut(left, max(10, paper.width - len(right) - 2), paper.signs)
    line = Text(rows.pad(left, max(0, paper.width - len(right))), style="bold")
    return line.append(right, style=_STATE_STYLES.get(state.state, "bold red"))


def _step_parts(watch: Watch) -> list[str]:
    progress, total = watch.progress, watch.state.steps
    newest = progress.newest
    parts = []
    if newest is not None:
        of = f"/{total:,}" if total else ""
        parts.append(f"step {newest.number:,}{of}")
    if progress.loss is not None:
        parts.append(f"loss {figure(progress.loss)}")
    if progress.rate is not None:
        rate = f"{progress.rate:,.0f}" if progress.rate >= 100 else f"{progress.rate:.3g}"
        parts.append(f"{rate} {progress.unit}/s")
    return parts


def _progress(watch: Watch, paper: Paper) -> list[Text]:
    progress, total = watch.progress, watch.state.steps
    dot = f" {paper.signs.dot} "
    parts = _step_parts(watch)
    if not parts:
        return [Text("no step is written down yet", style="dim")]
    if progress.newest and total:
        parts[0] += f" ({percent(progress.newest.number / total)})"
    if progress.valid is not None:
        parts.append(f"valid {figure(progress.valid)}")
    if progress.data_wait is not None:
        parts.append(f"data wait {percent(progress.data_wait)}")
    if progress.seconds is not None:
        parts.append(f"{progress.seconds:.2g} s a step")
    found = [Text(cut(clean(dot.join(parts)), paper.width, paper.signs))]
    if len(progress.losses) > 2:
        label = f"loss of the last {len(progress.losses):,} steps "
        width = min(paper.width - len(label), 60 if paper.width < 100 else 90)
        curve = paper.signs.curve(progress.losses, width)
        found.append(Text(label, style="dim").append(curve, style="cyan"))
    return found


def _times(watch: Watch, paper: Paper) -> list[Text]:
    state, progress = watch.state, watch.progress
    parts = []
    if state.words and state.state != "RUNNING":
        parts.append(state.words)
    needs = None
    if state.steps and progress.newest and progress.seconds and state.live is not False:
        needs = max(0, state.steps - progress.newest.number) * progress.seconds
        needs = None if progress.final else needs
    late = False
    if state.limit is not None and state.live is not False:
        left = state.limit - paper.now
        ahead = f"{duration(left)} left until the time limit"
        parts.append(ahead if left > 0 else "at its time limit")
        late = needs is not None and needs > left
    if needs is not None:
        parts.append(f"the steps need {duration(needs)} more")
    if late:
        parts[-1] += ": longer than that"
    if progress.final:
        parts.append("the training has come to its end")
    text = clean(f" {paper.signs.dot} ".join(parts))
    style = "bold yellow" if late else ""
    return [Text(cut(text, paper.width, paper.signs), style=style)] if parts else []


def _overview(nodes: Sequence[Node], paper: Paper) -> list[Text]:
    if not nodes:
        return [Text("no sample of a node yet", style="dim")]
    gpus = sum(len(node.gpus) for node in nodes)
    dot = f" {paper.signs.dot} "
    on = f"{len(nodes):,} node{'s' if len(nodes) > 1 else ''}"
    parts = [f"{gpus:,} GPU{'s' if gpus > 1 else ''} on {on}" if gpus else on]
    utils = [util for node in nodes for util in node.all_gpus("util")]
    powers = [power for node in nodes for power in node.all_gpus("power")]
    if utils:
        parts.append(f"use {sum(utils) / len(utils):.0f} % (lowest {min(utils):.0f})")
    if powers:
        parts.append(f"{sum(powers) / len(powers):.0f} W each, {_watts(sum(powers))} in all")
    cpu = mean(node.host("cpu") for node in nodes)
    if cpu is not None:
        parts.append(f"CPU {cpu:.0f} %")
    return [Text(cut(dot.join(parts), paper.width, paper.signs), style="bold")]


def _watts(power: float) -> str:
    return f"{power / 1000:.3g} kW" if power >= 1000 else f"{power:.0f} W"


def _troubles(watch: Watch, paper: Paper, most: int) -> list[Text]:
    found = troubles(watch, paper.now)
    shown = found if len(found) <= most else found[: most - 1]
    lines = [Text(cut(f"! {line}", paper.width, paper.signs), style="yellow") for line in shown]
    if len(found) > len(shown):
        more = f"! and {len(found) - len(shown)} more: rankup report says all"
        lines.append(Text(more, style="yellow"))
    return lines


def _table(nodes: Sequence[Node], paper: Paper, room: int, scroll: int) -> list[Text]:
    """GPU by GPU where that fits, else a line per node, else the worst of them first."""
    if not nodes or room < 2:
        return []
    name = rows.name_width(nodes, paper.width)
    if sum(1 + len(node.gpus) for node in nodes) <= room:
        return [line for node in nodes for line in rows.detailed(node, paper, name)]
    most = min(16, max(len(node.gpus) for node in nodes))
    title = rows.short_title(paper, name, most)
    if len(nodes) <= room - 1:
        return [title, *(rows.short(node, paper, name, most) for node in nodes)]
    ordered = rows.worst_first(nodes, paper.now)
    fits = max(1, room - 2)
    begin = min(scroll, len(ordered) - fits)
    shown = ordered[begin : begin + fits]
    rest = ordered[:begin] + ordered[begin + fits :]
    table = [title, *(rows.short(node, paper, name, most) for node in shown)]
    return [*table, rows.the_rest(rest, paper)][:room]


def most_scroll(watch: Watch) -> int:
    """How far the table may be moved at most."""
    return max(0, len(watch.nodes) - 1)


def _least_log(watch: Watch, left: int) -> int:
    """Lines that the log has for sure: a third, at least its newest one."""
    return min(left // 3, 1 + len(watch.log)) if watch.log else 0


def _log(watch: Watch, paper: Paper, room: int) -> list[Text]:
    if room < 2 or watch.state.log is None or not watch.log:
        return []
    title = f"--- {clean(watch.state.log.name)} "
    lines = [Text(cut(title, paper.width, paper.signs).ljust(paper.width, "-"), style="dim")]
    for line in watch.log[-(room - 1) :]:
        text = Text.from_ansi(clean(line).expandtabs(4))
        text.truncate(paper.width)
        lines.append(text)
    return lines


def _footer(watch: Watch, paper: Paper, keys: bool) -> Text:
    scrolls = keys and len(watch.nodes) > 1
    parts = [time.strftime("%H:%M:%S", time.localtime(paper.now))]
    if watch.over():
        parts.append(f"ended; next: rankup report {clean(watch.state.id)}")
    elif keys:
        parts.append(HELP)
        if scrolls:
            parts.append(f"{paper.signs.up_down} move the table")
    return Text(cut(f" {paper.signs.dot} ".join(parts), paper.width, paper.signs), style="dim")
