"""Long sequences by windows: files of tokens, and rows of arrays; and texts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from ..base.errors import UserError, nearest
from .batches import BatchRequest
from .containers import arrays
from .errors import BadContainer, require_positive
from .fetch import Made, allocate
from .index import Int64s, Strings
from .reader import PackedDataset
from .spans import Spans, way
from .stage import place
from .tokenize.folder import is_one, read

_LOOK = 32  # tokens at least, from which their type is seen


def text(data: bytes | memoryview, rng: np.random.Generator | None = None) -> str:
    """The transform of texts: UTF-8 bytes as a str.

    Raises:
        BadContainer: they are not UTF-8.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadContainer(f"not UTF-8 text (byte {error.start}: {error.reason})") from None


class _Windowed(Dataset[Any]):
    """A sequence of `_count` numbers or rows, of which an item has some and begins a stride on."""

    def __init__(self, count: int, needs: int, stride: int, what: str) -> None:
        if count < needs:
            raise UserError(f"{what}, and an item needs {needs}: take a smaller window")
        self.stride = stride
        self._items = (count - needs) // stride + 1

    def __len__(self) -> int:
        return self._items

    def _starts(self, items: npt.ArrayLike) -> Int64s:
        """Return where items begin; those below 0 are counted from the end."""
        numbers = np.asarray(items, np.int64)
        numbers = np.where(numbers < 0, numbers + self._items, numbers)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self._items:
            raise IndexError(f"no window {numbers.tolist()}: there are {self._items}, from 0 on")
        return numbers * self.stride


