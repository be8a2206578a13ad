"""A run directory and what Slurm knows of the run, as one `Recording`.

All files are read in streams and gathered into bins, so memory is bounded by the bins and not by
the samples; where there is much to read, two processes or more do.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from . import bins, survey
from . import steps as training
from .bins import Grid
from .gaps import Span, gaps, spans
from .heads import EVERY
from .lines import FOLDER
from .node import Node, Window, scan
from .recording import GPU, HOST, RANK, Band, Event, Facts, Recording
from .steps import Training

_MUCH = 64 << 20  # bytes that are worth starting processes for
_MOST_PROCESSES = 8
_SLACK = 1.0  # s beyond the bins that are no reason to read all again


def load(directory: Path, facts: Facts, processes: int | None = None) -> Recording:
    """Read what was recorded of a run.

    Nothing in the files can make it fail: what cannot be read is counted in `torn`, said in
    `events`, and missing in `covered` and shown in `gaps`.

    Args:
        directory: of the run: `monitor/*.jsonl` and `metrics.jsonl`, both of which may be missing.
        facts: of the run; its lives say when samples were due.
        processes: that read; None: as many as there are cores, where there is much to read.
    """
    files = node_files(directory)
    looks = [survey.look(file) for file in files]
    metrics = directory / training.FILE
    window = survey.window(facts, [*looks, survey.look(metrics)])
    begins = [life.begin for life in facts.lives]
    trained = training.read(metrics, window, begins)
    times = [t for look in looks for t in look.times if window[0] <= t <= window[1]]
    grid = _grid(_reach(facts, trained, times), looks)
    nodes = _scan(files, grid, window, processes)
    seen = [t for node in nodes for t in (node.first, node.last) if not math.isnan(t)]
    if seen and (min(seen) < grid.begin - _SLACK or max(seen) > grid.end + _SLACK):
        # The middle of a file goes beyond its ends: rare enough to read it all again.
        grid = _grid(_reach(facts, trained, [*times, *seen]), looks)
        nodes = _scan(files, grid, window, processes)
    if not facts.lives:
        # Only now is it known which samplers there were, and when each life began.
        begins = [span.begin for span in spans(facts, nodes, grid.end)]
        trained = training.read(metrics, window, begins)
    return _recording(facts, grid, nodes, trained)


def node_files(directory: Path) -> list[Path]:
    """The files of a run's samplers, by name; none where there is no such folder."""
    try:
        return sorted(p for p in (directory / FOLDER).iterdir() if p.suffix == ".jsonl")
    except OSError:
        return []


def _reach(facts: Facts, trained: Training, times: Iterable[float]) -> tuple[float, float] | None:
    """Begin and end of all that is known of a run; None: nothing is."""
    lives = [t for life in facts.lives for t in (life.begin, life.end) if t is not None]
    known = [t for t in (*lives, *times, trained.first, trained.last) if math.isfinite(t)]
    return (min(known), max(known)) if known else None


def _grid(reach: tuple[float, float] | None, looks: Sequence[survey.Look]) -> Grid:
    if reach is None:
        return Grid(0.0, 1.0, 1)
    every = max((look.every for look in looks if look.every), default=None)
    return bins.grid(*reach, max(every or min(EVERY, max(1.0, reach[1] - reach[0])), 0.1))


def _scan(files: list[Path], grid: Grid, window: Window, processes: int | None) -> list[Node]:
    sizes = {file: _size(file) for file in files}
    if processes is None:
        cores = len(os.sched_getaffinity(0))
        processes = min(cores, _MOST_PROCESSES) if sum(sizes.values()) > _MUCH else 1
    processes = min(processes, len(files))
    if processes <= 1:
        return [scan(file, grid, window) for file in files]
    # Not forked: whoever loads may have threads. The largest first, so that none comes last.
    largest = sorted(files, key=lambda file: -sizes[file])
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(scan, largest, repeat(grid), repeat(window)))
    return sorted(found, key=lambda node: node.path)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _ended(facts: Facts, nodes: Sequence[Node], trained: Training) -> Facts:
    """The facts in which a life that nobody saw end, and another followed, ends with the last that
    was heard of it: the time that it then waited in the queue is nobody's bill."""
    lives = sorted(facts.lives, key=lambda life: life.begin)
    heard = [node.stretches for node in nodes]
    heard.append(np.repeat(trained.steps.time, 2).reshape(-1, 2))
    times = np.concatenate(heard)
    for at, (life, after) in enumerate(pairwise(lives)):
        if life.end is None:
            own = times[(times[:, 0] < after.begin) & (times[:, 1] > life.begin), 1]
            lives[at] = replace(life, end=float(min(max(own, default=life.begin), after.begin)))
    return replace(facts, lives=tuple(lives))


def _recording(facts: Facts, grid: Grid, nodes: list[Node], trained: Training) -> Recording:
    sampled = [node for node in nodes if node.samplers]
    facts = _ended(facts, sampled, trained)
    reach = _reach(facts, trained, (node.last for node in sampled))
    end = max(grid.begin, reach[1]) if reach else grid.end - grid.width
    running = _running(facts, sampled, end)
    lives = spans(facts, nodes, end)
    # A life that still goes on is due until now only as far as anything was heard of the run.
    missing = gaps(lives, nodes) if facts.lives or sampled else []
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
        events=tuple(sorted(_events(facts, lives, nodes, trained), key=lambda event: event.time)),
        gaps=tuple(missing),
        fs=fs,
        samples=sum(node.samples for node in nodes),
        torn=sum(node.torn + node.strange for node in nodes) + trained.torn,
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
    if facts.lives:
        newest = max(facts.lives, key=lambda life: life.begin)
        return newest.end is None and newest.state == "RUNNING"
    open_ones = [node for node in nodes if node.samplers[-1].ended is None]
    return any(time.time() - node.last < max(6 * node.every, 60.0) for node in open_ones)


def _events(
    facts: Facts, lives: list[Span], nodes: list[Node], trained: Training
) -> Iterator[Event]:
    yield from trained.events
    if facts.lives:
        for number, life in enumerate(sorted(facts.lives, key=lambda life: life.begin)):
            job = f" (job {life.job})" if life.job else ""
            yield Event(life.begin, "resume" if number else "start", f"attempt {number + 1}{job}")
            if life.end is not None:
                words = f": {life.words}" if life.words else ""
                yield Event(life.end, "end", f"attempt {number + 1}: {life.state}{words}")
    else:
        for number, span in enumerate(lives):
            yield Event(span.begin, "resume" if number else "start", f"attempt {number + 1}")
    first = lives[0].begin if lives else 0.0
    for node in nodes:
        name = node.name
        for note in node.notes:
            yield Event(
                note.t, "note", f"{name}: {note.text}" + f" [{note.code}]" * bool(note.code)
            )
        if node.error:
            yield Event(first, "note", f"{name}: its samples could not be read: {node.error}")
        if node.strange:
            text = f"{name}: {node.strange} samples left out, whose time cannot be"
            yield Event(first, "note", text)
        if node.twice > 10 * node.every:
            text = f"{name}: more than one sampler wrote for {node.twice:.0f} s"
            yield Event(first, "note", text)
    if trained.error:
        yield Event(first, "note", f"{training.FILE} could not be read: {trained.error}")
