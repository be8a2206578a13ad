"""A sampler's first line, read as one that anybody could have written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import lines
from .lines import Gpu, Head
from .values import amount

MOST_GPUS = 256  # of a node
MOST_CORES = 8192
MOST_TEXT = 255
EVERY = 10.0  # where no head says it
SELDOM = 3600.0  # nobody samples less often


@dataclass(frozen=True)
class Layout:
    """A head, and where in its samples' rows the columns are that we know.

    Attributes:
        places: by kind of row, for each name in `lines.COLUMNS[kind]` its place in a row as
            written, or -1 where it has none.
        said: whether a head was there; else this is a guess from the file's name.
    """

    head: Head
    places: dict[str, list[int]]
    said: bool = True

    @property
    def plain(self) -> bool:
        """Whether rows are as this version writes them."""
        return all(at == list(range(len(at))) for at in self.places.values())


def read(record: dict[str, Any], node: str) -> Layout:
    """The layout that a head line declares; what is not usable in it is left at a default."""
    gpus = record.get("gpus")
    rows = gpus if isinstance(gpus, list) else []
    usable = record.get("usable")
    cores = [c for c in usable if _is_count(c)] if isinstance(usable, list) else []
    environment = record.get("environment")
    pairs = environment.items() if isinstance(environment, dict) else ()
    head = Head(
        node=node,
        t=amount(record.get("t"), math.nan),
        every=min(amount(record.get("every"), 0.0) or EVERY, SELDOM),
        life=_text(record.get("life")) or "",
        cores=int(min(amount(record.get("cores"), len(cores)), MOST_CORES)),
        usable=tuple(cores[:MOST_CORES]),
        memory=amount(record.get("memory"), 0.0),
        memory_limit=amount(record.get("memory_limit"), None),
        swap=amount(record.get("swap"), 0.0),
        gpus=tuple(_gpu(at, gpu) for at, gpu in enumerate(rows[:MOST_GPUS])),
        gpu_error=_text(record.get("gpu_error")),
        ranks=record["ranks"] if _is_count(record.get("ranks")) else None,
        environment={str(k)[:MOST_TEXT]: v[:MOST_TEXT] for k, v in pairs if isinstance(v, str)},
    )
    return Layout(head, _places(record.get("columns")))


def missing(node: str) -> Layout:
    """What is assumed of samples that no head goes before."""
    return Layout(Head(node, math.nan, EVERY, "", 0, (), 0.0), _places(None), said=False)


def unknown_gpu(index: int) -> Gpu:
    """One that samples have and no head tells of."""
    return Gpu(index=index, name="unknown", uuid="", memory=0.0)


def _gpu(at: int, value: Any) -> Gpu:
    if not isinstance(value, dict):
        return unknown_gpu(at)
    granted = value.get("granted")
    return Gpu(
        index=value["index"] if _is_count(value.get("index")) else at,
        name=_text(value.get("name")) or "unknown",
        uuid=_text(value.get("uuid")) or "",
        memory=amount(value.get("memory"), 0.0),
        power_limit=amount(value.get("power_limit"), None) or None,
        clock_max=amount(value.get("clock_max"), None) or None,
        granted=granted if isinstance(granted, bool) else None,
    )


def _places(columns: Any) -> dict[str, list[int]]:
    places = {}
    for kind, known in lines.COLUMNS.items():
        written = columns.get(kind) if isinstance(columns, dict) else None
        names = written if isinstance(written, list) and written else list(known)
        places[kind] = [names.index(name) if name in names else -1 for name in known]
    return places


def _text(value: Any) -> str | None:
    return value[:MOST_TEXT] if isinstance(value, str) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000
