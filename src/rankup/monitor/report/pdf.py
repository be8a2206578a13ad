"""`report.pdf`: a run on A4 pages, the first of which is enough to decide."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from ...base.amounts import some
from ...base.files import replacing
from .. import words
from ..billing import Cost
from ..diagnose import Diagnosis, Verdict, not_judged, overlap
from ..recording import Recording, lowest
from . import job, paper
from .curves import curves, left_out, timeline
from .figures import Drawn, Figure, blank, sections
from .job import Table
from .paper import (
    ACCENT,
    BODY,
    BOTTOM,
    COLOURS,
    FAINT,
    GREY,
    INNER,
    LEFT,
    LINE,
    PALE,
    SMALL,
    TABLE,
    Pages,
    table,
    written,
)

_TITLE, _VERDICT = 15.0, 11.5  # points, as all that follows
_FACTS = 300.0  # width of what is known of the job, beside the bill
# Below the findings of page 1: plots, a heat map and a table; the plots alone.
_BELOW, _LEAST_BELOW = 350.0, 220.0
_HEAT = 44.0  # height of the GPUs' heat map on page 1
_FINDINGS = 6  # of page 1
_GPUS = 8


def pdf(
    recording: Recording,
    diagnoses: Sequence[Diagnosis],
    cost: Cost,
    verdict: Verdict,
    target: Path,
) -> None:
    """Write the report, the old one or the new one whole; no state of matplotlib is changed.

    Raises:
        OSError: it could not be written; `target` is as it was.
    """
    with matplotlib.rc_context():
        # What a user has set for his own figures (TeX, say) is not for this one.
        matplotlib.rcdefaults()
        matplotlib.rcParams["axes.unicode_minus"] = False
        pages = Pages(recording)
        drawn = sections(recording)
        _title(pages, recording)
        brief = not_judged(verdict, diagnoses)
        _headline(pages, verdict, recording.running, brief)
        _facts_and_bill(pages, recording, cost, brief)
        crowded = sum(_height(pages, one) for one in diagnoses) + 40 > pages.left - _BELOW
        shown = _findings(pages, diagnoses, pages.left - (_LEAST_BELOW if crowded else _BELOW))
        _overview(pages, recording, drawn, _HEAT if not crowded else 0)
        _gpus(pages, recording, drawn)
        pages.add_page()
        if diagnoses[shown:]:
            pages.heading("More findings", 60)
            for one in diagnoses[shown:]:
                _finding(pages, one)
            _overlap(pages, diagnoses)
        for each in drawn:
            _section(pages, recording, each)
        _training(pages, recording)
        _job(pages, recording)
        _tables(pages, recording, drawn)
        _contents(pages)
        data = bytes(pages.output())
    with replacing(target, private=True) as file:  # it has the command with its arguments
        file.write(data)


def _title(pages: Pages, recording: Recording) -> None:
    facts, top = recording.facts, pages.y
    pages.line_of("rankup report", TABLE, colour=GREY, align="R")
    made = f"made {time.strftime('%Y-%m-%d %H:%M %Z')}"
    pages.line_of(made, TABLE, colour=GREY, align="R")
    pages.y = top
    width = INNER - 140
    pages.line_of(written(facts.name or facts.run), _TITLE, bold=True, width=width)
    jobs = ", ".join(dict.fromkeys(attempt.job for attempt in facts.attempts if attempt.job))
    where = ", ".join(filter(None, [facts.site, facts.partition]))
    parts = [facts.run, f"job {jobs}" if jobs else "", where]
    pages.line_of(written(" · ".join(filter(None, parts))), colour=GREY, width=width)
    pages.y += 5


def _headline(pages: Pages, verdict: Verdict, still: bool, brief: bool) -> None:
    """The verdict in a box of its own; what is cut of it stands in full among the findings."""
    width = INNER - 22
    head = pages.lines_of(written(verdict.headline), _VERDICT, width, bold=True, most=4)
    sentences = [*verdict.sentences, *(["The run was still going on."] if still else [])]
    text = []
    for one in sentences:
        text += pages.lines_of(written(one), BODY, width) if one else []
    if len(text) > 8:
        text = [*text[:7], " ".join(text[7:])]
    height = (len(head) * _VERDICT + len(text) * BODY) * LINE + 14
    top = pages.y
    pages.box(LEFT, top, INNER, height, PALE)
    pages.box(LEFT, top, 4, height, GREY if brief else COLOURS[verdict.level])
    pages.y += 6
    for line in head:
        pages.line_of(line, _VERDICT, x=LEFT + 14, width=width, bold=True)
    for line in text:
        pages.line_of(line, x=LEFT + 14, width=width)
    pages.y = top + height + 9


def _facts_and_bill(pages: Pages, recording: Recording, cost: Cost, brief: bool) -> None:
    """Write what is known of the job, and beside it the efficiency and the bill."""
    top = pages.y
    # The name and the run stand in the title; the rest is on a page of its own.
    pairs = [pair for pair in job.facts(recording) if pair[0] not in ("Run", "Name", "Directory")]
    for name, text in pairs[:14]:
        _fact(pages, name, text, label=72, width=_FACTS, most=2)
    low, pages.y = pages.y, top
    _bill(pages, cost, brief)
    pages.y = max(low, pages.y) + 8


def _fact(pages: Pages, name: str, text: str, label: float, width: float, most: int = 0) -> None:
    size = 7.6
    lines = pages.lines_of(written(text), size, width - label, most=most)
    pages.need(size * LINE * min(2, len(lines)))
    pages.line_of(written(name), size, width=label - 4, colour=GREY, stay=True)
    for line in lines:
        pages.line_of(line, size, x=LEFT + label, width=width - label)


def _bill(pages: Pages, cost: Cost, brief: bool) -> None:
    x = LEFT + _FACTS + 14
    width = LEFT + INNER - x
    known, colour = "not known", GREY
    if cost.efficiency is not None:
        known, colour = f"{100 * cost.efficiency:.0f} %", GREY if brief else _of(cost.efficiency)
    top = pages.y
    pages.line_of(known, 22, x=x, width=width, bold=True, colour=colour)
    below = pages.y
    pages.y = top + 11
    right = x + pages.get_string_width(known) + 8
    pages.line_of("efficiency", x=right, width=width, colour=GREY)
    pages.y = below
    pages.paragraph(written(f"= {cost.formula}"), x=x)
    pages.y += 4
    if cost.efficiency is not None:
        pages.box(x, pages.y, width, 6, FAINT)
        share = min(1.0, max(0.0, cost.efficiency))
        if share:
            pages.box(x, pages.y, width * share, 6, colour)
        pages.y += 12
    amounts = {"billed": cost.billed, "used": cost.used, "wasted": cost.wasted}
    for name, value in amounts.items():
        if value is None:
            continue
        pages.line_of(name, x=x, width=width, colour=GREY, stay=True)
        if cost.billed and name != "billed":
            share_of = f"{100 * value / cost.billed:.0f} %"
            pages.line_of(share_of, x=x, width=width, colour=GREY, align="R", stay=True)
        paid, bold = f"{words.amount(value)} {written(cost.unit)}", name != "used"
        pages.line_of(paid, x=x, width=width - 34, bold=bold, align="R")
    rate = words.amount(cost.per_node_hour)
    said = f"{cost.node_hours:,.2f} node-hours at {rate} {written(cost.unit)} each"
    if not cost.priced:
        said += "; this site has no unit of its own"
    if 0 < cost.seen < 0.98:
        said += f"; samples tell of {words.known_part(cost.seen)} of the time"
    pages.paragraph(said, x=x)


def _of(efficiency: float) -> str:
    """The colour of an efficiency."""
    if efficiency >= 0.7:
        return COLOURS["ok"]
    return COLOURS["warning"] if efficiency >= 0.4 else COLOURS["error"]


def _findings(pages: Pages, diagnoses: Sequence[Diagnosis], room: float) -> int:
    """As many findings as find room, the dearest first; how many those are."""
    if not diagnoses:
        return 0
    bottom = pages.y + room
    pages.heading("What to change", 40, mark=False)
    for number, one in enumerate(diagnoses):
        more = len(diagnoses) - number
        room = bottom - pages.y - (14 if more > 1 else 0)
        if number and (number == _FINDINGS or _height(pages, one) > room):
            pages.paragraph(f"{words.plural(more, 'more finding')} on the next page.")
            return number
        _finding(pages, one)
    _overlap(pages, diagnoses)
    return len(diagnoses)


def _overlap(pages: Pages, diagnoses: Sequence[Diagnosis]) -> None:
    if said := overlap(diagnoses):
        pages.paragraph(said)


def _finding(pages: Pages, one: Diagnosis) -> None:
    """Write what was seen, what it cost, and what to change."""
    message, todo = _texts(pages, one)
    pages.need(min(_height(pages, one), 200))
    line = BODY * LINE
    pages.box(LEFT, pages.y + 1, 3, line * min(len(message), 3) - 1, COLOURS[one.level])
    if one.cost is not None:
        paid = f"{words.amount(one.cost)} {written(one.unit)}"
        pages.line_of(paid, bold=True, align="R", stay=True)
    code, colour = written(one.code), COLOURS[one.level]
    pages.line_of(code, x=LEFT + 10, width=60, bold=True, colour=colour, stay=True)
    for text in message:
        pages.line_of(text, x=LEFT + 52, width=INNER)
    for place, text in enumerate(todo):
        pages.need(line)
        if not place:
            pages.line_of("→", x=LEFT + 40, width=12, colour=ACCENT, stay=True)
        pages.line_of(text, x=LEFT + 52, width=INNER, colour=ACCENT)
    pages.y += 7


def _height(pages: Pages, one: Diagnosis) -> float:
    message, todo = _texts(pages, one)
    return (len(message) + len(todo)) * BODY * LINE + 7


def _texts(pages: Pages, one: Diagnosis) -> tuple[list[str], list[str]]:
    # All lines leave room for the cost at the right, so that nothing can run into it.
    message = pages.lines_of(written(one.message), BODY, INNER - 52 - 92)
    return message, pages.lines_of(written(one.todo), BODY, INNER - 52) if one.todo else []


def _overview(pages: Pages, recording: Recording, drawn: Sequence[Drawn], heat: float) -> None:
    """Use and power of all GPUs over time (of all cores without GPUs), one below the other."""
    known = {plot.id: plot for section in drawn for plot in section.plots}
    shown = [known[name] for name in ("gpu-util", "gpu-power") if name in known]
    shown = shown or [known[name] for name in ("cpu-use", "memory-node") if name in known]
    if not shown:
        pages.heading("Over time", 20, mark=False)
        pages.paragraph("No sample was recorded.", BODY)
        return
    heat = heat if len(shown[0].average) > 1 else 0
    notes = ["grey: nothing was sampled"] if blank(recording) else []
    if len(recording.facts.attempts) > 1:
        notes.append("dashed: the run began again")
    keep = len(shown) * 73 + 24 + heat
    pages.heading("Over time", keep, mark=False, aside="; ".join(notes))
    for place, plot in enumerate(shown):
        title, last = plot.title, place == len(shown) - 1
        if plot.of == "gpu":
            title = f"GPU {title[0].lower()}{title[1:]}"
        note = "mean, lowest and highest of all"
        if heat and not place:
            note += f"; below it each {_row(recording, plot)}, light is 100 %"
        _caption(pages, f"{title} ({plot.unit})" if plot.unit else title, "", note)
        drawn_heat = 0 if place else heat
        pages.plot(paper.picture(recording, plot, last=last, heat=drawn_heat))


def _gpus(pages: Pages, recording: Recording, drawn: Sequence[Drawn]) -> None:
    """The GPUs: each one where there are few, else those that were used least."""
    plots = [plot for section in drawn for plot in section.plots if plot.of == "gpu"]
    shown = [plot for plot in plots if not plot.more]
    fit = min(_GPUS, int((pages.left - 66) / (TABLE * LINE + 3)))
    if not shown or fit < 2:
        return
    head, columns = ["GPU"], []
    for plot in [*shown, *(one for one in plots if one.id == "gpu-temperature")]:
        head.append(f"{plot.title} ({plot.unit})")
        columns.append(plot.average)
        if plot.id in ("gpu-util", "gpu-memory"):
            head.append("highest")
            columns.append(plot.peak)
    names = recording.gpu_names()
    order = list(range(len(names)))
    title = f"The {words.plural(len(names), 'GPU')}: means over the run"
    if len(names) > fit:
        use = columns[0] if lowest(columns[0]) >= 0 else np.zeros(len(names))
        order = sorted(order, key=lambda k: float(use[k]))[:fit]
        title = f"The {fit} least used of {len(names):,} GPUs: means over the run"
    pages.heading(title, 30, mark=False)
    body = [(names[k], *(job.number(float(column[k])) for column in columns)) for k in order]
    table(pages, Table(title, tuple(head), tuple(body)))


def _section(pages: Pages, recording: Recording, drawn: Drawn) -> None:
    """A section's plots, and what is to be said of channels that have none."""
    pages.heading(drawn.section.title, _channel_height(drawn.plots[0]) if drawn.plots else 20)
    for plot in drawn.plots:
        pages.need(_channel_height(plot))
        note = written(plot.note)
        if len(plot.average) > 1:
            ceiling = f"{job.number(plot.ceiling)} {plot.unit}".strip()
            light = f"A row of colours per {_row(recording, plot)}: light is {ceiling}."
            note = f"{note} {light}".strip()
        _figure(pages, recording, plot, note)
    for sentence in drawn.said:
        pages.paragraph(written(sentence))
    pages.y += 6


