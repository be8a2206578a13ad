"""A run directory and what Slurm knows of the run, as one `Recording`.

A node's files are read and gathered into bins at once, so memory is bounded by the bins and the
samples of a node; where there is much to read, two processes or more do.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from . import lines, profiles, samples
from . import steps as training
from .lines import KINDS, number
from .node import SHORTEST_GAP, Grid, Node, Window, scan
from .node import grid as bins_of
from .recording import GPU, HOST, RANK, Band, Event, Facts, Gap, Recording, union
from .samples import Journal
from .steps import Training

EVERY = 10.0  # seconds between samples, where nobody says
_SELDOM = 3600.0  # nobody samples less often
_MUCH = 64 << 20  # bytes that are worth starting processes for
_MOST_PROCESSES = 8
# A job prepares before its sampler starts, and tidies up after the sampler has ended.
_AROUND = 60.0
SLACK = 1.0  # s beyond what is known in which a time can be
_DAY = 86400.0
_YEAR = 365 * _DAY
_LATEST = 4102444800.0  # the year 2100


def load(directory: Path, facts: Facts, processes: int | None = None) -> Recording:
    """Read what was recorded of a run.

    What cannot be read cannot make it fail: it is said in `events`, missing in `covered` and shown
    in `gaps`.

    Args:
        directory: of the run: `monitor/` and `metrics.jsonl`, both of which may be missing.
        facts: of the run; its attempts say when samples were due.
        processes: that read; None: as many as there are cores, where there is much to read.
    """
    files = samples.nodes(directory)
    journals = {file: samples.journal(file) for file in files}
    peeks = [_peek(file, journals[file]) for file in files]
    metrics = directory / training.FILE
    window = _window(facts, [peek.times for peek in peeks] + [_times(metrics)])
    begins = [attempt.begin for attempt in facts.attempts]
    reading = training.read(metrics, window)
    trained = reading.result(begins)
    times = [t for peek in peeks for t in peek.times if window[0] <= t <= window[1]]
    grid = _grid(_reach(facts, trained, times), peeks)
    # What lies before or behind all that is known has a time that cannot be.
    window = (max(window[0], grid.begin - SLACK), min(window[1], grid.end + SLACK))
    nodes = _scan(journals, grid, window, processes)
    if not facts.attempts:
        # Only now is it known which samplers there were, and when each attempt began.
        begins = [span.begin for span in _spans(facts, nodes, grid.end)]
        trained = reading.result(begins)
    found, unread = profiles.read(directory)
    recording = _recording(facts, grid, nodes, trained)
    return replace(recording, profiles=found, unread=(*recording.unread, *unread))


@dataclass(frozen=True)
class _Peek:
    """Times and seconds between samples, by the begin and the end of a node's samples."""

    times: list[float]
    every: float | None


def _peek(file: Path, journal: Journal) -> _Peek:
    said = [head.every for head in journal.heads]
    rows = [line.split(b",", 2) for line in samples.ends(samples.table_path(file, "host"))]
    times = [*(head.t for head in journal.heads), *journal.ended.values()]
    times += [float(row[0]) for row in rows if _is_number(row[0])]
    steps = [float(row[1]) for row in rows if len(row) > 1 and _is_number(row[1])]
    if not steps:
        return _Peek(times, max(said, default=None))
    came = min(float(np.percentile(steps, 90)), _SELDOM)
    near = [every for every in said if abs(every - came) <= 0.2 * came]
    return _Peek(times, near[-1] if near else max(round(came, 2), 0.01))


def _is_number(text: bytes) -> bool:
    return text.replace(b".", b"", 1).isdigit()


def _times(metrics: Path) -> list[float]:
    """Return the times in the begin and the end of the training's record."""
    records = map(lines.record, samples.ends(metrics))
    times = [number(record.get("time")) for record in records if record]
    return [t for t in times if t is not None]


def _window(facts: Facts, all_times: list[list[float]]) -> Window:
    """Return the unix seconds between which times are believed: a day around the attempts.

    Where nobody knows of them, or all files say otherwise, a year around the middle of what the
    files say.
    """
    middles = [float(np.median(times)) for times in all_times if times]
    middle = float(np.median(middles)) if middles else None
    begins = [attempt.begin for attempt in facts.attempts if math.isfinite(attempt.begin)]
    if begins:
        ends = [attempt.ended for attempt in facts.attempts if attempt.ended is not None]
        open_end = any(attempt.ended is None for attempt in facts.attempts)
        end = max([*begins, *ends, *([max(m, *begins) for m in middles] if open_end else [])])
        # An attempt without an end has none that we know of: it may last as long as a job can.
        known = (min(begins) - _DAY, end + (60 * _DAY if open_end else _DAY))
        if middle is None or known[0] <= middle <= known[1]:
            return known
    if middle is None:
        return (0.0, _LATEST)
    return (max(0.0, middle - _YEAR), min(middle + _YEAR, _LATEST))


