"""What a run is billed for: nodes, GPUs and time, in the site's unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..slurm.job import Attempt
from .recording import Recording


@dataclass(frozen=True)
class Bill:
    """What a run costs so far.

    Attributes:
        seconds: of each attempt, in order.
        node_seconds: of all attempts, nodes counted.
        unit: the site's; without one `GPU-h`, on CPU nodes `node-h`.
        per_node_hour: units.
        priced: whether `unit` is the site's own.
        units: in all; attempts: of each attempt.
    """

    seconds: tuple[float, ...]
    node_seconds: float
    unit: str
    per_node_hour: float
    priced: bool
    units: float
    attempts: tuple[float, ...]


def bill(recording: Recording) -> Bill:
    """The bill of all attempts of a run; what still runs counts up to its last sample."""
    facts = recording.facts
    known = attempts(recording)
    seconds = tuple(length(attempt, recording) for attempt in known)
    nodes = [
        len(attempt.nodes) or attempt.asked.get("nodes") or max(1, facts.nodes) for attempt in known
    ]
    gpus = facts.gpus
    if gpus is None:
        per_node = np.bincount(recording.gpu_node[billed(recording)], minlength=1)
        gpus = int(per_node.max()) if len(recording.gpus) else 0
    if facts.unit and facts.per_node_hour is not None:
        unit, rate, priced = facts.unit, facts.per_node_hour, True
    else:
        unit, rate, priced = ("GPU-h", float(gpus), False) if gpus else ("node-h", 1.0, False)
    each = [one * count for one, count in zip(seconds, nodes, strict=True)]
    rates = [_rate(attempt, unit) if priced else None for attempt in known]
    units = tuple(
        (rate if own is None else own) * one / 3600 for own, one in zip(rates, each, strict=True)
    )
    return Bill(seconds, sum(each), unit, rate, priced, sum(units), units)


def _rate(attempt: Attempt, unit: str) -> float | None:
    """Units per hour of one node of an attempt; None: as the newest one."""
    own = attempt.asked.get("bill") or {}
    return own.get("per_node_hour") if own.get("unit") == unit else None


def attempts(recording: Recording) -> tuple[Attempt, ...]:
    """The attempts of a run; where nobody wrote one down, one as long as its record."""
    whole = Attempt(
        None,
        "UNKNOWN",
        "",
        "none",
        live=recording.running,
        nodes=recording.nodes,
        started=recording.begin,
    )
    return recording.facts.attempts or (whole,)


def end_of(attempt: Attempt, recording: Recording) -> float:
    """When an attempt ended, or was last heard of; unix seconds."""
    if attempt.ended is not None:
        return attempt.ended
    return max(attempt.begin, recording.end)


def length(attempt: Attempt, recording: Recording) -> float:
    """Seconds of an attempt."""
    return max(0.0, end_of(attempt, recording) - attempt.begin)


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
