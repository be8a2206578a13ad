"""Images encoded anew on the way: how long they get is known only afterwards.

So they are first put one behind another into files of the work folder, and these become the source
of the pack. A part whose lengths are written down is done, so that this too goes on after a kill.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...base.amounts import size
from ...base.holder import boot
from .. import images, indexes
from ..errors import BadContainer
from ..index import Field, Index, Int64s
from ..pool import spread
from ..strings import Strings
from ..verified import Reader, SourceDamaged
from . import journal
from .checks import UNDECODABLE, Looker, refuse, without
from .context import Pack
from .journal import Work
from .report import index_bytes, missing_space, sample_bytes
from .source import root

ROWS = 256  # samples of a part
NAME = "spooled.npz"


def spooled(pack: Pack, source: Index) -> tuple[Index, int]:
    """Encode the images of the source anew (`--resize`), below the work folder.

    Returns:
        the new source, with files relative to the work folder; the bytes of the old one that were
        read now.

    Raises:
        UserError: an image cannot be decoded, and that is to end the pack.
        SourceProblem: a sample is not as it was scanned.
        WorkerFailed, OSError: see `pool.spread`.
    """
    work, bad = pack.work, pack.request.bad
    before = _bytes_there(work, source)
    if before:
        pack.say(f"going on: {size(before)} of {size(sample_bytes(source))} are encoded already")

    def needed() -> int:
        """Return the room for images that are smaller now, and again in the container."""
        there, now = journal.allocated(work.spool), _bytes_there(work, source)
        return int(2 * there * sample_bytes(source) / now) + index_bytes(source) if now else 0

    with missing_space(work, needed):
        parts = _encoded(pack, source, before)
        index = _joined(source, [np.array(one["lengths"], np.int64) for one in parts])
        notes = [one for part in parts for one in part["found"]]
        undecoded = [one for one in notes if UNDECODABLE in one["problems"]]
        rows = sorted({one["row"] for one in undecoded})
        if bad == "fail":
            refuse(source, rows, undecoded)
        if bad == "skip" and rows:
            notes += [{"left_out": source.path(row)} for row in rows]
            index = without(index, rows)
        (work.part / "notes-resized.jsonl").unlink(missing_ok=True)
        journal.append(work.part / "notes-resized.jsonl", notes)
        indexes.save(index, work.part / NAME)
    return index, sample_bytes(source) - before


def _encoded(pack: Pack, source: Index, before: int) -> list[dict[str, Any]]:
    """Write the parts that are not there yet; return what is known of each."""
    work, side, fsync = pack.work, pack.request.resize, pack.request.fsync
    assert side is not None
    work.spool.mkdir(exist_ok=True)
    reader, looker = Reader(source, root(pack.request)), Looker(source)
    count = -(-len(source) // ROWS)
    parts = _parts(work)
    look = pack.request.bad == "keep"

    def encode(part: int) -> dict[str, Any]:
        rows = range(part * ROWS, min((part + 1) * ROWS, len(source)))
        lengths = _encode(work, part, rows, reader, looker, side, look, fsync)
        reader.close()
        made_on = "" if fsync else boot()
        return {"part": part, "lengths": lengths, "found": looker.take(), "boot": made_on}

    todo = [part for part in range(count) if part not in parts]
    done = samples = 0
    with pack.progress("resizing", source, before) as progress:
        for one in spread(encode, todo, pack.workers, pack.watch):
            journal.append(_journal(work), [one])
            parts[one["part"]] = one
            done += _bytes(source, one["part"])
            samples += len(one["lengths"][0])
            progress(done, samples)
    return [parts[part] for part in range(count)]


def _bytes_there(work: Work, source: Index) -> int:
    """Return the bytes of the source's samples in the parts that are done."""
    return sum(_bytes(source, part) for part in _parts(work))


def _bytes(source: Index, part: int) -> int:
    rows = slice(part * ROWS, (part + 1) * ROWS)
    return sum(int(field.length[rows].clip(0).sum()) for field in source.fields)


def _parts(work: Work) -> dict[int, Any]:
    """Return what is written down of the parts that are there.

    What was written without fsync is only believed on the machine that has not crashed since.
    """
    found = journal.records(_journal(work))
    return {one["part"]: one for one in found if one["boot"] in ("", boot())}


def _encode(
    work: Work,
    part: int,
    rows: range,
    reader: Reader,
    looker: Looker,
    side: int,
    look: bool,
    fsync: bool,
) -> list[list[int]]:
    """Write a part; return the lengths of each field and sample of it."""
    lengths = np.zeros((len(reader.index.fields), len(rows)), np.int64)
    columns = reader.spans(rows)
    with (work.spool / _name(part)).open("wb") as out:
        for place in range(len(rows)):
            for number, column in enumerate(columns):
                span = column[place]
                data = b"".join(map(bytes, reader.chunks(span)))
                known = reader.index.fields[number].hash
                if known is not None and xxhash.xxh3_64_intdigest(data) != known[span.row]:
                    path = reader.index.path(span.row)
                    raise SourceDamaged(f"{path} is damaged: not the bytes it was packed with")
                name = looker.name(span)
                if name and look:
                    seen = images.look(data[: images.HEAD], data[-images.TAIL :], len(data), name)
                    looker.add(span, seen.problems)
                if name:
                    try:
                        data = images.resized(data, side)
                    except BadContainer:
                        looker.add(span, [UNDECODABLE])
                lengths[number, place] = out.write(data)
        out.flush()
        if fsync:
            os.fsync(out.fileno())
    return lengths.tolist()


def _joined(source: Index, tables: list[Int64s]) -> Index:
    parts = len(tables)
    fields: list[Field] = []
    file = np.repeat(np.arange(parts), [table.shape[1] for table in tables]).astype(np.uint32)
    # In a part the fields of a sample stand side by side.
    starts = [_starts(table) for table in tables]
    for number, one in enumerate(source.fields):
        offset = np.concatenate([table[number] for table in starts])
        length = np.concatenate([table[number] for table in tables])
        fields.append(replace(one, offset=offset, length=length, file=file, hash=None))
    return replace(
        source,
        container="files",
        files=Strings.of([f"spool/{_name(part)}".encode() for part in range(parts)]),
        fields=tuple(fields),
        sizes=np.array([int(table.sum()) for table in tables], np.int64),
        times=None,
    )


def _starts(table: Int64s) -> Int64s:
    flat = table.T.reshape(-1)
    return (np.cumsum(flat) - flat).reshape(table.T.shape).T


def _name(part: int) -> str:
    return f"{part:06d}.bin"


def _journal(work: Work) -> Path:
    return work.spool / "parts.jsonl"
