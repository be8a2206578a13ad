"""What a series gave, as a table and in sentences with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...monitor import words
from ...monitor.report.scaling import Point, Scaling
from .outcome import Outcome

# Of measures that a run has, those that say how good its model is, the most telling first.
_TELLING = ("test", "valid", "eval", "val")
_COLUMNS = 2
SAME = 1e-3  # relative: a loss that differs by less is the same


@dataclass(frozen=True)
class Row:
    """A point of the table; the numbers are None where a run tells none."""

    outcome: Outcome
    point: Point | None


def table(rows: Sequence[Row], found: Scaling | None, thing: str) -> str:
    """The points below one another, those that are not through with their state."""
    names = measures([row.outcome for row in rows])
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
                *(str(point.count), str(point.nodes), words.duration(point.seconds)),
                *(_digits(point.speed), _digits(point.speed_up), _percent(point.efficiency)),
                *(_digits(point.batch), f"{point.steps:,}", _value(point.loss)),
                *(_value(metrics.get(name)) for name in names),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def measures(found: Sequence[Outcome]) -> list[str]:
    """The names of the measures that every finished point has, the most telling ones."""
    done = [one for one in found if one.done]
    common = [name for name in (done[0].metrics if done else ()) if name != "loss"]
    common = [name for name in common if all(name in one.metrics for one in done)]

    def order(name: str) -> tuple[int, str]:
        places = [place for place, part in enumerate(_TELLING) if part in name]
        return (min(places, default=len(_TELLING)), name)

    return sorted(common, key=order)[:_COLUMNS]


def sentences(rows: Sequence[Row], thing: str, weak: bool) -> list[str]:
    """What more GPUs did to the number of steps and to the result, with the numbers."""
    known = [row for row in rows if row.point is not None]
    if len(known) < 2:
        return []
    first, last = known[0], known[-1]
    a, b = first.point, last.point
    assert a is not None
    assert b is not None
    names = measures([row.outcome for row in known]) or ["loss"]
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
            said += f", with a batch of {_digits(b.batch)} instead of {_digits(a.batch)}"
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
        if spread - low <= SAME * spread:
            return [f"The result is the same on all: {names[0]} {_value(before)}."]
        return [f"The result differs: {result}; see docs/same-run.md for what has to be equal."]
    return []


def _of(row: Row, name: str) -> float | None:
    if name in row.outcome.metrics:
        return row.outcome.metrics[name]
    return row.point.loss if row.point and name == "loss" else None


def _digits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