def _row(recording: Recording, plot: Figure) -> str:
    """Return what has a row in a figure, and how many there are."""
    rows = next(len(trace["y"]) for trace in plot.data if trace["type"] == "heatmap")
    if rows == len(plot.average):
        return f"{ {'gpu': 'GPU', 'host': 'node', 'rank': 'rank'}[plot.of] } ({rows:,})"
    each = -(-len(recording.heads) // rows)
    return f"node ({rows:,})" if each == 1 else f"{each} nodes ({rows:,})"


def _figure(pages: Pages, recording: Recording, plot: Figure, note: str) -> None:
    _caption(
        pages, f"{plot.title} ({plot.unit})" if plot.unit else plot.title, note, _numbers(plot)
    )
    pages.plot(paper.picture(recording, plot))
    pages.y += 4


def _channel_height(plot: Figure) -> float:
    """Points that a channel takes with all that belongs to it."""
    return 120.0 + paper.heat_height(plot)


def _numbers(plot: Figure) -> str:
    found = []
    for name, values in plot.values.items():
        said = ", ".join(f"{what} {job.number(value)}" for what, value in values.items())
        found.append(f"{name}: {said}" if name else said)
    return " · ".join(found)


def _caption(pages: Pages, title: str, note: str, aside: str = "") -> None:
    """The title of a plot with what stands at the right of it, and what is to be known of it."""
    if aside:
        pages.line_of(written(aside), SMALL, align="R", colour=GREY, stay=True)
    pages.line_of(written(title), 8, width=INNER / 2, bold=True)
    if note:
        pages.paragraph(note)


def _training(pages: Pages, recording: Recording) -> None:
    """Loss, rate and the like over time, and the timeline of starts and events."""
    pages.heading("Steps and events", 120)
    progress = curves(recording)
    for one in progress:
        pages.need(120)
        _figure(pages, recording, one, one.note)
    if not progress:
        pages.paragraph("The training has written down no step: log_metrics(step=…, loss=…) does.")
    if left := left_out(recording):
        pages.paragraph(written(f"Logged as well, without a plot: {some(left, 20)}"))
    if (lanes := timeline(recording)) is not None:
        pages.need(120)
        _figure(pages, recording, lanes, "")


def _job(pages: Pages, recording: Recording) -> None:
    """All that is known of the job, in full."""
    pages.heading("The job", 60)
    portal = recording.facts.portal
    for name, text in [*job.facts(recording), *([("The site's report", portal)] if portal else [])]:
        _fact(pages, name, text, label=110, width=INNER)
    pages.y += 4
    _captioned(pages, job.attempts_table(recording))


def _tables(pages: Pages, recording: Recording, drawn: Sequence[Drawn]) -> None:
    """Everything in numbers: channels, GPUs, file systems, events, nodes."""
    plots = [plot for one in drawn for plot in one.plots]
    pages.heading("In numbers", 80)
    if plots:
        _captioned(pages, job.summary(recording, plots))
    _captioned(pages, job.gpu_table(recording, plots))
    _captioned(pages, job.fs_table(recording))
    _captioned(pages, job.event_table(recording), "Events")
    _captioned(pages, job.node_table(recording), "Nodes")


def _captioned(pages: Pages, one: Table | None, mark: str = "") -> None:
    if one is None or not one.rows:
        return
    pages.need(80)
    if mark:
        pages.start_section(mark)
        pages.marks.append((mark, pages.page_no()))
    pages.line_of(written(one.caption), 8.5, bold=True)
    table(pages, one)


def _contents(pages: Pages) -> None:
    """Write the contents, in one line at the bottom of the first page."""
    pages.set_auto_page_break(False)
    last, pages.page = pages.page, 1
    pages.current_font_is_set_on_page = False
    pages.set_y(pages.h - BOTTOM + 2)
    text = " · ".join(f"{title} {number}" for title, number in pages.marks)
    pages.line_of(f"Pages: {text}", 7, colour=GREY)
    pages.page = last
    pages.current_font_is_set_on_page = False
