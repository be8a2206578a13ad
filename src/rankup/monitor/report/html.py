"""The report of a run as one page: the verdict first, then all that led to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ...base.findings import Level
from .. import words
from ..cost import Cost
from ..diagnose import Diagnosis
from ..diagnose.codes import CODES
from ..recording import Recording
from ..verdict import Verdict, not_judged
from . import job
from .data import Mark, payload
from .plots import row_names, sections
from .progress import curves, left_out
from .shell import render

SCRIPTS = ("decode.js", "words.js", "figures.js", "view.js", "page.js")
LEVELS: dict[Level, str] = {"ok": "Good", "warning": "Warning", "error": "Problem"}


@dataclass(frozen=True)
class Shown:
    """A finding as the page shows it.

    Attributes:
        cost: with its unit; empty without one.
        section: of the page, that its button leads to.
        marked: whether there is a time or a place to mark.
    """

    code: str
    title: str
    level: Level
    word: str
    place: str
    message: str
    todo: str
    cost: str
    section: str
    marked: bool


@dataclass(frozen=True)
class Part:
    """A part of the bill; share of all of it, 0 to 1."""

    title: str
    amount: str
    share: float
    kind: str


def html(recording: Recording, diagnoses: Sequence[Diagnosis], cost: Cost, verdict: Verdict) -> str:
    """The page: one file, without anything from a network, of less than 6 MB for any run."""
    drawn = sections(recording)
    progress = curves(recording)
    marks = [_mark(one, recording) for one in diagnoses]
    offset = time.localtime(recording.begin).tm_gmtoff
    document, arrays = payload(recording, drawn, progress, marks, float(offset))
    names = row_names(recording)
    gpu_plots = [plot for section in drawn for plot in section.plots if section.section.id == "gpu"]
    brief = not_judged(verdict, diagnoses)
    several = any(1 < len(plot.average) <= 16 for section in drawn for plot in section.plots)
    return render(
        "run.html.j2",
        SCRIPTS,
        document,
        arrays,
        title=f"{recording.facts.name or recording.facts.run}: rankup report",
        run=recording.facts,
        portal=portal(recording.facts.portal),
        verdict=verdict,
        level="brief" if brief else verdict.level,
        level_word="Not judged" if brief else LEVELS[verdict.level],
        as_of=job.stamp(recording.end) if _runs(recording) else "",
        findings=[_shown(one) for one in diagnoses],
        cost=cost,
        parts=_parts(cost),
        amount=words.amount,
        ran_for=words.duration(job.duration_of(recording)),
        size=_size(recording),
        queued="" if recording.facts.queued is None else words.duration(recording.facts.queued),
        facts=job.facts(recording),
        lives=job.lives_table(recording),
        nodes=job.node_table(recording),
        sections=drawn,
        summaries={one.section.id: job.summary(recording, one.plots, names) for one in drawn},
        gpu_table=job.gpu_table(recording, gpu_plots),
        fs_table=job.fs_table(recording),
        cores_drawn=any(plot["id"] == "cpu-cores" for plot in document["plots"]),
        curves=progress,
        left_out=left_out(recording),
        timeline=document["plots"][-1]["lanes"],
        events=job.event_table(recording),
        several=several,
        number=job.number,
        made=job.stamp(time.time()),
    )


def portal(url: str | None) -> str:
    """The link to the site's own report; empty for what is no web page."""
    try:
        parts = urlsplit(url or "")
    except ValueError:
        return ""
    return (url or "") if parts.scheme in ("http", "https") and parts.netloc else ""


def _runs(recording: Recording) -> bool:
    lives = recording.facts.lives
    return recording.running or bool(lives and lives[-1].state == "RUNNING")


def _mark(diagnosis: Diagnosis, recording: Recording) -> Mark:
    begin = recording.begin
    return Mark(
        windows=tuple((float(a - begin), float(b - begin)) for a, b in diagnosis.windows),
        gpus=tuple(map(int, diagnosis.gpus)),
        nodes=tuple(map(int, diagnosis.nodes)),
    )


def _shown(diagnosis: Diagnosis) -> Shown:
    cost = ""
    if diagnosis.cost:
        cost = f"{words.amount(diagnosis.cost)} {diagnosis.unit}"
    return Shown(
        code=diagnosis.code,
        title=CODES[diagnosis.code].title,
        level=diagnosis.level,
        word="Note" if diagnosis.level == "ok" else LEVELS[diagnosis.level],
        place=diagnosis.place,
        message=diagnosis.message,
        todo=diagnosis.todo,
        cost=cost,
        section=CODES[diagnosis.code].section,
        marked=bool(diagnosis.windows or diagnosis.gpus or diagnosis.nodes),
    )


def _parts(cost: Cost) -> list[Part]:
    """What was used, what each finding wasted, and the rest: all of the bill."""
    if cost.used is None or not cost.billed:
        return []

    def part(title: str, units: float, kind: str) -> Part:
        return Part(title, words.amount(units), units / cost.billed, kind)

    found = [part(f"{CODES[code].title} ({code})", units, "lost") for code, units in cost.findings]
    rest = [part("start-up, short waits and the like", cost.other or 0.0, "rest")]
    return [part("did work", cost.used, "used"), *found, *(one for one in rest if one.share > 0)]


def _size(recording: Recording) -> str:
    nodes = len(recording.heads) or recording.facts.nodes
    text = words.plural(nodes, "node")
    per_node = recording.facts.gpus
    gpus = per_node * nodes if per_node is not None else len(recording.gpus)
    return f"{text}, {words.plural(gpus, 'GPU')}" if gpus else text
