"""Images encoded anew on the way: how long they get is known only afterwards.

So they are first put one behind another into files of the work folder, and these become the source
of the pack. A part whose lengths are written down is done, so that this too goes on after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from ...base.amounts import size
from ...base.holder import boot
from .. import images, indexes
from ..errors import BadContainer
from ..index import Field, Index, Int64s, Strings
from ..pool import spread
from ..verified import Reader, SourceDamaged
from . import journal
from .checks import UNDECODABLE, Looker, usable
from .journal import Pack
from .layout import sample_bytes
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
    before = _bytes(source, _parts(pack))
    if before:
        pack.say(f"going on: {size(before)} of {size(sample_bytes(source))} are encoded already")

    parts = _encoded(pack, source)
    notes = [one for part in parts for one in part["found"]]
    index = _joined(source, [np.array(one["lengths"], np.int64) for one in parts])
    index, left_out = usable(index, pack.request.bad, notes, {UNDECODABLE})
    noted = pack.part / "notes-resized.jsonl"
    noted.unlink(missing_ok=True)
    journal.append(noted, [*notes, *left_out])
    indexes.save(index, pack.part / NAME)
    return index, sample_bytes(source) - before


def _encoded(pack: Pack, source: Index) -> list[dict[str, Any]]:
    """Write the parts that are not there yet; return what is known of each.

    These are its number, `lengths` of each field and sample, and what was `found` of images.
    """
    shorter_side, fsync = pack.request.resize, pack.request.fsync
    assert shorter_side is not None
    pack.spool.mkdir(exist_ok=True)
    reader, looker = Reader(source, root(pack.request)), Looker(source)
    looks = pack.request.bad == "keep"  # else it was done before
    count = -(-len(source) // ROWS)
    parts = _parts(pack)

    def encode(part: int) -> dict[str, Any]:
        rows = range(part * ROWS, min((part + 1) * ROWS, len(source)))
        columns = reader.spans(rows)
        lengths = np.zeros((len(columns), len(rows)), np.int64)
        with (pack.spool / _name(part)).open("wb") as out:
            for place in range(len(rows)):
                for number, column in enumerate(columns):
                    span = column[place]
                    data = b"".join(map(bytes, reader.chunks(span)))
                    known = source.fields[number].hash
                    if known is not None and xxhash.xxh3_64_intdigest(data) != known[span.row]:
                        path = source.path(span.row)
                        raise SourceDamaged(f"{path} is damaged: not the bytes it was packed with")
                    if looker.name(span):
                        if looks:
                            looker(span._replace(length=len(data)), data, data)
                        try:
                            data = images.resized(data, shorter_side)
                        except BadContainer:
                            looker.add(span, [UNDECODABLE])
                    lengths[number, place] = out.write(data)
            out.flush()
            if fsync:
                os.fsync(out.fileno())
        reader.close()
        made_on = "" if fsync else boot()
        return {"part": part, "lengths": lengths.tolist(), "found": looker.take(), "boot": made_on}

    todo = [part for part in range(count) if part not in parts]
    with pack.progress("resizing", source) as progress:
        done = _bytes(source, parts)
        progress(done)
        for one in spread(encode, todo, pack.workers, pack.watch):
            journal.append(pack.spool / "parts.jsonl", [one])
            parts[one["part"]] = one
            done += _bytes(source, [one["part"]])
            progress(done, samples=min(len(parts) * ROWS, len(source)))
    return [parts[part] for part in range(count)]


def _parts(pack: Pack) -> dict[int, Any]:
    """Return what is written down of the parts that are there.

    What was written without fsync is only believed on the machine that has not crashed since.
    """
    found = journal.records(pack.spool / "parts.jsonl")
    return {one["part"]: one for one in found if one["boot"] in ("", boot())}


def _bytes(source: Index, parts: Iterable[int]) -> int:
    """Return the bytes of the source's samples in some parts."""
    rows = [slice(part * ROWS, (part + 1) * ROWS) for part in parts]
    return sum(int(one.length[part].clip(0).sum()) for one in source.fields for part in rows)


def _joined(source: Index, tables: list[Int64s]) -> Index:
    """Return the index of the parts, by the lengths of each field and sample of each of them."""
    # In a part the fields of a sample stand side by side.
    ends = [np.cumsum(table.T).reshape(table.T.shape).T for table in tables]
    file = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
    fields: list[Field] = []
    for number, one in enumerate(source.fields):
        length = np.concatenate([table[number] for table in tables])
        offset = np.concatenate([table[number] for table in ends]) - length
        places = {"offset": offset, "length": length, "file": file.astype(np.uint32)}
        fields.append(replace(one, **places, hash=None))
    return replace(
        source,
        container="files",
        files=Strings.of([f"spool/{_name(part)}".encode() for part in range(len(tables))]),
        fields=tuple(fields),
        sizes=np.array([int(table.sum()) for table in tables], np.int64),
        times=None,
    )


def _name(part: int) -> str:
    return f"{part:06d}.bin"