class Tokens(_Windowed):
    """Windows over a file of tokens, for a language model: item i is `(x, y)`.

    Both are int64 (window,); x begins at token `i * stride`, y one token later. The file is mapped,
    or read by position on a network file system, and only what is asked for becomes int64. Tokens
    at its end that make no whole window are left out. Where `rankup stage` has made a copy of the
    file on this node, that is read: `rankup stage openwebtext/train.bin`, a folder of `rankup
    tokenize`, or the `tokens.bin` of a recipe's.

        tokens = Tokens("openwebtext/train.bin", window=1024)
        loader = Loader(tokens, global_batch=512, seed=1)
        for x, y in loader:                      # int64 (512, 1024) each
            ...

    Args:
        path: `.npy` of one axis; any other file is bare numbers of `dtype`; a folder is one that
            `rankup tokenize` has made, whose shards are read as one text, or one of `rankup`'s own
            text recipes (`tokens.bin` and `tokens.json`).
        window: tokens of an item.
        dtype: of a bare file, numpy's; by default uint16, of little-endian bytes. `.npy` and
            folders say it themselves. Without it, a file that looks like wider numbers (every
            second token of the first window is 0) is refused.
        stride: tokens from one item to the next, by default `window`; less lets them overlap.
        split: of a recipe's folder: `train`, `valid` or `test`.
        vocab: tokens are less than it, which is checked as they are read; None: not checked.

    Attributes:
        staged: the copy on this node that is read in the file's place; None without one.

    Raises:
        UserError: nothing at `path`, a window longer than the file, or numbers without sense.
        BadContainer: the file is damaged, or no tokens.
    """

    # What it does is copying, which needs no process of its own.
    releases_gil = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        window: int,
        *,
        dtype: npt.DTypeLike | None = None,
        stride: int | None = None,
        split: str | None = None,
        vocab: int | None = None,
    ) -> None:
        stride = window if stride is None else stride
        require_positive(window=window, stride=stride, vocab=vocab)
        self.window, self.vocab = window, vocab
        sharded = is_one(Path(path))
        found = _shards if sharded else _folder if Path(path).is_dir() else _file
        self.path, self.dtype, self._start, self.tokens = found(Path(path), dtype, split)
        super().__init__(self.tokens, window + 1, stride, f"{self.path} has {self.tokens} tokens")
        if dtype is None and Path(path) == self.path and not sharded and self.path.suffix != ".npy":
            _require_uint16(self.path, window)
        # Where each file begins among the tokens: the shards of a folder, or the one file.
        names, sizes = [b""], [self.path.stat().st_size]
        self._firsts = np.zeros(1, np.int64)
        if sharded:
            shards = read(self.path).shards
            names = [shard.file.encode() for shard in shards]
            sizes = [shard.tokens * self.dtype.itemsize for shard in shards]
            self._firsts = np.cumsum([0, *(shard.tokens for shard in shards[:-1])], dtype=np.int64)
        self._files, self._sizes = Strings.of(names), np.array(sizes, np.int64)
        self._open()

    def _open(self) -> None:
        """Read the copy on this node, where there is one."""
        copy = place.copy_of(self.path, os.environ)
        same = copy is not None and copy.size == int(self._sizes.sum())
        self.staged = copy.root if copy is not None and same else None
        here = self.path if self.staged is None else self.staged
        self._spans = Spans(here, self._files, self._sizes, way(here))

    def _read(self, start: int, count: int) -> memoryview | bytes:
        """The bytes of some tokens; of several shards they are put together."""
        size, parts = self.dtype.itemsize, []
        file = int(np.searchsorted(self._firsts, start, side="right")) - 1
        while count:
            first = int(self._firsts[file])
            last = int(self._firsts[file + 1]) if file + 1 < len(self._firsts) else start + count
            some = min(count, last - start)
            parts.append(self._spans.read(file, self._start + (start - first) * size, some * size))
            start, count, file = start + some, count - some, file + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spans": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()  # the copy may be gone by now

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        x, y = self._windows(items)
        return list(zip(x, y, strict=True))

    def make(self, request: BatchRequest) -> Made:
        """A batch at once: inputs int64 (k, window), labels the same, one token further."""
        x, y = self._windows(request.samples)
        return Made(request, x, y.numpy(), request.count)

    def _windows(self, items: npt.ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
        starts = self._starts(items)
        shape = (len(starts), self.window)
        # Two, since models take `y.view(-1)`, which a view of one wider array has not.
        x, y = allocate(shape, torch.int64), allocate(shape, torch.int64)
        into, behind = x.numpy(), y.numpy()
        for row, start in enumerate(starts.tolist()):
            tokens = np.frombuffer(self._read(start, self.window + 1), self.dtype)
            if self.vocab is not None:
                wrong = np.flatnonzero((tokens < 0) | (tokens >= self.vocab))
                if len(wrong):
                    raise BadContainer(
                        f"{self.path}: token {start + wrong[0]} is {tokens[wrong[0]]}, and the "
                        f"vocabulary has {self.vocab}: another dtype than {self.dtype}, or another "
                        f"vocabulary?"
                    )
            into[row], behind[row] = tokens[:-1], tokens[1:]
        return x, y


class Windows(_Windowed):
    """Windows over the rows of an array, as for time series: item i is rows [i * stride, + window).

    An item is a tensor (window, *shape of a row) of the array's dtype; consecutive rows are one
    read. Windows do not know where one recording ends and the next one begins: make these splits.

    Args:
        dataset: of an array field, without a transform; a subset has its rows in its own order.
        window: rows of an item.
        stride: rows from one item to the next, by default `window`.

    Raises:
        UserError: no array, a window that is longer than it, or numbers that make no sense.
    """

    def __init__(self, dataset: PackedDataset, window: int, stride: int | None = None) -> None:
        stride = window if stride is None else stride
        require_positive(window=window, stride=stride)
        if isinstance(dataset.field, tuple):
            raise UserError(f"Windows are of one field, and this data set reads {dataset.field}")
        about = dataset.samples.index.field(dataset.field)
        if not about.dtype or dataset.transform is not None:
            raise UserError(
                f"Windows are of rows of numbers: field {about.name!r} is "
                f"{'changed by a transform' if about.dtype else 'bytes'}"
            )
        super().__init__(len(dataset), window, stride, f"there are {len(dataset)} rows")
        self.window, self.dataset, self._about = window, dataset, about
        self.releases_gil = bool((about.offset >= 0).all())  # others are read by Python code

    def __getitem__(self, item: int) -> torch.Tensor:
        return self._windows([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[torch.Tensor]:
        return list(self._windows(items))

    def make(self, request: BatchRequest) -> Made:
        """A batch at once: inputs (k, window, *shape of a row)."""
        return Made(request, self._windows(request.samples), None, request.count)

    def _windows(self, items: npt.ArrayLike) -> torch.Tensor:
        starts = self._starts(items)
        rows = self.dataset.rows((starts[:, None] + np.arange(self.window)).reshape(-1))
        out = allocate((len(rows), *self._about.shape), self._about.dtype)
        self.dataset.samples.arrays(rows, self._about.name, out.numpy())
        return out.view(len(starts), self.window, *self._about.shape)


def _file(
    path: Path, dtype: npt.DTypeLike | None, split: str | None
) -> tuple[Path, np.dtype[Any], int, int]:
    """A file of tokens: its path, their type, the byte where they begin and how many there are."""
    if not path.exists():
        raise UserError(f"{path} is not there; give a file of tokens (.npy, .bin)")
    if split is not None:
        raise UserError(f"split={split!r}: {path} is a file, and only a folder has splits")
    if path.suffix == ".npy":
        if dtype is not None:
            raise UserError(f"dtype={dtype!r}: {path} says its own")
        (array,) = arrays.headers(path)[:1]
        if len(array.shape) != 1 or array.start < 0:
            raise UserError(f"{path} has the shape {array.shape}: tokens are of one axis")
        return path, _integers(array.dtype, path), array.start, array.shape[0]
    try:
        kind = np.dtype("<u2" if dtype is None else dtype)
    except TypeError:
        raise UserError(
            f'dtype={dtype!r} is no type of numbers that numpy knows; "uint16" or "uint32"?'
        ) from None
    kind = _integers(kind, path)
    size = path.stat().st_size
    if size % kind.itemsize:
        raise BadContainer(
            f"{path} has {size} bytes, which is no whole number of {kind}: it was cut short, or is "
            "of another dtype"
        )
    return path, kind, 0, size // kind.itemsize


def _shards(
    path: Path, dtype: npt.DTypeLike | None, split: str | None
) -> tuple[Path, np.dtype[Any], int, int]:
    """A folder that `rankup tokenize` has made."""
    for name, value in (("split", split), ("dtype", dtype)):
        if value is not None:
            has = "no splits" if name == "split" else "a type of its own"
            raise UserError(f"{name}={value!r}: {path} has {has}; leave it away")
    found = read(path)
    return path, np.dtype(found.dtype).newbyteorder("<"), 0, found.tokens


def _folder(
    path: Path, dtype: npt.DTypeLike | None, split: str | None
) -> tuple[Path, np.dtype[Any], int, int]:
    try:
        about = json.loads((path / "tokens.json").read_text())
        splits = {str(name): (int(a), int(b)) for name, (a, b) in about["splits"].items()}
        kind = np.dtype(str(about["dtype"])).newbyteorder("<")
        size = (path / "tokens.bin").stat().st_size
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadContainer(
            f"{path} holds no complete tokens.bin and tokens.json ({error}); make it anew, or give "
            "a file"
        ) from None
    if split not in splits:
        asked = "name one of its splits" if split is None else f"no split {split!r}"
        raise UserError(f"{path}: {asked}; {nearest(split or '', splits)}")
    start, stop = splits[split]
    if not 0 <= start <= stop or stop * kind.itemsize > size:
        raise BadContainer(
            f"{path / 'tokens.bin'} has {size} bytes, and {split} should be tokens {start} to "
            f"{stop}: it was cut short"
        )
    return path / "tokens.bin", _integers(kind, path), start * kind.itemsize, stop - start


def _require_uint16(path: Path, window: int) -> None:
    """Refuse what looks like wider numbers, where nobody has said that it is uint16.

    Raises:
        UserError: every second token of the first window is 0.
    """
    first = np.fromfile(path, "<u2", max(window + 1, _LOOK))
    even, odd = bool(first[::2].any()), bool(first[1::2].any())
    if len(first) < _LOOK or even == odd:  # with all 0 it tells nothing
        return
    raise UserError(
        f"{path} begins with {first[:6].tolist()}: every second token is 0, as if they were of 4 "
        f'or 8 bytes, and without `dtype` they are taken for 2; give dtype="uint32", or what they '
        'are; with dtype="uint16" they are taken as they are'
    )


def _integers(kind: np.dtype[Any], path: Path) -> np.dtype[Any]:
    if kind.kind not in "iu":
        raise UserError(f"{path}: tokens are whole numbers, and these are {kind}")
    return kind
