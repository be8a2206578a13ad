"""A SquashFS: mksquashfs writes it from a stream, so one process reads all samples in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import xxhash

from .. import images
from ..containers import squashfs, squashfs_write
from ..index import Index
from .checks import Looker
from .copy import SourceProblems
from .layout import Shape
from .progress import Progress
from .reader import Reader, damaged
from .trees import clear
from .work import Work


def written(
    work: Work,
    reader: Reader,
    shape: Shape,
    count: int,
    *,
    look: bool,
    watch: Callable[[], None],
    progress: Progress,
) -> Index:
    """Write the image anew, and give its index with the hashes of its samples.

    Args:
        count: threads of mksquashfs.

    Raises:
        SourceProblem, SourceProblems: a source is not as it was scanned.
        UserError, OSError: see `squashfs_write.write`; there is no image then.
    """
    clear(work.data)
    source = reader.index
    hashes = np.zeros((len(source.fields), len(source)), np.uint64)
    looker = Looker(source, work.part / "noted-0-0.jsonl") if look else None
    bytes_, samples = 0, 0

    def chunks(field: int, row: int) -> Iterator[memoryview | bytes]:
        nonlocal bytes_, samples
        watch()
        [span] = reader.spans(row, row + 1)[field]
        first, last = memoryview(b""), memoryview(b"")
        digest = xxhash.xxh3_64()
        for chunk in reader.chunks(span):
            view = memoryview(chunk)
            digest.update(view)
            if looker is not None:
                first = first if len(first) else memoryview(bytes(view))
                last = memoryview(bytes(view[-images.TAIL :]))
            yield chunk
            bytes_ += len(view)
        hashes[field, row] = digest.intdigest()
        if looker is not None:
            looker(span, first, last)
        samples += field == 0
        progress(bytes_, samples)

    squashfs_write.write(
        squashfs.members(source, chunks), work.data, block=shape.block, processors=count
    )
    reader.check()
    reader.close()
    found = damaged(source, 0, hashes)
    if found:
        raise SourceProblems(found)
    if looker is not None:
        looker.write()
    index = squashfs.indexed(source, work.data, hashes)
    fields = tuple(
        replace(field, hash=column) for field, column in zip(index.fields, hashes, strict=True)
    )
    return replace(index, fields=fields)
