"""A first look at the files of a run: over which time they go, and how often was sampled."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.files import open_regular
from . import heads, jsonl
from .recording import Facts
from .values import amount

_PEEK = 16 << 10  # bytes of a file's begin and of its end: some twenty samples, and the head
_DAY = 86400.0
_YEAR = 365 * _DAY
_LATEST = 4102444800.0  # the year 2100


@dataclass(frozen=True)
class Look:
    """What the begin and the end of a file say.

    Attributes:
        times: unix seconds of lines, in their order.
        every: seconds between samples; None where no line tells.
    """

    times: tuple[float, ...] = ()
    every: float | None = None


def look(path: Path) -> Look:
    """Peek into a JSON-lines file; one that cannot be read says nothing."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            text = file.read(_PEEK)
            if size > _PEEK:
                file.seek(max(_PEEK, size - _PEEK))
                # The first of these lines is torn, and is no line on its own.
                text = text.rpartition(b"\n")[0] + b"\n" + file.read(_PEEK).partition(b"\n")[2]
    except OSError:
        return Look()
    found = [record for record in jsonl.records(text) if record]
    times = [amount(record.get("t", record.get("time")), None) for record in found]
    steps = [step for r in found if (step := amount(r.get("dt"), None))]
    said = [every for r in found if (every := amount(r.get("every"), None))]
    return Look(tuple(t for t in times if t is not None), _every(steps, said))


def window(facts: Facts, looks: list[Look]) -> tuple[float, float]:
    """Unix seconds between which the times of a run are believed.

    A day around its lives; where nobody knows of them, or all files say otherwise, a year around
    the middle of what the files say.
    """
    middles = [float(np.median(one.times)) for one in looks if one.times]
    middle = float(np.median(middles)) if middles else None
    begins = [life.begin for life in facts.lives if math.isfinite(life.begin)]
    if begins:
        ends = [life.end for life in facts.lives if life.end is not None]
        open_end = any(life.end is None for life in facts.lives)
        end = max([*begins, *ends, *([max(m, *begins) for m in middles] if open_end else [])])
        # A life without an end has none that we know of: it may last as long as a job can.
        known = (min(begins) - _DAY, end + (60 * _DAY if open_end else _DAY))
        if middle is None or known[0] <= middle <= known[1]:
            return known
    if middle is None:
        return (0.0, _LATEST)
    return (max(0.0, middle - _YEAR), min(middle + _YEAR, _LATEST))


def _every(steps: list[float], said: list[float]) -> float | None:
    """Seconds between samples: as a sampler said where that is about so, else as they came."""
    if not steps:
        return min(max(said), heads.SELDOM) if said else None
    came = min(float(np.percentile(steps, 90)), heads.SELDOM)
    near = [every for every in said if abs(every - came) <= 0.2 * came]
    return near[-1] if near else max(round(came, 2), 0.01)
