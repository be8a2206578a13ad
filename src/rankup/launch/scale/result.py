"""The table, the sentences and the page of a series, from the runs of its points."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from ...base.files import write_atomic
from ...base.text import clean
from ...monitor.report.scaling import scaling
from ...monitor.report.scaling_page import scaling_html
from ...site.config import Config
from ...slurm.client import Client
from .. import facts, report
from . import series as record
from .outcome import Outcome, outcomes
from .series import Series
from .table import Row, sentences, table


def show_series(path: Path, config: Config, client: Client) -> int:
    """Print how a series is, for `rankup status`."""
    series = record.read(path)
    show(path, series, outcomes(path, series, client), config, client)
    return 0


def as_json(path: Path, client: Client) -> dict[str, object]:
    """The series and the state of its points."""
    series = record.read(path)
    found = outcomes(path, series, client)
    points = [{**asdict(one), "path": None if one.path is None else str(one.path)} for one in found]
    return {**asdict(series), "points": points}


def show(path: Path, series: Series, found: list[Outcome], config: Config, client: Client) -> None:
    """Print the state of every point, and the table of those that are through; write both.

    A page that cannot be made takes nothing from what is printed.
    """
    judged = {}
    for one in found:
        if one.done and one.path is not None:
            known = facts.facts(one.path, None, config, client)
            judged[one.count] = report.judge(one.path, known)
    through = [one for one in found if one.count in judged]
    related = None
    if len(through) > 1:
        recordings = [judged[one.count].recording for one in through]
        related = scaling(recordings, counts=[one.count for one in through])
    thing = related.thing if related else "rank"
    at = {point.count: point for point in related.points} if related else {}
    lines = [_heading(series)]
    lines += [
        clean(f"{one.count}: {one.state.lower()}. {one.words}".rstrip())
        for one in found
        if not one.done
    ]
    if related:
        rows = [Row(one, at.get(one.count)) for one in found]
        lines += ["", table(rows, related, thing), ""]
        lines += [related.headline, *related.sentences]
        lines += sentences(rows, thing, series.weak)
    elif through:
        lines.append("The table comes with the second point that is through.")
    text = "\n".join(lines) + "\n"
    print(text, end="")
    try:
        write_atomic(path / "scaling.txt", text, private=True)
        if related:
            parts = [
                (one.recording, one.diagnoses, one.cost, one.verdict) for one in judged.values()
            ]
            page = scaling_html(parts, counts=list(judged))
            write_atomic(path / "scaling.html", page, private=True)
            print(f"scaling.html, scaling.txt in {clean(str(path))}")
    except OSError as error:
        print(clean(f"warning: {path}: {error.strerror or error}"), file=sys.stderr)


def _heading(series: Series) -> str:
    name = Path(series.target).name
    how = "batch grows with the GPUs (weak)" if series.weak else "same batch on all (strong)"
    return clean(f"{name} on {', '.join(map(str, series.counts))}: {how}")
