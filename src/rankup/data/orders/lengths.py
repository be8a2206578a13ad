"""Batches of similar lengths, so that little is padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from ...base.errors import UserError
from ...runtime.keys import derive
from ...runtime.order import Order
from ..errors import require_positive
from ..index import Int64s
from .plain import Computed, column, identity, keys, permuted

_BATCHES = 64


class ByLength(Computed):
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

    def __init__(
        self,
        lengths: npt.ArrayLike | Dataset[Any],
        seed: int,
        global_batch: int,
        window: int | None = None,
    ) -> None:
        self.seed, self.global_batch, self.window = seed, global_batch, window
        require_positive(global_batch=global_batch, window=window)
        known = column(lengths, "lengths")
        lengths = self.lengths = np.empty(0, np.int64) if known is None else known
        unknown = int((lengths < 0).sum())
        if unknown:
            raise UserError(
                f"the lengths of {unknown} of {len(lengths)} samples are not known before they are "
                "read: give lengths of your own, or pack the data with `rankup pack`"
            )
        batches = _BATCHES if window is None else -(-window // global_batch)
        whole = len(lengths) // global_batch
        self.n = len(lengths)
        # Windows, as equal as can be: one of a single batch would not be sorted at all.
        self._count = max(1, round(whole / batches))
        self.identity = identity("ByLength", windows=self._count, lengths=lengths)

    def piece(self, epoch: int, start: int) -> tuple[int, Int64s]:
        """Return the samples of the window that a position is in, batch by batch."""
        whole = max(1, self.n // self.global_batch)
        batch = min(start // self.global_batch, whole - 1)  # a short one is of the last window
        number = batch * self._count // whole
        first, until = self._first(number), self._first(number + 1)
        samples = Order(self.n, self.seed, epoch)[first:until]
        assert not isinstance(samples, int)
        rows = samples.numpy()
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        count, short = divmod(len(rows), self.global_batch)
        # A short batch of the longest samples would come last in every epoch.
        cut = derive(self.seed, "short batch", epoch) % (count + 1) * self.global_batch
        last, rows = rows[cut : cut + short], np.delete(rows, np.s_[cut : cut + short])
        order = np.arange(count, dtype=np.int64)
        key = keys(derive(self.seed, "batches", epoch), np.full_like(order, number))
        order = permuted(order, np.full_like(order, count), key)
        rows = rows.reshape(count, self.global_batch)[order].reshape(-1)
        return first, np.concatenate([rows, last])

    def _first(self, number: int) -> int:
        """The position at which a window begins."""
        if number == self._count:
            return self.n
        whole = self.n // self.global_batch
        return -(-number * whole // self._count) * self.global_batch
