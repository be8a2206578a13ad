"""`report.pdf`: a run on A4 pages, the first of which is enough to decide."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from ...base.amounts import some
from ...base.files import replacing
from .. import words
from ..billing import Cost
from ..diagnose import Diagnosis, Verdict, not_judged, overlap
from ..recording import Recording
from . import job
from .curves import curves, left_out, timeline
from .drawing import draw, height
from .figures import Drawn, Figure, blank, sections
from .job import Table
from .paper import (
    ACCENT,
    BODY,
    COLOURS,
    FAINT,
    GREY,
    INNER,
    LEFT,
    LINE,
    PALE,
    SMALL,
    STYLE,
    Paper,
    folded,
    measure,
    written,
)

_TITLE, _VERDICT, _FACT = 15.0, 11.5, 7.6  # points, as all that follows
_FACTS = 300.0  # width of what is known of the job, beside the bill
_OVERVIEW = 230.0  # what plots take on page 1, below the findings
_FINDINGS = 6  # of page 1


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
        matplotlib.rcParams.update(STYLE)
        paper, drawn = Paper(), sections(recording)
        brief = not_judged(verdict, diagnoses)
        _title(paper, recording)
        _headline(paper, verdict, recording.running, brief)
        _facts_and_bill(paper, recording, cost, brief)
        shown = _findings(paper, diagnoses)
        _overview(paper, recording, drawn)
        paper.add_page()
        if diagnoses[shown:]:
            paper.heading("More findings", 60)
            for diagnosis in diagnoses[shown:]:
                _finding(paper, diagnosis)
        for section in drawn:
            _section(paper, recording, section)
        _training(paper, recording)
        _job(paper, recording)
        _tables(paper, recording, drawn)
        name = written(recording.facts.name or recording.facts.run)
        running = f"{name} · {written(recording.facts.run)}"
        data = paper.finish(f"rankup report: {name}", running)
    with replacing(target, private=True) as file:  # it has the command with its arguments
        file.write(data)


def _title(paper: Paper, recording: Recording) -> None:
    facts, top = recording.facts, paper.y
    moment = time.strftime("%Y-%m-%d %H:%M %Z")
    for line in ("rankup report", f"made {moment}"):
        paper.text(line, SMALL, colour=GREY, right=True)
        paper.y += SMALL * LINE
    paper.y = top
    width = INNER - 140
    paper.text(written(facts.name or facts.run), _TITLE, bold=True, width=width)
    paper.y += _TITLE * LINE
    jobs = ", ".join(dict.fromkeys(attempt.job for attempt in facts.attempts if attempt.job))
    where = ", ".join(filter(None, [facts.site, facts.partition]))
    parts = [facts.run, f"job {jobs}" if jobs else "", where]
    paper.text(written(" · ".join(filter(None, parts))), colour=GREY, width=width)
    paper.y += BODY * LINE + 5


def _headline(paper: Paper, verdict: Verdict, still: bool, brief: bool) -> None:
    """Write the verdict in a box; what is cut of it stands in full among the findings."""
    width = INNER - 26
    head = folded(written(verdict.headline), _VERDICT, width, bold=True)[:4]
    sentences = [*verdict.sentences, *(["The run was still going on."] if still else [])]
    text = [line for said in sentences if said for line in folded(written(said), BODY, width)][:8]
    tall = (len(head) * _VERDICT + len(text) * BODY) * LINE + 14
    top = paper.y
    paper.box(LEFT, top, INNER, tall, PALE)
    paper.box(LEFT, top, 4, tall, GREY if brief else COLOURS[verdict.level])
    paper.y += 6
    paper.lines(head, _VERDICT, x=LEFT + 14, bold=True)
    paper.lines(text, x=LEFT + 14)
    paper.y = top + tall + 9


def _facts_and_bill(paper: Paper, recording: Recording, cost: Cost, brief: bool) -> None:
    """Write what is known of the job, and beside it the efficiency and the bill."""
    top = paper.y
    # The name and the run stand in the title; the rest is on a page of its own.
    pairs = [pair for pair in job.facts(recording) if pair[0] not in ("Run", "Name", "Directory")]
    for name, text in pairs[:14]:
        _fact(paper, name, text, label=72, width=_FACTS, most=2)
    low, paper.y = paper.y, top
    _bill(paper, cost, brief)
    paper.y = max(low, paper.y) + 8


def _fact(paper: Paper, name: str, text: str, label: float, width: float, most: int = 99) -> None:
    lines = folded(written(text), _FACT, width - label)
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1][:-1]}…"]
    paper.need(_FACT * LINE * min(2, len(lines)))
    paper.text(written(name), _FACT, width=label - 4, colour=GREY)
    paper.lines(lines, _FACT, x=LEFT + label)


def _bill(paper: Paper, cost: Cost, brief: bool) -> None:
    x = LEFT + _FACTS + 14
    width = LEFT + INNER - x
    known, colour = "not known", GREY
    if cost.efficiency is not None:
        level = "ok" if cost.efficiency >= 0.7 else "warning" if cost.efficiency >= 0.4 else "error"
        known, colour = f"{100 * cost.efficiency:.0f} %", GREY if brief else COLOURS[level]
    paper.text(known, 22, x=x, bold=True, colour=colour)
    paper.y += 11
    paper.text("efficiency", x=x + measure(known, 22, bold=True) + 8, colour=GREY)
    paper.y += 22 * LINE - 11
    paper.paragraph(written(f"= {cost.formula}"), x=x)
    paper.y += 4
    if cost.efficiency is not None:
        paper.box(x, paper.y, width, 6, FAINT)
        paper.box(x, paper.y, width * min(1.0, max(0.0, cost.efficiency)), 6, colour)
        paper.y += 12
    for name, value in {"billed": cost.billed, "used": cost.used, "wasted": cost.wasted}.items():
        if value is None:
            continue
        paper.text(name, x=x, colour=GREY)
        if cost.billed and name != "billed":
            paper.text(f"{100 * value / cost.billed:.0f} %", x=x, colour=GREY, right=True)
        paid = f"{words.amount(value)} {written(cost.unit)}"
        paper.text(paid, x=x, width=width - 34, bold=name != "used", right=True)
        paper.y += BODY * LINE
    rate = words.amount(cost.per_node_hour)
    said = f"{cost.node_hours:,.2f} node-hours at {rate} {written(cost.unit)} each"
    if not cost.priced:
        said += "; this site has no unit of its own"
    if 0 < cost.seen < 0.98:
        said += f"; samples tell of {words.known_part(cost.seen)} of the time"
    paper.paragraph(said, x=x)


def _findings(paper: Paper, diagnoses: Sequence[Diagnosis]) -> int:
    """Write as many findings as find room, the dearest first; return how many those are."""
    if not diagnoses:
        return 0
    bottom = paper.y + paper.left - _OVERVIEW
    paper.heading("What to change", 40, mark=False)
    for number, diagnosis in enumerate(diagnoses):
        more = len(diagnoses) - number
        room = bottom - paper.y - (14 if more > 1 else 0)
        if number and (number == _FINDINGS or _height(diagnosis) > room):
            paper.paragraph(f"{words.plural(more, 'more finding')} on the next page.")
            return number
        _finding(paper, diagnosis)
    if said := overlap(diagnoses):
        paper.paragraph(said)
    return len(diagnoses)


def _finding(paper: Paper, diagnosis: Diagnosis) -> None:
    """Write what was seen, what it cost, and what to change."""
    message, todo = _texts(diagnosis)
    paper.need(min(_height(diagnosis), 200))
    colour = COLOURS[diagnosis.level]
    paper.box(LEFT, paper.y + 1, 3, BODY * LINE * min(len(message), 3) - 1, colour)
    if diagnosis.cost is not None:
        paid = f"{words.amount(diagnosis.cost)} {written(diagnosis.unit)}"
        paper.text(paid, x=LEFT + INNER - 90, bold=True, right=True)
    paper.text(written(diagnosis.code), x=LEFT + 10, width=41, bold=True, colour=colour)
    paper.lines(message, x=LEFT + 52)
    if todo:
        paper.need(BODY * LINE)
        paper.text("→", x=LEFT + 40, colour=ACCENT)
        paper.lines(todo, x=LEFT + 52, colour=ACCENT)
    paper.y += 7


def _height(diagnosis: Diagnosis) -> float:
    message, todo = _texts(diagnosis)
    return (len(message) + len(todo)) * BODY * LINE + 7


def _texts(diagnosis: Diagnosis) -> tuple[list[str], list[str]]:
    # All lines leave room for the cost at the right, so that nothing can run into it.
    message = folded(written(diagnosis.message), BODY, INNER - 52 - 92)
    return message, folded(written(diagnosis.todo), BODY, INNER - 52) if diagnosis.todo else []


def _overview(paper: Paper, recording: Recording, drawn: Sequence[Drawn]) -> None:
    """Draw use and power of all GPUs over time (of all cores without GPUs)."""
    known = {plot.id: plot for section in drawn for plot in section.plots}
    shown = [known[name] for name in ("gpu-util", "gpu-power") if name in known]
    shown = shown or [known[name] for name in ("cpu-use", "memory-node") if name in known]
    notes = ["grey: nothing was sampled"] if shown and blank(recording) else []
    if len(recording.facts.attempts) > 1:
        notes.append("dashed: the run began again")
    paper.heading("Over time", 20, aside="; ".join(notes), mark=False)
    if not shown:
        paper.paragraph("No sample was recorded.", BODY)
    for plot in shown:
        if height(plot) <= paper.left:
            _figure(paper, recording, plot)


def _section(paper: Paper, recording: Recording, drawn: Drawn) -> None:
    """Draw a section's plots, and say what is to be said of channels that have none."""
    paper.heading(drawn.section.title, height(drawn.plots[0]) if drawn.plots else 20)
    for plot in drawn.plots:
        _figure(paper, recording, plot)
    for sentence in drawn.said:
        paper.paragraph(written(sentence))
    paper.y += 6


