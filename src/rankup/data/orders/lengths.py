"""Batches of similar lengths, so that little is padded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from ...base.errors import UserError
from ...runtime.keys import derive
from ...runtime.order import Order
from ..index import Int64s
from .keyed import keys, permuted
from .plain import column, identity

_BATCHES = 64


@dataclass(frozen=True, eq=False)
class ByLength:
    """Each sample once, in batches of similar lengths.

    The epoch's random order is cut into windows, each is sorted by length and cut into batches, and
    the batches of a window are permuted. Every global batch but the last of the epoch has its exact
    size; the last one's samples are of a random length, too. Within a batch samples rise in length,
    so that a rank's part is padded less than the whole. A larger window sorts better and shuffles
    less.

    Args:
        lengths: int64 (n,) of each sample in any unit: bytes (`PackedDataset.lengths`), tokens; or
            a data set that has them.
        seed: of the run.
        global_batch: the Loader's.
        window: samples that are sorted together, by default 64 batches; made whole batches.

    Raises:
        UserError: a length is not known (-1), or a number makes no sense.
    """

    lengths: npt.ArrayLike | Dataset[Any]
    seed: int
    global_batch: int
    window: int | None = None
    n: int = field(init=False)
    identity: str = field(init=False, repr=False)
    _lengths: Int64s = field(init=False, repr=False)
    _count: int = field(init=False, repr=False)  # windows of an epoch
    # Epoch, window and its samples: replaced in one piece, since threads may share this.
    _at: tuple[int, int, Int64s] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lengths = np.asarray(column(self.lengths, "lengths"))
        if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
            raise UserError(
                f"lengths are whole numbers, one per sample; these are {lengths.dtype} of shape "
                f"{lengths.shape}"
            )
        unknown = int((lengths < 0).sum())
        if unknown:
            raise UserError(
                f"the lengths of {unknown} of {len(lengths)} samples are not known before they are "
                "read: give lengths of your own, or pack the data with `rankup pack`"
            )
        for name in ("global_batch", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"ByLength: {name}={value} has to be 1 or more")
        batches = _BATCHES if self.window is None else -(-self.window // self.global_batch)
        whole = len(lengths) // self.global_batch
        set_ = object.__setattr__
        set_(self, "lengths", lengths)
        set_(self, "n", len(lengths))
        set_(self, "_lengths", lengths)
        # As equal as can be: a window of one batch would not be sorted at all.
        set_(self, "_count", max(1, round(whole / batches)))
        set_(self, "_at", (-1, 0, np.empty(0, np.int64)))
        set_(self, "identity", identity("ByLength", windows=self._count, lengths=lengths))

    @property
    def samples(self) -> int:
        return self.n

    def slice(self, epoch: int, start: int, stop: int) -> Int64s:
        whole = max(1, self.n // self.global_batch)
        parts = []
        while start < stop:
            batch = min(start // self.global_batch, whole - 1)  # a short one is of the last window
            number = batch * self._count // whole
            first, until = self._first(number), self._first(number + 1)
            at, known, samples = self._at
            if (epoch, number) != (at, known):
                samples = self._sorted(epoch, number, first, until)
                object.__setattr__(self, "_at", (epoch, number, samples))
            end = min(stop, until)
            parts.append(samples[start - first : end - first])
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _first(self, number: int) -> int:
        """The position at which a window begins."""
        if number == self._count:
            return self.n
        whole = self.n // self.global_batch
        return -(-number * whole // self._count) * self.global_batch

    def _sorted(self, epoch: int, number: int, first: int, until: int) -> Int64s:
        """The samples of a window, batch by batch; a short one is the last."""
        samples = Order(self.n, self.seed, epoch)[first:until]
        assert not isinstance(samples, int)
        rows = samples.numpy()
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        count, short = divmod(len(rows), self.global_batch)
        # A short batch of the longest samples would come last in every epoch.
        cut = derive(self.seed, "short batch", epoch) % (count + 1) * self.global_batch
        last, rows = rows[cut : cut + short], np.delete(rows, np.s_[cut : cut + short])
        order = np.arange(count, dtype=np.int64)
        key = keys(derive(self.seed, "batches", epoch), np.full_like(order, number))
        order = permuted(order, np.full_like(order, count), key)
        return np.concatenate([rows.reshape(count, self.global_batch)[order].reshape(-1), last])
