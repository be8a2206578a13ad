"""Where a node should have been sampled and was not, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .node import SHORTEST_GAP, Node, merged
from .recording import Facts, Gap

# A job prepares before its sampler starts, and tidies up after the sampler has ended.
AROUND = 60.0


@dataclass(frozen=True)
class Span:
    """A life as far as samples can be expected of it: unix seconds, and the nodes' names.

    `nodes` is empty where nobody knows them: then all that have a file.
    """

    begin: float
    end: float
    nodes: tuple[str, ...] = ()


def spans(facts: Facts, nodes: Sequence[Node], last: float) -> list[Span]:
    """The lives of a run, up to the `last` thing known of it; without facts as samplers tell."""
    if facts.lives:
        files = {node.name for node in nodes}
        # Names of which none is that of a file are names that the samplers do not go by.
        named = any(files.intersection(life.nodes) for life in facts.lives) or not files
        found = []
        for life in sorted(facts.lives, key=lambda life: life.begin):
            end = last if life.end is None else life.end
            found.append(Span(life.begin, max(end, life.begin), life.nodes if named else ()))
        return found
    lives: dict[str, tuple[float, float]] = {}
    for node in nodes:
        for sampler in node.samplers:
            if not math.isnan(sampler.begin):
                known = lives.get(sampler.head.life, (math.inf, -math.inf))
                begin, end = min(known[0], sampler.begin), max(known[1], sampler.end)
                lives[sampler.head.life] = (begin, end)
    return [Span(*life) for life in sorted(lives.values())]


def gaps(spans: Sequence[Span], nodes: Sequence[Node]) -> list[Gap]:
    """All gaps, by node and time; nodes of a life that have no file among them."""
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


def _within(span: Span, name: str, node: Node | None) -> list[Gap]:
    """The gaps of a node in one life."""
    if span.end <= span.begin:
        return []
    if node is None or not len(node.stretches):
        broken = node is not None and node.errors
        return [Gap(name, span.begin, span.end, "torn" if broken else "not started")]
    longest = max(3 * node.every, SHORTEST_GAP)
    inside = node.stretches.clip(span.begin, span.end)
    # A sampler's first sample stands for no time, but shows that it was there.
    kept = (node.stretches[:, 1] >= span.begin) & (node.stretches[:, 0] <= span.end)
    covered = merged(inside[kept], longest)
    if not len(covered):
        return [Gap(name, span.begin, span.end, "not started")]
    found = []
    if covered[0, 0] - span.begin > max(longest, AROUND):
        found.append((span.begin, float(covered[0, 0]), "not started"))
    for before, after in pairwise(covered):
        found.append((float(before[1]), float(after[0]), "killed"))
    end = float(covered[-1, 1])
    closed = any(s.ended is not None and s.ended >= end - longest for s in node.samplers)
    if span.end - end > (max(longest, AROUND) if closed else longest):
        found.append((end, span.end, "killed"))
    return [Gap(name, a, b, why) for a, b, why in found]
