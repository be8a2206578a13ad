"""Rows of arrays: consecutive ones in one read, random ones of mapped data in one gather."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import BadContainer
from .index import Field, Int64s
from .opened import Samples
from .spans import Spans


def gather(samples: Samples, rows: Int64s, field: str | None, out: npt.NDArray[Any]) -> None:
    """Read rows of an array field.

    Args:
        samples: of a container, or of a split.
        rows: int64 (k,), numbers of `samples` in any order.
        field: of arrays; None: the first one.
        out: (k, *field.shape), C-contiguous, to which the values are converted.

    Raises:
        IndexError: there is no such row.
        BadContainer: the bytes are not where they should be, or no array of that shape.
        OSError: they cannot be read.
    """
    if not len(rows):
        return
    if rows.min() < 0 or rows.max() >= len(samples):
        raise IndexError(f"a row is outside the {len(samples)} that there are")
    about = samples.index.field(field)
    at = rows + samples._row(0)
    offsets = about.offset[at]
    size = np.dtype(about.dtype).itemsize * int(np.prod(about.shape, dtype=np.int64))
    plain = offsets.min() >= 0 and size and bool((about.length[at] == size).all())
    if not plain:  # compressed, or damaged, which `array` says best
        for place, row in enumerate(rows.tolist()):
            out[place] = samples.array(row, about.name)
        return
    files = np.zeros(len(at), np.uint32) if about.file is None else about.file[at]
    mapped = isinstance(samples._spans, Spans) and samples.how == "mmap"
    if mapped and _gathered(samples, about, files, offsets, size, out):
        return
    breaks = np.flatnonzero((np.diff(offsets) != size) | (np.diff(files) != 0)) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    for start, stop in pairwise(edges):
        count = stop - start
        data = samples._read(int(files[start]), int(offsets[start]), count * size)
        out[start:stop] = _array(samples, data, about, count)


def _gathered(
    samples: Samples,
    about: Field,
    files: npt.NDArray[np.uint32],
    offsets: Int64s,
    size: int,
    out: npt.NDArray[Any],
) -> bool:
    """Whether the rows lie on one grid of one file, and were taken from it as it is mapped."""
    low = int(offsets.min())
    places, rest = np.divmod(offsets - low, size)
    if rest.any() or (files != files[0]).any():
        return False
    count = int(places.max()) + 1
    grid = _array(samples, samples._read(int(files[0]), low, count * size), about, count)
    if len(places) > 1 and (np.diff(places) == 1).all():
        out[...] = grid
    else:
        out[...] = grid[places]
    return True


def _array(
    samples: Samples, data: memoryview | bytes, about: Field, count: int
) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(data, about.dtype).reshape(count, *about.shape)
    except ValueError:
        raise BadContainer(
            f"{samples.root}: field {about.name!r} has not the {about.dtype} of shape "
            f"{about.shape} that its index says: it is damaged"
        ) from None
