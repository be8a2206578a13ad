"""Rows of a batch: made one after the other, or those of arrays read all at once."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .errors import BadContainer
from .fetch import allocate
from .index import Field, Int64s
from .opened import Samples
from .spans import Spans
from .transforms import Generators, Shaped, Transform, seed_process


class Batch:
    """The samples of a batch that are made, in one array where the transform says their shape."""

    def __init__(self, shaped: Shaped | None, count: int, key: int) -> None:
        self.rows: list[int] = []
        self._key, self._generators = key, Generators(key)
        self._shaped = shaped
        self._items: list[Any] = []
        self._whole: torch.Tensor | None = None
        if shaped is not None:
            self._whole = _allocated(shaped, max(1, count))
            self._out = self._whole.numpy()

    def add(self, row: int, data: Any, transform: Transform | None) -> None:
        if self._shaped is not None:
            self._shaped.into(data, self._generators.of(row), self._out[len(self.rows)])
        elif transform is not None:
            seed_process(self._key, row)
            self._items.append(transform(data, self._generators.of(row)))
        else:
            self._items.append(plain(data))
        self.rows.append(row)

    @property
    def drew(self) -> bool:
        """True where the transform drew random numbers for the last sample."""
        return self._generators.used()

    def inputs(self) -> Any:
        if self._whole is None or self._shaped is None:
            return self._items
        inputs = self._whole[: len(self.rows)]
        return inputs.permute(0, 3, 1, 2) if self._shaped.channels_last else inputs


def _allocated(shaped: Shaped, count: int) -> torch.Tensor:
    dtype = torch.from_numpy(np.empty(0, shaped.dtype)).dtype
    return allocate((count, *shaped.shape), dtype)


def plain(data: Any) -> Any:
    """An item without a transform: arrays as tensors, bytes as they are."""
    if isinstance(data, dict):
        return {name: plain(value) for name, value in data.items()}
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data.copy())  # what is mapped may not be written to
    return bytes(data)


class PerThread:
    """A reader of the samples per thread: what decompresses them keeps the place it is at."""

    def __init__(self) -> None:
        self._local = threading.local()

    def of(self, samples: Samples) -> Samples:
        if threading.current_thread() is threading.main_thread():
            return samples
        known = self._local.__dict__
        if known.get("of") is not samples:
            known.update(of=samples, mine=samples.apart())
        mine: Samples = known["mine"]
        return mine

    def __reduce__(self) -> tuple[type[PerThread], tuple[()]]:
        return PerThread, ()


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
    """Take rows that lie on one grid of a mapped file; return False where they do not."""
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