def _reach(facts: Facts, trained: Training, times: Iterable[float]) -> tuple[float, float] | None:
    """Begin and end of all that is known of a run; None: nothing is."""
    begun = [attempt.begin for attempt in facts.attempts]
    ended = [attempt.ended for attempt in facts.attempts if attempt.ended is not None]
    known = [t for t in (*begun, *ended, *times, trained.first, trained.last) if math.isfinite(t)]
    return (min(known), max(known)) if known else None


def _grid(reach: tuple[float, float] | None, peeks: Sequence[_Peek]) -> Grid:
    if reach is None:
        return Grid(0.0, 1.0, 1)
    every = max((peek.every for peek in peeks if peek.every), default=None)
    return bins_of(*reach, max(every or min(EVERY, max(1.0, reach[1] - reach[0])), 0.1))


def _scan(
    journals: dict[Path, Journal], grid: Grid, window: Window, processes: int | None
) -> list[Node]:
    sizes = {file: sum(_size(samples.table_path(file, k)) for k in KINDS) for file in journals}
    if processes is None:
        cores = len(os.sched_getaffinity(0))
        processes = min(cores, _MOST_PROCESSES) if sum(sizes.values()) > _MUCH else 1
    processes = min(processes, len(journals))
    if processes <= 1:
        return [scan(file, journal, grid, window) for file, journal in journals.items()]
    # Not forked: whoever loads may have threads. The largest first, so that none comes last.
    largest = sorted(journals, key=lambda file: -sizes[file])
    own = [journals[file] for file in largest]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(scan, largest, own, repeat(grid), repeat(window)))
    return sorted(found, key=lambda node: node.name)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _ended(facts: Facts, nodes: Sequence[Node], trained: Training) -> Facts:
    """End an attempt that nobody saw end, and another followed, with the last that was heard of it:
    the time that the next one waited in the queue is nobody's bill."""
    attempts = sorted(facts.attempts, key=lambda attempt: attempt.begin)
    heard = [node.stretches for node in nodes]
    heard.append(np.repeat(trained.steps.time, 2).reshape(-1, 2))
    times = np.concatenate(heard)
    for at, (attempt, after) in enumerate(pairwise(attempts)):
        if attempt.ended is None:
            own = times[(times[:, 0] < after.begin) & (times[:, 1] > attempt.begin), 1]
            heard_last = min(max(own, default=attempt.begin), after.begin)
            attempts[at] = replace(attempt, ended=float(heard_last))
    return replace(facts, attempts=tuple(attempts))


def _recording(facts: Facts, grid: Grid, nodes: list[Node], trained: Training) -> Recording:
    sampled = [node for node in nodes if node.samplers]
    facts = _ended(facts, sampled, trained)
    reach = _reach(facts, trained, (node.last for node in sampled))
    end = max(grid.begin, reach[1]) if reach else grid.end - grid.width
    running = _running(facts, sampled, end)
    spans = _spans(facts, nodes, end)
    # An attempt that still goes on is due until now only as far as anything was heard of the run.
    missing = _gaps(spans, nodes) if facts.attempts or sampled else []
    places = range(len(sampled))
    many = [len(node.gpus) for node in sampled]
    ranks = [len(node.ranks) for node in sampled]
    fs: dict[str, tuple[float, float]] = {}
    for node in sampled:
        for mount, (read, written) in node.fs.items():
            before = fs.get(mount, (0.0, 0.0))
            fs[mount] = (before[0] + read, before[1] + written)
    return Recording(
        facts=facts,
        begin=grid.begin,
        end=end,
        width=grid.width,
        bins=grid.bins,
        heads=tuple(replace(node.samplers[-1].head, gpus=node.gpus) for node in sampled),
        gpus=tuple(gpu for node in sampled for gpu in node.gpus),
        gpu_node=np.repeat(np.array(places, np.int64), many),
        ranks=np.array([rank for node in sampled for rank in node.ranks], np.int64),
        rank_node=np.repeat(np.array(places, np.int64), ranks),
        gpu=_joined([node.gpu for node in sampled], GPU, grid.bins),
        host=_joined([node.host for node in sampled], HOST, grid.bins),
        rank=_joined([node.rank for node in sampled], RANK, grid.bins),
        covered=np.stack([np.zeros(grid.bins, np.float32), *(n.covered for n in sampled)], 1)[
            :, 1:
        ],
        core_use=tuple(node.core_use for node in sampled),
        steps=trained.steps,
        events=tuple(sorted(_events(facts, spans, nodes, trained), key=lambda event: event.time)),
        gaps=tuple(missing),
        fs=fs,
        samples=sum(node.samples for node in nodes),
        torn=sum(node.torn + node.strange for node in nodes) + trained.torn,
        unread=tuple((node.name, error) for node in nodes for error in node.errors),
        running=running,
    )


def _joined(parts: list[Band], names: tuple[str, ...], bins: int) -> dict[str, Band]:
    """By channel, (bins, things of all nodes)."""

    def whole(arrays: list[Any], channel: int) -> Any:
        empty = np.empty((0, bins), np.float32)
        return np.concatenate([empty, *(array[..., channel].T for array in arrays)]).T

    lows, means, highs = ([getattr(p, name) for p in parts] for name in ("low", "mean", "high"))
    return {
        name: Band(whole(lows, at), whole(means, at), whole(highs, at))
        for at, name in enumerate(names)
    }


