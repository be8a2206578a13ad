"""Looks at the heads of images: damaged ones, and those that are not what one expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import UserError
from .. import images
from ..index import Index, Int64s
from ..inodes import words
from . import notes as saying
from .reader import Reader, Span
from .workers import Board, Watch, run, shown

UNDECODABLE = "undecodable"  # an image that `--resize` cannot encode anew
_SUFFIX = 8  # more than the longest of an image
_STEP = 256  # samples between two looks at whether to go on


@dataclass(frozen=True)
class Images:
    """Which fields of which samples are images, by their names."""

    index: Index

    def name(self, span: Span) -> str:
        """The end of the name that an image has as a file; empty: it is no image."""
        field = self.index.fields[span.field]
        if field.dtype:
            return ""
        key = self.index.keys[span.row]
        if field.name != "data" or len(self.index.fields) > 1:
            key = b"%b.%b" % (key, field.name.encode("utf-8", "surrogateescape"))
        # Its end is enough: all that counts is the suffix.
        name = key[-_SUFFIX:].decode("latin-1")
        return name if name.rpartition(".")[2].lower() in images.SUFFIXES else ""


class Looker:
    """Looks at images while they pass by, and keeps what is to be said of them.

    Args:
        path: file of JSON lines that it is written to, unit by unit.
    """

    def __init__(self, index: Index, path: Path) -> None:
        self._images, self._path = Images(index), path
        self._found: list[dict[str, Any]] = []

    def __call__(self, span: Span, first: memoryview, last: memoryview) -> None:
        name = self._images.name(span)
        if name:
            look = images.look(first[: images.HEAD], last[-images.TAIL :], span.length, name)
            if look.problems:
                self._found.append(record(span, look.problems))

    def write(self) -> None:
        """Append what was found since the last time; before the unit counts as done."""
        if self._found:
            saying.add(self._path, self._found)
            self._found = []


def record(span: Span, problems: Iterable[str]) -> dict[str, Any]:
    """What is written down of an image."""
    return {"row": span.row, "field": span.field, "problems": list(problems)}


def looked_at(reader: Reader, count: int, watch: Watch) -> list[dict[str, Any]]:
    """Look at the heads of all images of a source, with `count` processes; in order of rows.

    Raises:
        SourceProblems, Lost, UserError, OSError: see `workers.run`.
    """
    index = reader.index
    edges = np.linspace(0, len(index), count + 1).astype(int).tolist()
    board = Board(count)
    of = Images(index)

    def some(worker: int) -> list[dict[str, Any]]:
        found = []
        for start in range(edges[worker], edges[worker + 1], _STEP):
            board.check()
            for column in reader.spans(start, min(start + _STEP, edges[worker + 1])):
                for span in column:
                    name = of.name(span)
                    if name:
                        head, tail = reader.ends(span, images.HEAD, images.TAIL)
                        look = images.look(head, tail, span.length, name)
                        if look.problems:
                            found.append(record(span, look.problems))
        reader.close()
        return found

    parts = run(board, count, some, watch)
    return sorted((one for part in parts for one in part), key=lambda one: one["row"])


def damaged(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Rows of samples with an image that cannot be used."""
    return sorted({one["row"] for one in records if images.DAMAGED & set(one["problems"])})


def refuse(index: Index, rows: Sequence[int], records: Sequence[Mapping[str, Any]]) -> None:
    """End a pack with `--bad fail` where there is a damaged image.

    Raises:
        UserError: names the first of them.
    """
    if not rows:
        return
    problems = {one["row"]: ", ".join(one["problems"]) for one in records}
    lines = [f"{index.path(row)}: {problems[row]}" for row in rows]
    raise UserError(
        f"{words(len(rows), 'damaged image', 'damaged images')}:\n{shown(lines)}\n"
        "mend or remove them, or leave them out with --bad skip"
    )


def without(index: Index, rows: Sequence[int]) -> Index:
    """The index without some samples."""
    gone: Int64s = np.array(rows, np.int64)
    kept = np.setdiff1d(np.arange(len(index)), gone)
    splits, start = [], 0
    for split in index.splits:
        stop = start + split.stop - split.start
        stop -= int(np.count_nonzero((gone >= split.start) & (gone < split.stop)))
        splits.append(type(split)(split.name, start, stop, split.folder))
        start = stop
    return index.take(kept, tuple(splits))


def listed(index: Index, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records as a report has them: by name, each once."""
    once: dict[tuple[int, int], list[str]] = {}
    for one in records:
        once[one["row"], one["field"]] = list(one["problems"])
    several = len(index.fields) > 1
    return [
        {
            "sample": index.path(row),
            **({"field": index.fields[field].name} if several else {}),
            "problems": problems,
        }
        for (row, field), problems in sorted(once.items())
    ]
