"""The pages behind the first: every channel in llview's order, the training, events, nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....base.amounts import some
from ...diagnose import Diagnosis
from ...recording import Recording
from .. import job, progress
from ..job import Table
from ..plots import Drawn, Plot, row_names
from . import charts, first, labels
from .fonts import Font, written
from .sheet import GREY, INNER, LEFT, SMALL, Document
from .table import table

_AXIS = 30.0  # points left of a plot for its figures
_SIDE = 96.0  # points right of it for lowest, mean and highest
_STRIP = 52.0
_CURVE = 64.0
_SCALE = 22  # colours shown of a heat map
_NAME = Font(6.2)
_BOLD = Font(6.2, bold=True)


def other_findings(document: Document, diagnoses: Sequence[Diagnosis]) -> None:
    """The findings that the first page had no room for."""
    if not diagnoses:
        return
    document.heading("More findings", keep=60, mark=True)
    for one in diagnoses:
        first.finding(document, one)


def section(document: Document, recording: Recording, drawn: Drawn) -> None:
    """A section's plots, and what is to be said of channels that have none."""
    keep = _height(drawn.plots[0], recording) if drawn.plots else 20
    document.heading(drawn.section.title, keep=keep, mark=True)
    span = charts.span(recording)
    for plot in drawn.plots:
        _channel(document, recording, plot, span)
    for sentence in drawn.said:
        document.paragraph(written(sentence), SMALL, colour=GREY)
    document.y += 6


def training(document: Document, recording: Recording) -> None:
    """Loss, rate and the like over time, and the timeline of lives and events."""
    document.heading("Steps and events", keep=120, mark=True)
    span = charts.span(recording)
    curves = progress.curves(recording)
    for one in curves:
        document.need(_CURVE + 36)
        title = f"{one.title} ({one.unit})" if one.unit else one.title
        _caption(document, written(title), written(one.note))
        axes = document.axes(LEFT + _AXIS, document.y, INNER - _AXIS - _SIDE, _CURVE)
        charts.bare(axes, span, ticks=True)
        charts.gaps(axes, span, recording)
        charts.curve(axes, span, one)
        charts.lives(axes, span, recording)
        figures = [("first", one.first), ("last", one.last)]
        figures += [("min", one.lowest), ("max", one.highest)]
        _figures(document, figures)
        document.y += _CURVE + 24
    if not curves:
        text = "The training has written down no step: log_metrics(step=…, loss=…) does."
        document.paragraph(text, SMALL, colour=GREY)
    if left := progress.left_out(recording):
        text = f"Logged as well, without a plot: {some(left, 20)}"
        document.paragraph(written(text), SMALL, colour=GREY)
    lanes = charts.lanes_of(recording)
    if lanes:
        height = 14.0 * lanes + 4
        document.need(height + 44)
        _caption(document, "Timeline", "")
        axes = document.axes(LEFT + 48, document.y, INNER - 48, height)
        charts.bare(axes, span, ticks=True)
        charts.timeline(axes, span, recording)
        document.y += height + 26


def facts(document: Document, recording: Recording) -> None:
    """All that is known of the job, in full."""
    document.heading("The job", keep=60, mark=True)
    label = Font(7.6)
    for name, text in job.facts(recording):
        lines = label.wrap(written(text), INNER - 110)
        document.need(label.line * min(2, len(lines)))
        document.text(LEFT, document.y, label.cut(written(name), 104), label, colour=GREY)
        document.lines(lines, label, x=LEFT + 110)
    if recording.facts.portal:
        document.need(label.line)
        document.text(LEFT, document.y, "The site's report", label, colour=GREY)
        lines = label.wrap(written(recording.facts.portal), INNER - 110)
        document.lines(lines, label, x=LEFT + 110)
    document.y += 4
    put(document, job.lives_table(recording))


def tables(document: Document, recording: Recording, drawn: Sequence[Drawn]) -> None:
    """Everything in numbers: channels, GPUs, file systems, events, nodes."""
    plots = [plot for one in drawn for plot in one.plots]
    document.heading("In numbers", keep=80, mark=True)
    if plots:
        put(document, job.summary(recording, plots, row_names(recording)))
    put(document, job.gpu_table(recording, plots))
    put(document, job.fs_table(recording))
    if events := job.event_table(recording):
        put(document, events, mark="Events")
    if nodes := job.node_table(recording):
        put(document, nodes, mark="Nodes")


def put(document: Document, one: Table | None, mark: str = "") -> None:
    """A table with its caption, where there is one."""
    if one is None or not one.rows:
        return
    font = Font(8.5, bold=True)
    document.need(font.line + 70)
    if mark:
        document.marks.append((mark, len(document.figures)))
    document.text(LEFT, document.y, font.cut(written(one.caption), INNER), font)
    document.y += font.line + 2
    wide = len(one.head)
    table(document, one.head, one.rows, named=one.named, font=Font(7.4 if wide < 8 else 6.4))