def _running(facts: Facts, nodes: list[Node], end: float) -> bool:
    """Whether samplers still write, as far as anybody says."""
    if facts.attempts:
        newest = facts.attempts[-1]
        return newest.ended is None and newest.state == "RUNNING"
    open_ones = [node for node in nodes if node.samplers[-1].ended is None]
    return any(time.time() - node.last < max(6 * node.every, 60.0) for node in open_ones)


def _events(
    facts: Facts, spans: list[_Span], nodes: list[Node], trained: Training
) -> Iterator[Event]:
    yield from trained.events
    if facts.attempts:
        for number, attempt in enumerate(facts.attempts):
            name = f"attempt {number + 1}"
            job = f" (job {attempt.job})" if attempt.job else ""
            yield Event(attempt.begin, "resume" if number else "start", f"{name}{job}")
            if attempt.ended is not None:
                words = f": {attempt.words}" if attempt.words else ""
                yield Event(attempt.ended, "end", f"{name}: {attempt.state}{words}")
    else:
        for number, span in enumerate(spans):
            yield Event(span.begin, "resume" if number else "start", f"attempt {number + 1}")
    first = spans[0].begin if spans else 0.0
    for node in nodes:
        name = node.name
        for note in node.notes:
            yield Event(
                note.t, "note", f"{name}: {note.text}" + f" [{note.code}]" * bool(note.code)
            )
        for error in node.errors:
            yield Event(first, "note", f"{name}: its samples could not be read: {error}")
        if node.strange:
            text = f"{name}: {node.strange} samples left out, whose time cannot be"
            yield Event(first, "note", text)
    if trained.error:
        yield Event(first, "note", f"{training.FILE} could not be read: {trained.error}")


@dataclass(frozen=True)
class _Span:
    """An attempt as far as samples can be expected of it: unix seconds, and the nodes' names.

    `nodes` is empty where nobody knows them: then all that have a file.
    """

    begin: float
    end: float
    nodes: tuple[str, ...] = ()


def _spans(facts: Facts, nodes: Sequence[Node], last: float) -> list[_Span]:
    """The attempts of a run, up to the `last` thing known of it; without facts as samplers tell."""
    if facts.attempts:
        files = {node.name for node in nodes}
        # Names of which none is that of a file are names that the samplers do not go by.
        named = any(files.intersection(attempt.nodes) for attempt in facts.attempts) or not files
        found = []
        for attempt in facts.attempts:
            begin, end = attempt.begin, last if attempt.ended is None else attempt.ended
            found.append(_Span(begin, max(end, begin), attempt.nodes if named else ()))
        return found
    heard: dict[str, tuple[float, float]] = {}
    for node in nodes:
        for sampler in node.samplers:
            if not math.isnan(sampler.begin):
                known = heard.get(sampler.head.attempt, (math.inf, -math.inf))
                begin, end = min(known[0], sampler.begin), max(known[1], sampler.end)
                heard[sampler.head.attempt] = (begin, end)
    return [_Span(*stretch) for stretch in sorted(heard.values())]


def _gaps(spans: Sequence[_Span], nodes: Sequence[Node]) -> list[Gap]:
    """All gaps, by node and time; nodes of an attempt that have no file among them."""
    by_name = {node.name: node for node in nodes}
    names = dict.fromkeys([*by_name, *(name for span in spans for name in span.nodes)])
    found = []
    for name in names:
        own = [span for span in spans if name in span.nodes or not span.nodes]
        for at, span in enumerate(own):
            if at and span.begin > own[at - 1].end:
                found.append(Gap(name, own[at - 1].end, span.begin, "between attempts"))
            found += _within(span, name, by_name.get(name))
    return found


def _within(span: _Span, name: str, node: Node | None) -> list[Gap]:
    """The gaps of a node in one attempt."""
    if span.end <= span.begin:
        return []
    if node is None or not len(node.stretches):
        broken = node is not None and node.errors
        return [Gap(name, span.begin, span.end, "torn" if broken else "not started")]
    longest = max(3 * node.every, SHORTEST_GAP)
    inside = node.stretches.clip(span.begin, span.end)
    # A sampler's first sample stands for no time, but shows that it was there.
    kept = (node.stretches[:, 1] >= span.begin) & (node.stretches[:, 0] <= span.end)
    covered = union(inside[kept], longest)
    if not len(covered):
        return [Gap(name, span.begin, span.end, "not started")]
    found = []
    if covered[0, 0] - span.begin > max(longest, _AROUND):
        found.append((span.begin, float(covered[0, 0]), "not started"))
    for before, after in pairwise(covered):
        found.append((float(before[1]), float(after[0]), "killed"))
    end = float(covered[-1, 1])
    closed = any(s.ended is not None and s.ended >= end - longest for s in node.samplers)
    if span.end - end > (max(longest, _AROUND) if closed else longest):
        found.append((end, span.end, "killed"))
    return [Gap(name, a, b, why) for a, b, why in found]
