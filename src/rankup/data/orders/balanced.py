"""Each class equally often."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from ...base.errors import UserError
from ...runtime.keys import derive
from ..errors import require_positive
from ..index import Int64s
from .plain import Computed, column, identity, keys, permuted


class Balanced(Computed):
    """Each class equally often: the epoch is rounds, and each round has one sample of each class.

    A class's samples come in random order, and none again before all were there; that goes on from
    epoch to epoch, so that all samples of a large class are seen in the end. Classes without
    samples have none to give: they are left out. Any number of ranks agrees on it.

    Args:
        labels: int64 (samples,), as `PackedDataset.labels`; or a data set that has them.
        seed: of the run.
        per_class: samples of each class in an epoch; by default so many that an epoch is about as
            long as the data set.
        unlabelled: `error`, or `skip` samples that have no class (label -1).

    Raises:
        UserError: there are no labels, or samples without one.
    """

    def __init__(
        self,
        labels: npt.ArrayLike | Dataset[Any] | None,
        seed: int = 0,
        per_class: int | None = None,
        unlabelled: str = "error",
        global_batch: int | None = None,
    ) -> None:
        self.seed, self.global_batch = seed, global_batch
        known = column(labels, "labels")
        if known is None:
            raise UserError("this data has no labels, and so no classes to balance")
        if unlabelled not in ("error", "skip"):
            raise UserError(f"unlabelled={unlabelled!r} is not known: error or skip")
        require_positive(per_class=per_class)
        labels = self.labels = known
        without = int((labels < 0).sum())
        if without and unlabelled == "error":
            raise UserError(
                f"{without} of {len(labels)} samples have no label: leave them out with "
                "unlabelled='skip'"
            )
        rows = np.flatnonzero(labels >= 0)
        rows = rows[np.argsort(labels[rows], kind="stable")]
        _, starts, counts = np.unique(labels[rows], return_index=True, return_counts=True)
        if not len(starts):
            raise UserError("there is no sample with a label to balance classes with")
        rounds = -(-len(rows) // len(starts)) if per_class is None else per_class
        self.n = rounds * len(starts)
        self.identity = identity("Balanced", per_class=rounds, labels=labels)
        self._rounds = rounds
        self._members = rows  # samples, class by class
        self._starts, self._counts = starts, counts  # of each class in it

    @property
    def samples(self) -> int:
        return len(self.labels)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        classes = len(self._starts)
        turn, slot = np.divmod(positions, classes)
        turn = turn + epoch * self._rounds
        base = derive(self.seed, "balanced")
        one = permuted(slot, np.full_like(slot, classes), keys(base, turn))
        size = self._counts[one]
        through, place = np.divmod(turn, size)
        place = permuted(place, size, keys(derive(base, "class"), one, through))
        return self._members[self._starts[one] + place]
