"""What a run is billed for: nodes, GPUs and time, in the site's unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .recording import Life, Recording


@dataclass(frozen=True)
class Bill:
    """What a run costs so far.

    Attributes:
        seconds: of each life, in order.
        node_seconds: of all lives, nodes counted.
        unit: the site's; without one `GPU-h`, on CPU nodes `node-h`.
        per_node_hour: units.
        priced: whether `unit` is the site's own.
        units: in all; lives: of each life.
    """

    seconds: tuple[float, ...]
    node_seconds: float
    unit: str
    per_node_hour: float
    priced: bool
    units: float
    lives: tuple[float, ...]


def bill(recording: Recording) -> Bill:
    """The bill of all lives of a run; what still runs counts up to its last sample."""
    facts = recording.facts
    known = lives(recording)
    seconds = tuple(length(life, recording) for life in known)
    nodes = [len(life.nodes) or life.billed_nodes or max(1, facts.nodes) for life in known]
    gpus = facts.gpus
    if gpus is None:
        per_node = np.bincount(recording.gpu_node[billed(recording)], minlength=1)
        gpus = int(per_node.max()) if len(recording.gpus) else 0
    if facts.unit and facts.per_node_hour is not None:
        unit, rate, priced = facts.unit, facts.per_node_hour, True
    else:
        unit, rate, priced = ("GPU-h", float(gpus), False) if gpus else ("node-h", 1.0, False)
    each = [one * count for one, count in zip(seconds, nodes, strict=True)]
    rates = [life.per_node_hour if priced else None for life in known]
    units = tuple(
        (rate if own is None else own) * one / 3600 for own, one in zip(rates, each, strict=True)
    )
    return Bill(seconds, sum(each), unit, rate, priced, sum(units), units)


def lives(recording: Recording) -> tuple[Life, ...]:
    """The lives of a run; where nobody wrote one down, one as long as its record."""
    facts = recording.facts
    return facts.lives or (Life(recording.begin, None, "UNKNOWN", nodes=recording.nodes),)


def end_of(life: Life, recording: Recording) -> float:
    """When an attempt ended, or was last heard of; unix seconds."""
    if life.end is not None:
        return life.end
    return max(life.begin, recording.end)


def length(life: Life, recording: Recording) -> float:
    """Seconds of an attempt."""
    return max(0.0, end_of(life, recording) - life.begin)


def billed(recording: Recording) -> NDArray[np.bool_]:
    """(GPUs,) whether each GPU is on the bill: a node may hold others that a neighbour has."""
    facts, nodes = recording.facts, recording.gpu_node
    granted = [gpu.granted for gpu in recording.gpus]
    paid = np.ones(len(recording.gpus), bool)
    for node in range(len(recording.heads)):
        own = np.flatnonzero(nodes == node)
        if facts.gpus is None:
            paid[own] = [granted[column] is not False for column in own]
        elif facts.gpus < len(own):
            # Those of this job first; where nobody says which, those that did something.
            use = (
                recording.gpu["util"].mean[:, own] if "util" in recording.gpu else np.zeros((0, 1))
            )
            busy = np.nansum(use, axis=0) if use.size else np.zeros(len(own))
            first = sorted(
                range(len(own)), key=lambda at: (granted[own[at]] is not True, -busy[at])
            )
            paid[own[first[facts.gpus :]]] = False
    return paid
