"""The first page: enough to decide. Verdict, what it cost, what to change, what the GPUs did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from ... import words
from ...cost import Cost
from ...diagnose import Diagnosis
from ...recording import Recording
from ...verdict import Verdict
from .. import job
from ..plots import Drawn, Plot, rows
from ..reduce import lowest, mean
from . import charts, labels
from .fonts import Font, written
from .sheet import (
    ACCENT,
    BODY,
    BOLD,
    COLOURS,
    FAINT,
    GREY,
    INNER,
    LEFT,
    PALE,
    SMALL,
    Document,
)
from .table import table

GPU_ROWS = 8  # on the first page
_MOST = 6  # findings on the first page
_FACT_WIDTH = 300.0
# Points for what stands below the findings: plots, a heat map, a table; the plots alone.
_BELOW, _LEAST_BELOW = 320.0, 195.0
_PLOT_HEIGHT = 58.0
_HEAT_HEIGHT = 44.0
_AXIS = 30.0  # points left of a plot for its figures


def title(document: Document, recording: Recording, made: str) -> None:
    """What this is a report of."""
    facts = recording.facts
    font = Font(15, bold=True)
    right = Font(7.4)
    document.text(LEFT + INNER, document.y + 1, "rankup report", right, colour=GREY, align="right")
    document.text(LEFT + INNER, document.y + 11, made, right, colour=GREY, align="right")
    name = written(facts.name or facts.run)
    document.text(LEFT, document.y, font.cut(name, INNER - 140), font)
    document.y += font.line
    jobs = ", ".join(dict.fromkeys(life.job for life in facts.lives if life.job))
    where = ", ".join(filter(None, [facts.site, facts.partition]))
    parts = [facts.run, f"job {jobs}" if jobs else "", where]
    line = written(" · ".join(filter(None, parts)))
    document.text(LEFT, document.y, BODY.cut(line, INNER - 140), BODY, colour=GREY)
    document.y += BODY.line + 5


def headline(document: Document, verdict: Verdict, still: bool) -> None:
    """The verdict in a box of its own."""
    large = Font(11.5, bold=True)
    width = INNER - 22
    # Text of any length: what is cut here stands in full among the findings.
    head = _at_most(4, large.wrap(written(verdict.headline), width), large, width)
    sentences = [*verdict.sentences, *(["The run was still going on."] if still else [])]
    text = [line for one in sentences if one for line in BODY.wrap(written(one), width)]
    text = _at_most(8, text, BODY, width)
    height = len(head) * large.line + len(text) * BODY.line + 14
    document.need(height)
    top = document.y
    document.box(LEFT, top, INNER, height, PALE)
    document.box(LEFT, top, 4, height, COLOURS[verdict.level])
    document.y += 6
    document.lines(head, large, x=LEFT + 14)
    document.y += 1
    document.lines(text, BODY, x=LEFT + 14)
    document.y = top + height + 9


def _at_most(count: int, lines: list[str], font: Font, width: float) -> list[str]:
    if len(lines) <= count:
        return lines
    return [*lines[: count - 1], font.cut(" ".join(lines[count - 1 :]), width)]


def facts_and_cost(document: Document, recording: Recording, cost: Cost) -> None:
    """What is known of the job, and beside it the efficiency and the bill."""
    document.need(230)
    top = document.y
    left = _facts(document, recording, top)
    right = _bill(document, cost, top)
    document.y = max(left, right) + 8


def _facts(document: Document, recording: Recording, top: float) -> float:
    # The name and the run stand in the title; the rest is on a page of its own.
    pairs = [pair for pair in job.facts(recording) if pair[0] not in ("Run", "Name", "Directory")]
    label = Font(7.6)
    y = top
    for name, text in pairs[:14]:
        known = written(text)
        lines = label.wrap(known, _FACT_WIDTH - 72)
        if len(lines) > 2:
            lines = [lines[0], label.cut(" ".join(lines[1:]), _FACT_WIDTH - 72)]
        document.text(LEFT, y, label.cut(written(name), 68), label, colour=GREY)
        for line in lines:
            document.text(LEFT + 72, y, line, label)
            y += label.line
    return y


def _bill(document: Document, cost: Cost, top: float) -> float:
    x, width = LEFT + _FACT_WIDTH + 14, INNER - _FACT_WIDTH - 14
    y = top
    large = Font(22, bold=True)
    known = "not known" if cost.efficiency is None else f"{100 * cost.efficiency:.0f} %"
    colour = GREY if cost.efficiency is None else _of(cost.efficiency)
    document.text(x, y, known, large, colour=colour)
    document.text(x + large.width(known) + 8, y + 11, "efficiency", BODY, colour=GREY)
    y += large.line
    for line in SMALL.wrap(written(f"= {cost.formula}"), width):
        document.text(x, y, line, SMALL, colour=GREY)
        y += SMALL.line
    y += 4
    if cost.efficiency is not None:
        _bar(document, x, y, width, cost.efficiency)
        y += 12
    unit = written(cost.unit)
    lines = [("billed", cost.billed), ("used", cost.used), ("wasted", cost.wasted)]
    for name, value in lines:
        if value is None:
            continue
        share = f"{100 * value / cost.billed:.0f} %" if cost.billed and name != "billed" else ""
        document.text(x, y, name, BODY, colour=GREY)
        right = x + width
        font = BOLD if name != "used" else BODY
        document.text(right - 34, y, f"{words.amount(value)} {unit}", font, align="right")
        document.text(right, y, share, BODY, colour=GREY, align="right")
        y += BODY.line
    said = f"{cost.node_hours:,.2f} node-hours at {words.amount(cost.per_node_hour)} {unit} each"
    if not cost.priced:
        said += "; this site has no unit of its own"
    if cost.seen < 0.98:
        said += f"; samples tell of {100 * cost.seen:.0f} % of the time"
    for line in SMALL.wrap(said, width):
        document.text(x, y, line, SMALL, colour=GREY)
        y += SMALL.line
    return y


def _bar(document: Document, x: float, y: float, width: float, share: float) -> None:
    document.box(x, y, width, 6, FAINT)
    document.box(x, y, width * min(1.0, max(0.0, share)), 6, _of(share))


def _of(efficiency: float) -> str:
    """The colour of an efficiency."""
    if efficiency >= 0.7:
        return COLOURS["ok"]
    return COLOURS["warning"] if efficiency >= 0.4 else COLOURS["error"]


def are_many(document: Document, diagnoses: Sequence[Diagnosis]) -> bool:
    """Whether the findings need the room of a part of the plots and of the table below them."""
    return sum(map(height, diagnoses)) + 40 > document.left - _BELOW


def findings(document: Document, diagnoses: Sequence[Diagnosis]) -> int:
    """As many findings as find room, the dearest first; how many those are."""
    if not diagnoses:
        return 0
    room = document.left - (_LEAST_BELOW if are_many(document, diagnoses) else _BELOW) - 28
    document.heading("What to change", keep=40)
    bottom = document.y + room
    for number, one in enumerate(diagnoses):
        more = len(diagnoses) - number - 1
        if number and (number == _MOST or height(one) + (14 if more else 0) > bottom - document.y):
            left = len(diagnoses) - number
            text = f"{words.plural(left, 'more finding')} on the next page."
            document.paragraph(text, SMALL, colour=GREY)
            return number
        finding(document, one)
    return len(diagnoses)


def height(one: Diagnosis) -> float:
    """Points that a finding takes."""
    message, todo = _texts(one)
    return (len(message) + len(todo)) * BODY.line + 7


def finding(document: Document, one: Diagnosis) -> None:
    """What was seen, what it cost, and what to change."""
    message, todo = _texts(one)
    document.need(min(height(one), 200))
    document.box(LEFT, document.y + 1, 3, BODY.line * min(len(message), 3) - 1, COLOURS[one.level])
    if one.cost is not None:
        paid = f"{words.amount(one.cost)} {written(one.unit)}"
        document.text(LEFT + INNER, document.y, paid, BOLD, align="right")
    code = written(one.code)
    document.text(
        LEFT + 10, document.y, code, Font(BODY.size, bold=True), colour=COLOURS[one.level]
    )
    document.lines(message, BODY, x=LEFT + 52)
    if todo:
        document.text(LEFT + 40, document.y, "→", BODY, colour=ACCENT)
        document.lines(todo, BODY, x=LEFT + 52, colour=ACCENT)
    document.y += 7


def _texts(one: Diagnosis) -> tuple[list[str], list[str]]:
    # All lines leave room for the cost at the right, so that nothing can run into it.
    message = BODY.wrap(written(one.message), INNER - 52 - 92)
    todo = BODY.wrap(written(one.todo), INNER - 52 - 10) if one.todo else []
    return message, todo


def overview(
    document: Document, recording: Recording, drawn: Sequence[Drawn], *, small: bool
) -> None:
    """Use and power of all GPUs over time (of all cores without GPUs), one below the other.

    Args:
        small: without the heat map of all GPUs.
    """
    shown = _overview_plots(drawn)
    if not shown:
        document.heading("Over time", keep=20)
        document.paragraph("No sample was recorded.", BODY, colour=GREY)
        return
    several = len(shown[0].average) > 1 and not small
    keep = len(shown) * (_PLOT_HEIGHT + 15) + 24 + (_HEAT_HEIGHT + 3 if several else 0)
    document.heading("Over time", keep=keep, aside=_legend(recording))
    span = charts.span(recording)
    for place, plot in enumerate(shown):
        what = "GPU " if plot.channel.of == "gpu" else ""
        caption = f"{what}{plot.channel.title[0].lower()}{plot.channel.title[1:]}"
        if not what:
            caption = plot.channel.title
        label = f"{caption} ({plot.unit})" if plot.unit else caption
        spread = ": mean, lowest and highest of all"
        if several and not place:
            spread += f"; below it each {labels.thing(plot)}, light is 100 %"
        document.text(LEFT, document.y, label, Font(7.6, bold=True))
        wide = Font(7.6, bold=True).width(label)
        document.text(LEFT + wide, document.y, spread, Font(7.6), colour=GREY)
        document.y += 11
        axes = document.axes(LEFT + _AXIS, document.y, INNER - _AXIS, _PLOT_HEIGHT)
        last = place == len(shown) - 1
        charts.bare(axes, span, ticks=last)
        charts.gaps(axes, span, recording)
        draw(axes, span, recording, plot)
        charts.lives(axes, span, recording)
        document.y += _PLOT_HEIGHT + (22 if last else 4)
        if several and not place:
            axes = document.axes(LEFT + _AXIS, document.y - 1, INNER - _AXIS, _HEAT_HEIGHT)
            heat(axes, span, recording, plot, _HEAT_HEIGHT)
            document.y += _HEAT_HEIGHT + 4


def _legend(recording: Recording) -> str:
    """What else than lines is in the plots over time."""
    notes = ["grey: nothing was sampled"] if charts.blank(recording) else []
    if len(recording.facts.lives) > 1:
        notes.append("dashed: the run began again")
    return "; ".join(notes)


def draw(axes: Axes, span: charts.Span, recording: Recording, plot: Plot) -> None:
    """The strip of a plot."""
    fold = plot.fold * recording.width
    points = len(plot.series[0].band.mean)
    times = np.float64(recording.begin) + (np.arange(points) + 0.5) * fold
    charts.strip(axes, span, times, [one.band for one in plot.series], plot.ceiling)


def heat(
    axes: Axes,
    span: charts.Span,
    recording: Recording,
    plot: Plot,
    tall: float,
    *,
    ticks: bool = False,
) -> int:
    """The heat map of a plot with the names of its rows; how many things a row stands for."""
    charts.bare(axes, span, ticks=ticks)
    fine = not plot.channel.more and tall > _HEAT_HEIGHT
    values = rows(recording, plot)
    per_row = charts.heat(axes, span, recording, values, plot.ceiling, fine=fine)
    charts.lives(axes, span, recording)
    labels.rows_of(axes, recording, plot, tall, per_row)
    return per_row


def _overview_plots(drawn: Sequence[Drawn]) -> list[Plot]:
    known = {plot.channel.id: plot for section in drawn for plot in section.plots}
    gpu = [known[name] for name in ("gpu-util", "gpu-power") if name in known]
    return gpu or [known[name] for name in ("cpu-use", "memory-node") if name in known]


def gpus(document: Document, recording: Recording, drawn: Sequence[Drawn], room: float) -> None:
    """The GPUs: each one where there are few, else those that were used least."""
    plots = [plot for section in drawn for plot in section.plots if plot.channel.of == "gpu"]
    shown = [plot for plot in plots if not plot.channel.more]
    warm = [plot for plot in plots if plot.channel.id == "gpu-temperature"]
    if not shown:
        return
    font = Font(7.4)
    fit = int((room - 50) / (font.line + 2.5))
    if fit < 2:
        return
    heads, columns = ["GPU"], []
    for plot in [*shown, *warm]:
        values = rows(recording, plot)
        heads.append(f"{plot.channel.title} ({plot.unit})")
        columns.append(mean(values, axis=0))
        if plot.channel.id in ("gpu-util", "gpu-memory"):
            top = plot.channel.names[0]
            heads.append("highest")
            scale = np.float32(plot.scale)
            columns.append(np.nanmax(_filled(recording.gpu[top].high), axis=0) * scale)
    names = recording.gpu_names()
    order = list(range(len(names)))
    title = f"The {words.plural(len(names), 'GPU')}: means over the run"
    if len(names) > min(GPU_ROWS, fit):
        use = columns[0] if lowest(columns[0]) >= 0 else np.zeros(len(names))
        order = sorted(order, key=lambda k: float(use[k]))[: min(GPU_ROWS, fit)]
        title = f"The {len(order)} least used of {len(names):,} GPUs: means over the run"
    document.heading(title, keep=30)
    body = [(names[k], *(job.number(float(column[k])) for column in columns)) for k in order]
    table(document, heads, body, font=font)


def _filled(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Without columns of nothing but NaN, of which numpy would warn."""
    there = np.isfinite(values).any(axis=0)
    return np.where(there[None], values, np.float32(-1)) if len(values) else values