def _figure(paper: Paper, recording: Recording, plot: Figure) -> None:
    """Draw a figure below its title, its numbers and how to read it."""
    paper.need(height(plot))
    numbers = []
    for name, values in plot.values.items():
        said = ", ".join(f"{what} {job.number(value)}" for what, value in values.items())
        numbers.append(f"{name}: {said}" if name else said)
    title = f"{plot.title} ({plot.unit})" if plot.unit else plot.title
    if plot.of == "gpu" and not title.startswith("GPU"):
        title = f"GPU {title[0].lower()}{title[1:]}"
    wide = min(INNER * 0.6, measure(written(title), 8, bold=True))
    paper.text(written(title), 8, width=wide, bold=True)
    x = LEFT + wide + 12
    paper.text(written(" · ".join(numbers)), SMALL, x=x, colour=GREY, right=True)
    paper.y += 8 * LINE
    note = written(plot.note)
    if len(plot.average) > 1:
        light = f"{job.number(plot.ceiling)} {plot.unit}".strip()
        note = f"{note} A row of colours per {_row(recording, plot)}: light is {light}.".strip()
    if note:
        paper.paragraph(note)
    draw(paper, recording, plot)
    paper.y += 4


def _row(recording: Recording, plot: Figure) -> str:
    """Return what has a row in a figure, and how many there are."""
    rows = next(len(trace["y"]) for trace in plot.data if trace["type"] == "heatmap")
    if rows == len(plot.average):
        return f"{ {'gpu': 'GPU', 'host': 'node', 'rank': 'rank'}[plot.of] } ({rows:,})"
    each = -(-len(recording.heads) // rows)
    return f"node ({rows:,})" if each == 1 else f"{each} nodes ({rows:,})"


def _training(paper: Paper, recording: Recording) -> None:
    """Draw loss, rate and the like over time, and the timeline of starts and events."""
    paper.heading("Steps and events", 120)
    progress = curves(recording)
    for curve in progress:
        _figure(paper, recording, curve)
    if not progress:
        paper.paragraph("The training has written down no step: log_metrics(step=…, loss=…) does.")
    if left := left_out(recording):
        paper.paragraph(written(f"Logged as well, without a plot: {some(left, 20)}"))
    if (lanes := timeline(recording)) is not None:
        _figure(paper, recording, lanes)


def _job(paper: Paper, recording: Recording) -> None:
    """Write all that is known of the job, in full."""
    paper.heading("The job", 60)
    portal = recording.facts.portal
    for name, text in [*job.facts(recording), *([("The site's report", portal)] if portal else [])]:
        _fact(paper, name, text, label=110, width=INNER)
    paper.y += 4
    _captioned(paper, job.attempts_table(recording))


def _tables(paper: Paper, recording: Recording, drawn: Sequence[Drawn]) -> None:
    """Write everything in numbers: channels, GPUs, file systems, events, nodes."""
    plots = [plot for section in drawn for plot in section.plots]
    paper.heading("In numbers", 80)
    if plots:
        _captioned(paper, job.summary(recording, plots))
    _captioned(paper, job.gpu_table(recording, plots))
    _captioned(paper, job.fs_table(recording))
    _captioned(paper, job.event_table(recording), "Events")
    _captioned(paper, job.node_table(recording), "Nodes")


def _captioned(paper: Paper, table: Table | None, mark: str = "") -> None:
    if table is None or not table.rows:
        return
    paper.need(80)
    if mark:
        paper.marks.append((mark, len(paper.pages)))
    paper.lines(folded(written(table.caption), BODY, INNER, bold=True), bold=True)
    paper.table(table)
