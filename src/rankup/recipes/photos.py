"""Photos as a split of a recipe: made ahead of the loop by workers, and anew in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..data import engines
from ..data.batches import BatchRequest
from ..data.fetch import Fetch, Made
from ..data.reader import PackedDataset
from ..train.task import Batch


@dataclass(frozen=True)
class Making:
    """How batches are made.

    Attributes:
        decoder: `rankup`, or `dali`.
        workers: threads, or processes, of this rank; None: by the cores that it has.
        device: on which DALI decodes.
    """

    decoder: str
    workers: int | None
    device: torch.device


class Photos:
    """A split whose batches are (photos as uint8 (n, 3, size, size) channels last, labels).

    What a batch holds depends on (seed, epoch, samples) alone, not on who makes it or when. Under
    DALI what is not made ahead (by `async-sgd` and `gossip`) is decoded by rankup: the same parts
    of the photos, with pixels that differ by how they were rounded.

    Args:
        dataset: with a transform of `data.photos`.
    """

    def __init__(self, dataset: PackedDataset, making: Making) -> None:
        self.dataset, self._making = dataset, making
        self._engine: engines.Engine | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def count(self, samples: torch.Tensor) -> int:
        return len(samples)

    def batch(self, samples: torch.Tensor) -> Batch:
        return self.once(BatchRequest.of(samples.numpy()))

    def once(self, request: BatchRequest) -> Batch:
        return _batch(Fetch(self.dataset)(request))

    def ahead(self, requests: Iterator[BatchRequest]) -> Iterator[tuple[BatchRequest, Batch]]:
        if self._engine is None:
            self._engine = self._started()
        for made in self._engine.run(requests):
            yield made.request, _batch(made)

    def _started(self) -> engines.Engine:
        making = self._making
        if making.decoder == "dali":
            from ..data.dali import engine

            return engine(self.dataset, making.workers, making.device)
        pin = making.device.type == "cuda"
        return engines.engine(Fetch(self.dataset), making.workers, pin_memory=pin)


def _batch(made: Made) -> Batch:
    photos, labels = made.batch()
    return photos, labels
