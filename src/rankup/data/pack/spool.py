"""Images encoded anew on the way: how long they get is known only afterwards.

So they are first put one behind another into files of the work folder, and these become the
source of the pack. A part whose lengths are there is done, so that this too goes on after a kill.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...base.holder import boot
from .. import images, indexes, resize
from ..errors import BadContainer
from ..index import Field, Index, Int64s
from ..strings import Strings
from . import notes as saying
from . import work as state
from .checks import UNDECODABLE, Images, record, refuse, without
from .progress import Progress
from .reader import DAMAGED, Reader, SourceProblem
from .work import Work
from .workers import Board, SourceProblems, run

ROWS = 256  # samples of a part


def spooled(
    work: Work,
    reader: Reader,
    side: int,
    bad: str,
    count: int,
    *,
    fsync: bool,
    watch: Callable[[], None],
    progress: Progress,
) -> Index:
    """The source with its images encoded anew; its files are relative to the work folder.

    Args:
        side: pixels that the shorter side of an image has at most.
        bad: what is done where one cannot be decoded: `fail`, `skip` it, or `keep` it unchanged.
        count: processes.

    Raises:
        UserError: an image cannot be decoded, and `bad` is `fail`.
        SourceProblems, Lost, OSError: see `workers.run`.
    """
    source = reader.index
    parts = -(-len(source) // ROWS)
    work.spool.mkdir(exist_ok=True)
    todo = [part for part in range(parts) if _made(work, part) is None]
    if not todo:
        with suppress(FileNotFoundError, BadContainer):
            return indexes.load(work.part / "spooled.npz")
    count = max(1, min(count, len(todo)))
    board = Board(count)
    of, look = Images(source), bad == "keep"

    def body(worker: int) -> None:
        for part in todo[worker::count]:
            rows = range(part * ROWS, min((part + 1) * ROWS, len(source)))
            found = _part(work, part, rows, reader, of, look, side, fsync, board, worker)
            state.write(_marker(work, part), {**found, "boot": "" if fsync else boot()})
        reader.close()

    def seen() -> None:
        progress(*board.done())
        watch()

    if todo:
        run(board, count, body, seen)
    made = [_made(work, part) or {} for part in range(parts)]
    index = _joined(work, source, [np.array(one["lengths"], np.int64) for one in made])
    notes = [one for part in made for one in part["found"]]
    undecoded = [one for one in notes if UNDECODABLE in one["problems"]]
    rows = sorted({one["row"] for one in undecoded})
    if bad == "fail":
        refuse(source, rows, undecoded)
    if bad == "skip" and rows:
        notes += [{"left_out": source.path(row)} for row in rows]
        index = without(index, rows)
    saying.write(work.part / "noted-resized.jsonl", notes)
    indexes.save(index, work.part / "spooled.npz")
    return index


def bytes_there(work: Work, source: Index) -> int:
    """Bytes of the source's samples in the parts that are done."""
    rows = np.zeros(len(source), np.bool_)
    for part in range(-(-len(source) // ROWS)):
        if _made(work, part) is not None:
            rows[part * ROWS : (part + 1) * ROWS] = True
    return sum(int(field.length[rows].clip(0).sum()) for field in source.fields)


def _part(
    work: Work,
    part: int,
    rows: range,
    reader: Reader,
    of: Images,
    look: bool,
    side: int,
    fsync: bool,
    board: Board,
    worker: int,
) -> dict[str, Any]:
    """Write a part; the lengths of each field and sample of it, and what is to be said of them."""
    lengths = np.zeros((len(reader.index.fields), len(rows)), np.int64)
    found, problems = [], []
    columns = reader.spans(rows.start, rows.stop)
    with _data(work, part).open("wb") as out:
        for place in range(len(rows)):
            for number, column in enumerate(columns):
                span = column[place]
                try:
                    data = b"".join(map(bytes, reader.chunks(span)))
                except SourceProblem as problem:
                    problems.append(str(problem))
                    continue
                known = reader.index.fields[number].hash
                if known is not None and xxhash.xxh3_64_intdigest(data) != known[span.row]:
                    problems.append(f"{reader.index.path(span.row)} {DAMAGED}")
                name = of.name(span)
                smaller, why = _resized(data, name, side)
                problems_of = _looked(data, name) if look else ()
                if why or problems_of:
                    found.append(record(span, (*problems_of, *why)))
                lengths[number, place] = out.write(smaller)
                board.add(worker, span.length, samples=number == 0)
        out.flush()
        if fsync:
            os.fsync(out.fileno())
    if problems:
        raise SourceProblems(problems)
    return {"lengths": lengths.tolist(), "found": found}


def _made(work: Work, part: int) -> dict[str, Any] | None:
    """What `_part` has given; None where the part is not there.

    What was written without fsync is only believed on the machine that has not crashed since.
    """
    try:
        found: dict[str, Any] = json.loads(_marker(work, part).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found if found["boot"] in ("", boot()) else None


def _resized(data: bytes, name: str, side: int) -> tuple[bytes, tuple[str, ...]]:
    """An image encoded anew; unchanged where it is none, or with what is wrong with it."""
    if not name:
        return data, ()
    try:
        return resize.resized(data, side), ()
    except BadContainer:
        return data, (UNDECODABLE,)


def _looked(data: bytes, name: str) -> tuple[str, ...]:
    if not name:
        return ()
    return images.look(data[: images.HEAD], data[-images.TAIL :], len(data), name).problems


def _joined(work: Work, source: Index, tables: list[Int64s]) -> Index:
    parts = len(tables)
    sizes = [int(table.sum()) for table in tables]
    fields: list[Field] = []
    file = np.repeat(np.arange(parts), [table.shape[1] for table in tables]).astype(np.uint32)
    # In a part the fields of a sample stand side by side.
    starts = [_starts(table) for table in tables]
    for number, one in enumerate(source.fields):
        offset = np.concatenate([table[number] for table in starts])
        length = np.concatenate([table[number] for table in tables])
        fields.append(replace(one, offset=offset, length=length, file=file, hash=None))
    names = [os.fsencode(_data(work, part).relative_to(work.part)) for part in range(parts)]
    return replace(
        source,
        container="files",
        files=Strings.of(names),
        fields=tuple(fields),
        sizes=np.array(sizes, np.int64),
        times=None,
    )


def _starts(table: Int64s) -> Int64s:
    flat = table.T.reshape(-1)
    return (np.cumsum(flat) - flat).reshape(table.T.shape).T


def _data(work: Work, part: int) -> Path:
    return work.spool / f"{part:06d}.bin"


def _marker(work: Work, part: int) -> Path:
    """What is known of a part; there once its bytes are."""
    return work.spool / f"{part:06d}.json"