def _channel(document: Document, recording: Recording, plot: Plot, span: charts.Span) -> None:
    document.need(_height(plot, recording))
    title = f"{plot.channel.title} ({plot.unit})" if plot.unit else plot.channel.title
    _caption(document, written(title), written(plot.channel.note))
    several = len(plot.average) > 1
    width = INNER - _AXIS - _SIDE
    axes = document.axes(LEFT + _AXIS, document.y, width, _STRIP)
    charts.bare(axes, span, ticks=not several)
    charts.gaps(axes, span, recording)
    first.draw(axes, span, recording, plot)
    charts.lives(axes, span, recording)
    if len(plot.series) == 1:
        one = plot.series[0]
        _figures(document, [("mean", one.mean), ("min", one.low), ("max", one.high)])
    else:
        _directions(document, plot)
    document.y += _STRIP + (5 if several else 24)
    if several:
        tall = _heat_height(plot)
        axes = document.axes(LEFT + _AXIS, document.y, width, tall)
        per_row = first.heat(axes, span, recording, plot, tall, ticks=True)
        _side(document, plot, tall, per_row)
        document.y += tall + 24


def _caption(document: Document, title: str, note: str) -> None:
    font = Font(8, bold=True)
    document.text(LEFT, document.y, font.cut(title, INNER), font)
    left = INNER - font.width(title) - 8
    if note and SMALL.width(note) <= left:
        x = LEFT + font.width(title) + 8
        document.text(x, document.y + 1, note, SMALL, colour=GREY)
        note = ""
    document.y += font.line
    if note:
        document.paragraph(note, SMALL, colour=GREY)
    document.y += 3


def _figures(document: Document, figures: Sequence[tuple[str, float]]) -> None:
    """Numbers beside a plot."""
    x, y = LEFT + INNER - _SIDE + 8, document.y
    for name, value in figures:
        document.text(x, y, name, _NAME, colour=GREY)
        document.text(LEFT + INNER, y, job.number(value), _NAME, align="right")
        y += _NAME.line + 1


def _directions(document: Document, plot: Plot) -> None:
    """Numbers of both directions, each in the colour of its line."""
    x, y = LEFT + INNER - _SIDE + 8, document.y
    for colour, one in zip(charts.COLOURS_OF_LINES, plot.series, strict=False):
        document.text(x, y, _NAME.cut(written(one.name), _SIDE - 8), _BOLD, colour=colour)
        y += _NAME.line
        for name, value in (("mean", one.mean), ("max", one.high)):
            document.text(x, y, name, _NAME, colour=GREY)
            document.text(LEFT + INNER, y, job.number(value), _NAME, align="right")
            y += _NAME.line


def _side(document: Document, plot: Plot, tall: float, per_row: int) -> None:
    """The scale of the colours, and how many things a row of the picture is the mean of."""
    x, wide = LEFT + INNER - _SIDE + 8, _SIDE - 8
    for place, colour in enumerate(colours := charts.colours(_SCALE)):
        step = wide / len(colours)
        document.box(x + place * step, document.y, step + 0.3, 6, colour)
    document.text(x, document.y + 8, "0", _NAME, colour=GREY)
    end = f"{job.number(plot.ceiling)} {plot.unit}".strip()
    document.text(x + wide, document.y + 8, end, _NAME, colour=GREY, align="right")
    what = labels.thing(plot)
    text = f"a row per {what}" if per_row == 1 else f"a row per {per_row} {what}s"
    if tall >= 26:
        document.text(x, document.y + 17, f"{text} ({len(plot.average):,})", _NAME, colour=GREY)


def _heat_height(plot: Plot) -> float:
    """Low for a few rows, and never more than a fifth of a page."""
    count = len(plot.average)
    most = 84.0 if plot.channel.more else 132.0
    return float(np.clip(count * 8.0, 26.0, most if count > 12 else 100.0))


def _height(plot: Plot, recording: Recording) -> float:
    """Points that a channel takes with all that belongs to it."""
    note = len(SMALL.wrap(plot.channel.note, INNER)) * SMALL.line if plot.channel.note else 0
    heat = _heat_height(plot) + 24 if len(plot.average) > 1 else 19
    return 8 * 1.32 + 3 + note + _STRIP + 5 + heat


def contents(document: Document, page: int, y: float) -> None:
    """Where what is, in one line at the bottom of a page that is finished."""
    font = Font(7)
    text = " · ".join(f"{title} {number}" for title, number in document.marks)
    figure = document.figures
    current, figures = document.y, list(figure)
    document.figures = figures[: page + 1]
    document.text(LEFT, y, font.cut(f"Pages: {text}", INNER), font, colour=GREY)
    document.figures, document.y = figures, current
