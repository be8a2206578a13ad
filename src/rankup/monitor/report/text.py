"""The report for a terminal: ten lines, more only where something was found."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

import numpy as np

from ...base import amounts
from ...base.findings import Level
from .. import billing, words
from ..billing import Cost, cost
from ..diagnose import Diagnosis, Verdict, overlap, unknown, verdict
from ..profiles import Profile
from ..recording import Recording, weighted

_SIGNS: dict[Level, str] = {"ok": "ok", "warning": "WARN", "error": "ERROR"}
_COLOURS: dict[Level, str] = {"ok": "32", "warning": "33", "error": "1;31"}
_LABEL = 7  # columns
_NARROWEST = 40
_NUMBER = re.compile(r"(?<=[0-9]) (?=%|[a-zA-Z]{1,3}\b|[a-z]{3,4}-h)")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def text(
    recording: Recording,
    diagnoses: Sequence[Diagnosis],
    width: int = 80,
    more: str | None = None,
    *,
    paid: Cost | None = None,
    said: Verdict | None = None,
    colours: bool = False,
) -> str:
    """The report in plain text, lines of at most `width` columns where words allow it.

    The verdict comes first, then the run, its GPUs, its steps, its cost, and a block for each
    finding.

    Args:
        more: where the HTML report lies, or the command that draws it.
        paid, said: cost and verdict, where they are known already.
    """
    width = max(_NARROWEST, width)
    paid = cost(recording) if paid is None else paid
    said = verdict(recording, diagnoses, paid) if said is None else said
    lines = _wrapped(said.headline, width)
    if colours:
        lines = [_coloured(line, said.level) for line in lines]
    # The others are said below, with their numbers.
    lines += _wrapped(said.sentences[0], width)
    lines.append("")
    for label, line in _rows(recording, paid):
        lines += _labelled(label, line, width)
    for one in diagnoses:
        if one.message.lower() not in said.headline.lower():
            block = _finding(one, width)
            if colours:
                block[0] = _coloured(block[0][:_LABEL], one.level) + block[0][_LABEL:]
            lines += block
    lines += _labelled("", overlap(diagnoses), width) if overlap(diagnoses) else []
    lines += _explained(diagnoses, width)
    if more is not None:
        lines += _labelled("more", words.shown(more), width)
    return "\n".join(lines) + "\n"


def show(
    recording: Recording,
    diagnoses: Sequence[Diagnosis],
    out: TextIO,
    more: str | None = None,
    *,
    paid: Cost | None = None,
    said: Verdict | None = None,
) -> None:
    """Print the report: on a terminal as wide as that, up to 100 columns, and in its colours."""
    colours = out.isatty()
    width = min(100, shutil.get_terminal_size().columns) if colours else 80
    out.write(text(recording, diagnoses, width, more, paid=paid, said=said, colours=colours))


def _rows(recording: Recording, paid: Cost) -> Iterator[tuple[str, str]]:
    """Labels and lines of what every report has."""
    facts = recording.facts
    yield "run", words.shown(f"{facts.name} {facts.run}: {facts.command}")
    yield "time", _time(recording)
    yield "nodes", _nodes(recording)
    yield from _gpus(recording)
    if len(recording.steps.step):
        yield "steps", _steps(recording)
    if recording.profiles:
        yield "trace", _profile(recording.profiles)
    yield "cost", _cost(paid)
    for sentence in unknown(recording, paid):
        yield "record", sentence


def _time(recording: Recording) -> str:
    known = billing.attempts(recording)
    last = known[-1]
    end = billing.end_of(last, recording)
    took = words.duration(sum(billing.bill(recording).seconds))
    limit = f" of {words.duration(last.limit)}" if last.limit and len(known) == 1 else ""
    attempts = f" in {len(known)} attempts" if len(known) > 1 else ""
    line = f"{words.clock(known[0].begin)} to {words.clock(end)}, {took}{limit}{attempts}"
    line += f", {words.shown(last.state)}"
    if recording.facts.queued:
        line += f"; {words.duration(recording.facts.queued)} in the queue"
    missing = sum(gap.end - gap.begin for gap in recording.gaps if gap.why != "between attempts")
    return line + (f"; gaps of {words.duration(missing)} in the record" if missing >= 1 else "")


def _nodes(recording: Recording) -> str:
    facts = recording.facts
    names = [words.shown(head.node) for head in recording.heads] or [
        words.shown(name) for name in billing.attempts(recording)[-1].nodes
    ]
    line = amounts.some(names) or f"{facts.nodes} (not one was sampled)"
    where = ", ".join(words.shown(part) for part in (facts.site, facts.partition) if part)
    kinds = dict.fromkeys(words.shown(gpu.name) for gpu in recording.gpus)
    line += f" ({where})" if where else ""
    if kinds:
        per_node = len(recording.gpus) // max(1, len(recording.heads))
        line += f", {per_node} x {' and '.join(list(kinds)[:3])}"
    ranks = facts.ranks
    return line + (f", {words.plural(ranks, 'rank')} per node" if ranks else "")


def _gpus(recording: Recording) -> Iterator[tuple[str, str]]:
    """Means over the run of the least, of all, and of the most of its GPUs."""
    columns = np.flatnonzero(billing.billed(recording))
    if not len(columns):
        cpu = recording.host["cpu"]
        if np.isfinite(cpu.mean).any():
            low, high = np.nanmin(cpu.low), np.nanmax(cpu.high)
            yield "CPU", f"least {low:.0f} %, mean {np.nanmean(cpu.mean):.0f} %, most {high:.0f} %"
        return
    seconds = np.nan_to_num(recording.covered * np.float32(recording.width))
    seconds = seconds[:, recording.gpu_node[columns]]
    label = "GPUs"
    for name, title, unit, scale in (
        ("util", "use", "%", 1.0),
        ("power", "power", "W", 1.0),
        ("memory", "memory", "GiB", 2.0**30),
    ):
        values = weighted(recording.gpu[name].mean[:, columns], seconds) / scale
        if not np.isfinite(values).any():
            continue
        if label:
            yield label, f"{'mean of':11}{'least':>7}{'all':>7}{'most used':>11}{'peak':>7}"
            label = ""
        least, most = np.nanmin(values), np.nanmax(values)
        peak = float(np.nanmax(recording.gpu[name].high[:, columns])) / scale
        digits = 1 if scale > 1 else 0
        row = (
            f"{value:{wide}.{digits}f}"
            for value, wide in ((least, 7), (np.nanmean(values), 7), (most, 11), (peak, 7))
        )
        yield "", f"{title:7}{unit:4}{''.join(row)}"


def _steps(recording: Recording) -> str:
    steps = recording.steps
    line = f"{len(steps.step):,} up to step {int(steps.step.max()):,}"
    if np.isfinite(steps.rate).any():
        line += f", {amounts.number(float(np.nanmedian(steps.rate)))} {words.shown(steps.unit)}/s"
    known = steps.loss[np.isfinite(steps.loss)]
    if len(known):
        few = max(1, min(20, len(known) // 10))
        line += f", loss {known[:few].mean():.4g} -> {known[-few:].mean():.4g}"
    wait = np.isfinite(steps.data_wait) & (steps.seconds > 0)
    if wait.any():
        share = float((steps.data_wait * steps.seconds)[wait].sum() / steps.seconds[wait].sum())
        line += f", {100 * share:.1f} % of the time waiting for data"
    return line


def _profile(profiles: Sequence[Profile]) -> str:
    newest = profiles[0]
    computing, collectives, waiting = newest.shares()
    first, last = newest.steps
    most = (f"{words.shown(one.name)} {one.seconds:.3g} s" for one in newest.operators[:3])
    line = (
        f"steps {first} to {last} on rank {newest.rank}: {newest.seconds:.3g} s, "
        f"{words.percent(computing)} computing, {words.percent(collectives)} in collectives "
        f"({words.percent(waiting)} with nothing "
        f"computed beside them); most time: {', '.join(most)}; in {words.shown(newest.trace)}"
    )
    more = len(profiles) - 1
    return line + (f" and {more} more there" if more else "")


def _cost(paid: Cost) -> str:
    line = f"{words.amount(paid.billed)} {paid.unit}"
    if not paid.priced:
        line += " (no accounting known)"
    if paid.efficiency is None or paid.used is None or paid.wasted is None:
        return f"{line}; efficiency {paid.formula}"
    return (
        f"{line}: {words.amount(paid.used)} used, {words.amount(paid.wasted)} wasted; efficiency "
        f"{words.percent(paid.efficiency)} = {paid.formula}"
    )


def _explained(diagnoses: Sequence[Diagnosis], width: int) -> list[str]:
    """Where the findings' codes are explained."""
    codes = list(dict.fromkeys(one.code for one in diagnoses))
    if not codes:
        return []
    page = f"docs/findings/{codes[0]}.md" if len(codes) == 1 else "docs/findings/"
    means = "means" if len(codes) == 1 else "mean"
    return _labelled("", f"what {amounts.some(codes, 6)} {means}: {page}", width)


def _finding(one: Diagnosis, width: int) -> list[str]:
    lines = _labelled(_SIGNS[one.level], f"[{one.code}] {one.message}", width)
    if one.todo:
        lines += _labelled("", f"-> {one.todo}", width)
    return lines


def _labelled(label: str, line: str, width: int) -> list[str]:
    """A line behind its label; what does not fit goes on below, indented."""
    if len(line) + _LABEL <= width:
        return [f"{label:{_LABEL}}{line}".rstrip()]
    return _wrapped(line, width, f"{label:{_LABEL}}", " " * _LABEL)


def _wrapped(line: str, width: int, first: str = "", further: str = "") -> list[str]:
    # A number stays with its unit.
    line = _NUMBER.sub(_NO_BREAK, " ".join(line.split()))
    wrapped = textwrap.wrap(
        line,
        width,
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_NO_BREAK, " ") for part in wrapped]


def _coloured(line: str, level: Level) -> str:
    return f"\033[{_COLOURS[level]}m{line}\033[0m"
