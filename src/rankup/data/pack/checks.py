"""Looks at the heads of images: damaged ones, and those that are not what one expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.errors import UserError
from .. import images
from ..index import Index, Int64s
from ..inodes import words
from ..pool import spread
from ..verified import Reader, Span

UNDECODABLE = "undecodable"  # an image that `--resize` cannot encode anew
_SUFFIX = 8  # more than the longest of an image
_STEP = 1024  # samples that a worker looks at in one go
_SHOWN = 10


class Looker:
    """Looks at images while they pass by, and keeps what is to be said of them.

    Attributes:
        found: of each image with problems `row`, `field` and `problems`.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self.found: list[dict[str, Any]] = []

    def __call__(self, span: Span, first: memoryview | bytes, last: memoryview | bytes) -> None:
        name = self.name(span)
        if name:
            look = images.look(first[: images.HEAD], last[-images.TAIL :], span.length, name)
            self.add(span, look.problems)

    def add(self, span: Span, problems: Iterable[str]) -> None:
        """Keep problems of an image; together with those that are known of it."""
        problems = list(problems)
        if not problems:
            return
        last = self.found[-1] if self.found else {}
        if (last.get("row"), last.get("field")) == (span.row, span.field):
            last["problems"] += problems
        else:
            self.found.append({"row": span.row, "field": span.field, "problems": problems})

    def take(self) -> list[dict[str, Any]]:
        """Return what was found since the last time."""
        found, self.found = self.found, []
        return found

    def name(self, span: Span) -> str:
        """Return the end of the name that an image has as a file; empty: it is no image."""
        field = self._index.fields[span.field]
        if field.dtype:
            return ""
        key = self._index.keys[span.row]
        if field.name != "data" or len(self._index.fields) > 1:
            key = b"%b.%b" % (key, field.name.encode("utf-8", "surrogateescape"))
        # Its end is enough: all that counts is the suffix.
        name = key[-_SUFFIX:].decode("latin-1")
        return name if name.rpartition(".")[2].lower() in images.SUFFIXES else ""


def looked_at(reader: Reader, workers: int, watch: Callable[[], None]) -> list[dict[str, Any]]:
    """Look at the heads of all images of a source; in order of rows.

    Raises:
        SourceProblem: one cannot be read.
        WorkerFailed, Exception: see `pool.spread`.
    """
    count = len(reader.index)

    def some(start: int) -> list[dict[str, Any]]:
        looker = Looker(reader.index)
        for column in reader.spans(range(start, min(start + _STEP, count))):
            for span in column:
                if looker.name(span):
                    looker(span, *reader.ends(span, images.HEAD, images.TAIL))
        reader.close()
        return looker.found

    parts = spread(some, range(0, count, _STEP), workers, watch)
    return sorted((one for part in parts for one in part), key=lambda one: one["row"])


def damaged(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the rows of samples with an image that cannot be used."""
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
    """Return the index without some samples."""
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
    """Return records as a report has them: by name, each once."""
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


def shown(found: Sequence[str]) -> str:
    """Return the first of many lines, and how many more there are."""
    lines = [f"  {line}" for line in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  ... and {len(found) - _SHOWN} more")
    return "\n".join(lines)
