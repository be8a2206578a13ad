"""Looks at the heads of images: damaged ones, and those that are not what one expects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...base.amounts import words
from ...base.errors import UserError
from .. import images
from ..index import Index, ordered
from ..pool import spread
from ..verified import Reader, Span

UNDECODABLE = "undecodable"  # an image that `--resize` cannot encode anew
_SUFFIX = 8  # more than the longest of an image
_STEP = 1024  # samples that a worker looks at in one go
_SHOWN = 10


class Looker:
    """Looks at images while they pass by, and keeps what is to be said of them.

    Args:
        looks: False: nothing is looked at.
    """

    def __init__(self, index: Index, looks: bool = True) -> None:
        self._index, self._looks = index, looks
        self._found: dict[tuple[int, int], list[str]] = {}

    def __call__(self, span: Span, first: memoryview | bytes, last: memoryview | bytes) -> None:
        """Look at an image, of which these are the first bytes, or all, and the last."""
        name = self.name(span)
        if name:
            look = images.look(first[: images.HEAD], last[-images.TAIL :], span.length, name)
            self.add(span, look.problems)

    def passing(
        self, span: Span, chunks: Iterable[memoryview | bytes]
    ) -> Iterator[memoryview | bytes]:
        """Hand on the bytes of a sample, and look at it once they are through."""
        head = tail = b""
        for chunk in chunks:
            head = head or bytes(chunk[: images.HEAD])
            tail = (tail + bytes(chunk[-images.TAIL :]))[-images.TAIL :]
            yield chunk
        self(span, head, tail)

    def add(self, span: Span, problems: Iterable[str]) -> None:
        """Keep problems of an image, together with those that are known of it."""
        if problems:
            self._found.setdefault((span.row, span.field), []).extend(problems)

    def take(self) -> list[dict[str, Any]]:
        """Return `row`, `field` and `problems` of the images with problems since the last time."""
        found, self._found = self._found, {}
        return [
            {"row": row, "field": field, "problems": problems}
            for (row, field), problems in found.items()
        ]

    def name(self, span: Span) -> str:
        """Return the end of an image's name as a file; empty where there is none to look at."""
        field = self._index.fields[span.field]
        if field.dtype or not self._looks:
            return ""
        key = self._index.keys[span.row]
        if field.name != "data" or len(self._index.fields) > 1:
            key = b"%b.%b" % (key, field.name.encode("utf-8", "surrogateescape"))
        # Its end is enough: all that counts is the suffix.
        name = key[-_SUFFIX:].decode("latin-1")
        return name if name.rpartition(".")[2].lower() in images.SUFFIXES else ""


def looked_at(reader: Reader, workers: int, watch: Callable[[], None]) -> list[dict[str, Any]]:
    """Look at all images of a source; in order of rows.

    Raises:
        SourceProblem: one cannot be read.
        WorkerFailed, Exception: see `pool.spread`.
    """
    count = len(reader.index)

    def some(start: int) -> list[dict[str, Any]]:
        looker = Looker(reader.index)
        for column in reader.spans(range(start, min(start + _STEP, count))):
            for span in column:
                if not looker.name(span):
                    continue
                if span.offset < 0 or span.length <= images.HEAD + images.TAIL:
                    for _ in looker.passing(span, reader.chunks(span)):
                        pass
                    continue
                # What lies in one piece need not be read whole.
                head = span._replace(length=images.HEAD, whole=False)
                last = span.offset + span.length - images.TAIL
                tail = head._replace(offset=last, length=images.TAIL)
                looker(span, *(b"".join(reader.chunks(one)) for one in (head, tail)))
        reader.close()
        return looker.take()

    parts = spread(some, range(0, count, _STEP), workers, watch)
    return sorted((one for part in parts for one in part), key=lambda one: one["row"])


def usable(
    index: Index, bad: str, records: Sequence[Mapping[str, Any]], unusable: Collection[str]
) -> tuple[Index, list[dict[str, str]]]:
    """Leave out the samples that `--bad skip` does.

    Args:
        unusable: problems that an image cannot be used with.

    Returns:
        the index without them, and a note of each.

    Raises:
        UserError: with `--bad fail` there is such an image; names the first of them.
    """
    problems = {
        one["row"]: ", ".join(one["problems"])
        for one in records
        if not set(one["problems"]).isdisjoint(unusable)
    }
    if bad == "keep" or not problems:
        return index, []
    if bad == "fail":
        raise UserError(
            f"{words(len(problems), 'damaged image', 'damaged images')}:\n"
            f"{shown([f'{index.path(row)}: {problems[row]}' for row in sorted(problems)])}\n"
            "mend or remove them, or leave them out with --bad skip"
        )
    split_of = np.repeat(
        np.arange(len(index.splits)), [one.stop - one.start for one in index.splits]
    )
    split_of[list(problems)] = -1
    notes = [{"left_out": index.path(row)} for row in sorted(problems)]
    return ordered(index, split_of, index.splits), notes


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
