"""What is wrong at this moment, as far as the newest samples and steps say it.

This is no diagnosis, which looks at the whole run: only what a look at the figures shows anyway,
in words, and what the samplers have said in the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...base.amounts import duration, ranges, some
from ...base.text import clean
from .. import lines
from ..thresholds import LIMITS, untouched
from ..words import percent, plural
from .state import KEPT, Node, Progress, Watch


def troubles(watch: Watch, now: float) -> list[str]:
    """Lines that are safe to show, what needs a hand first."""
    nodes = watch.known()
    heard = [node for node in nodes if node.stale(now) is None]
    alive = [node for node in heard if node.ended is None]
    found = [
        *_loss(watch.progress),
        *_silent(nodes, now),
        *_no_gpus(nodes),
        *_unused(heard),
        *_hot(alive),
        *_memory(alive),
        *_steps(watch, alive, now),
        *_said(nodes),
    ]
    return [clean(line) for line in found]


def _loss(progress: Progress) -> Iterator[str]:
    steps = list(progress.steps)
    if not steps or steps[-1].loss is None or math.isfinite(steps[-1].loss):
        return
    first = steps[-1]
    for step in reversed(steps):
        if step.loss is None or math.isfinite(step.loss):
            break
        first = step
    yield f"the loss is {steps[-1].loss} since step {first.number:,}"


def _silent(nodes: Sequence[Node], now: float) -> Iterator[str]:
    silent = {node.name: age for node in nodes if (age := node.stale(now)) is not None}
    if silent:
        longest = duration(max(silent.values()))
        yield f"no sample for {longest} from {_named(list(silent), len(nodes))}"


def _no_gpus(nodes: Sequence[Node]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for node in nodes:
        if node.head and node.head.gpu_error and not node.gpus:
            reasons.setdefault(node.head.gpu_error, []).append(node.name)
    for reason, names in reasons.items():
        yield f"no GPU is seen on {_named(names, len(nodes))}: {reason}"


def _unused(nodes: Sequence[Node]) -> Iterator[str]:
    """GPUs without work, memory or process for a while, those of like nodes together."""
    found: dict[tuple[int, ...], list[str]] = {}
    for node in nodes:
        idle = tuple(place for place in range(len(node.gpus)) if _is_unused(node, place))
        if idle:
            found.setdefault(idle, []).append(node.name)
    for idle, names in found.items():
        what = f"GPU{'s' if len(idle) > 1 else ''} {ranges(idle)}"
        since = duration(LIMITS.now_unused)
        yield f"{what} of {_named(names, len(nodes))} unused for {since} and more"


def _is_unused(node: Node, place: int) -> bool:
    # Of a run that has ended the last minute says little: its processes have gone.
    recent = node.recent(LIMITS.now_unused if node.ended is None else KEPT)
    last, begun = node.last, node.begun
    if last is None or begun is None or last - begun < LIMITS.warm_up or len(recent) < 3:
        return False
    if last - node.samples[0].time < LIMITS.now_unused:
        return False
    rows = [sample.gpus[place] for sample in recent if place < len(sample.gpus)]
    return bool(rows) and all(
        untouched(row.get("util"), row.get("memory"), row.get("processes")) for row in rows
    )


def _hot(nodes: Sequence[Node]) -> Iterator[str]:
    slowed = []
    for node in nodes:
        rows = node.recent(30)
        for place in range(len(node.gpus)):
            bits = [int(s.gpus[place].get("throttle", 0)) for s in rows if place < len(s.gpus)]
            if bits and all(bit & lines.THROTTLE_HEAT for bit in bits):
                slowed.append(f"{node.name}:{place}")
    if slowed:
        yield f"heat slows down {plural(len(slowed), 'GPU')}: {some(slowed)}"


def _memory(nodes: Sequence[Node]) -> Iterator[str]:
    full = []
    for node in nodes:
        used = memory(node)
        if used is not None and node.memory and used > LIMITS.host_near * node.memory:
            full.append(node.name)
    if full:
        share = percent(LIMITS.host_near)
        yield f"over {share} of the memory is in use on {_named(full, len(nodes))}"


def memory(node: Node) -> float | None:
    """Bytes in use that count against what the job may use."""
    charged = node.host("cgroup")
    return node.host("memory") if charged is None else charged


def _steps(watch: Watch, alive: Sequence[Node], now: float) -> Iterator[str]:
    progress = watch.progress
    waits, newest, usual = progress.data_wait, progress.newest, progress.seconds
    if waits is not None and waits > LIMITS.now_wait:
        yield f"{percent(waits)} of the time the steps wait for data"
    if newest is None or newest.time is None or usual is None or progress.final or not alive:
        return
    since = now - newest.time
    if since > max(LIMITS.now_stuck_least, LIMITS.now_stuck_times * usual):
        yield f"no step for {duration(since)}, where one takes {usual:.2g} s"


def _said(nodes: Sequence[Node]) -> Iterator[str]:
    """What samplers have written into the log, the same words of many nodes once."""
    texts: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for note in node.notes:
            texts.setdefault(note, []).append(node.name)
    for (code, text), names in texts.items():
        where = "" if any(name in text for name in names) else f"{_named(names, len(nodes))}: "
        yield f"{where}{text}" + (f" [{code}]" if code else "")


def _named(names: list[str], all_nodes: int) -> str:
    if len(names) == all_nodes and all_nodes > 1:
        return f"all {all_nodes} nodes"
    return some(names, 3)
