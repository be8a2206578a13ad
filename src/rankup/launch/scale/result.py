"""The table, the sentences and the page of a series, from the runs of its points."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...base.files import write_atomic
from ...base.text import clean, columns
from ...monitor import words
from ...monitor.report.scaling import Point, Scaling, digits, percent, scaling
from ...monitor.report.scaling_page import scaling_html
from ...site.config import Config
from ...slurm.client import Client
from .. import report
from . import series as record
from .series import Outcome, Series, outcomes

# Of measures that a run has, those that say how good its model is, the most telling first.
_TELLING = ("test", "valid", "eval", "val")
_COLUMNS = 2
_SAME = 1e-3  # relative: a loss that differs by less is the same


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
            known = report.facts(one.path, config, client)
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
        rows = [_Row(one, at.get(one.count)) for one in found]
        lines += ["", _table(rows, related, thing), ""]
        lines += [related.headline, *related.sentences]
        lines += _sentences(rows, thing, series.weak)
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


@dataclass(frozen=True)
class _Row:
    """A point of the table; the numbers are None where a run tells none."""

    outcome: Outcome
    point: Point | None


def _table(rows: Sequence[_Row], found: Scaling | None, thing: str) -> str:
    """The points below one another, those that are not through with their state."""
    names = _measures([row.outcome for row in rows])
    unit = found.speed_unit if found and found.speed_unit else "speed"
    head = [f"{thing}s", "nodes", "time", unit, "speed-up", "efficiency", "batch", "steps"]
    lines = [[*head, "loss", *names]]
    for row in rows:
        point, metrics = row.point, row.outcome.metrics
        if point is None:
            lines.append([str(row.outcome.count), *["-"] * (len(head) + len(names))])
            continue
        lines.append(
            [
                str(point.count),
                str(point.nodes),
                words.duration(point.seconds),
                digits(point.speed),
                digits(point.speed_up),
                percent(point.efficiency),
                digits(point.batch),
                f"{point.steps:,}",
                _value(point.loss),
                *(_value(metrics.get(name)) for name in names),
            ]
        )
    return "\n".join(columns(lines))


def _measures(found: Sequence[Outcome]) -> list[str]:
    """The names of the measures that every finished point has, the most telling ones."""
    done = [one for one in found if one.done]
    common = [name for name in (done[0].metrics if done else ()) if name != "loss"]
    common = [name for name in common if all(name in one.metrics for one in done)]

    def order(name: str) -> tuple[int, str]:
        places = [place for place, part in enumerate(_TELLING) if part in name]
        return (min(places, default=len(_TELLING)), name)

    return sorted(common, key=order)[:_COLUMNS]


def _sentences(rows: Sequence[_Row], thing: str, weak: bool) -> list[str]:
    """Say in numbers how more GPUs changed the number of steps and the result."""
    known = [row for row in rows if row.point is not None]
    if len(known) < 2:
        return []
    first, last = known[0], known[-1]
    a, b = first.point, last.point
    assert a is not None
    assert b is not None
    names = _measures([row.outcome for row in known]) or ["loss"]
    before = _of(first, names[0])
    after = _of(last, names[0])
    result = ""
    if before is not None and after is not None and before:
        change = (after - before) / abs(before)
        result = f"{names[0]} {_value(after)} instead of {_value(before)} ({change:+.1%})"
    steps = bool(a.steps and b.steps and abs(a.steps - b.steps) > 0.02 * a.steps)
    if steps:
        said = f"{b.count} {thing}s took {b.steps:,} steps instead of {a.steps:,}"
        if a.batch and b.batch:
            said += f", with a batch of {digits(b.batch)} instead of {digits(a.batch)}"
        found = [f"{said}: {result}." if result else f"{said}."]
        if weak and result:
            found.append(
                f"With a batch for each {thing}, more {thing}s mean fewer steps over the same "
                "data, which is another run, not the same one faster. Leave --weak away to keep "
                "the batch, or look for a learning rate anew for each batch."
            )
        return found
    if result and before is not None and after is not None:
        spread = max(abs(_of(row, names[0]) or before) for row in known)
        low = min(abs(_of(row, names[0]) or before) for row in known)
        if spread - low <= _SAME * spread:
            return [f"The result is the same on all: {names[0]} {_value(before)}."]
        return [f"The result differs: {result}; see docs/same-run.md for what has to be equal."]
    return []


def _of(row: _Row, name: str) -> float | None:
    if name in row.outcome.metrics:
        return row.outcome.metrics[name]
    return row.point.loss if row.point and name == "loss" else None


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
