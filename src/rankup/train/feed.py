"""Where a loop's batches come from: made ahead of it where the split can do that."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import numpy as np
import torch

from ..data.batches import BatchRequest
from .task import Ahead, Batch, Split


class Feed:
    """The batches of a split.

    What was announced by `begin` is made ahead; whatever else is asked for, as by strategies in
    which nobody knows who computes what, is made when it is asked for. Both give the same batch.

    Args:
        seed: that augmentation is drawn from.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self._split, self._seed = split, seed
        self._made: Iterator[tuple[BatchRequest, Batch]] = iter(())
        self._next: tuple[BatchRequest, Batch] | None = None

    def begin(self, coming: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Say which (epoch, samples) will be asked for, in this order; nothing is made yet."""
        self.close()
        if isinstance(self._split, Ahead):
            self._made = self._split.ahead(self._request(*one) for one in coming)

    def batch(self, epoch: int, samples: torch.Tensor) -> Batch:
        """The batch of these samples, int64 of shape (n,), in that epoch."""
        if self._next is None:
            self._next = next(self._made, None)
        if self._next is None:
            return self.once(epoch, samples)
        request, batch = self._next
        if request.epoch != epoch or not np.array_equal(request.samples, samples.numpy()):
            return self.once(epoch, samples)
        self._next = None
        return batch

    def once(self, epoch: int, samples: torch.Tensor) -> Batch:
        """The same batch, made now; what comes next stays what it was."""
        if not isinstance(self._split, Ahead):
            return self._split.batch(samples)
        return self._split.once(self._request(epoch, samples))

    def close(self) -> None:
        """Leave what is being made ahead."""
        if isinstance(self._made, Generator):
            self._made.close()
        self._made, self._next = iter(()), None

    def _request(self, epoch: int, samples: torch.Tensor) -> BatchRequest:
        return BatchRequest.of(samples.numpy(), self._seed, epoch)
