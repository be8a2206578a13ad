"""What happens to a `PackedDataset` outside of a Loader, where nobody else counts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.utils.data import get_worker_info

from .making import Bad, BadSample
from .tally import most_bad

_WORKERS = 1024  # of a DataLoader; a further one shares the slot of another
_HERE = _WORKERS  # the slot of the main process
_WARNED = _WORKERS + 1  # not a slot: whether the warning was given


def _table() -> torch.Tensor:
    return torch.zeros((_WORKERS + 2, 3), dtype=torch.int64).share_memory_()


@dataclass(frozen=True)
class Outside:
    """Samples of an epoch, counted by all workers of torch's DataLoader together.

    A data set and its subsets share one. Each process writes its own slot alone, without a lock.

    Attributes:
        slots: int64 (slots, 3) in shared memory: epoch + 1, samples made in it, bad ones.
    """

    slots: torch.Tensor = field(default_factory=_table)

    def count(self, epoch: int, made: int, bad: Sequence[Bad], whole: int, done: str) -> None:
        """Add samples; say how many are bad whenever that has doubled.

        Args:
            made: that were asked for.
            whole: samples of the data set.
            done: what is done about bad ones.

        Raises:
            BadSample: they are more than can be the data's fault.
        """
        info = get_worker_info()
        slot = self.slots[_HERE if info is None else info.id % _WORKERS].numpy()
        if slot[0] != epoch + 1:
            slot[:] = epoch + 1, 0, 0
        slot[1] += made
        if not bad:
            return
        more = len({one.sample for one in bad})  # one may have been tried for several others
        slot[2] += more
        asked, total = self._sums(epoch)
        passes = -(-asked // whole)  # of one epoch: validation repeats it
        last = f"{bad[-1].name}: {bad[-1].why}"
        most = most_bad(whole) * passes
        if total > most:
            raise BadSample(
                f"{total} samples of epoch {epoch} could not be made, and {most} is the most that "
                f"is gone on with; the last is {last}"
            )
        if total.bit_length() > (total - more).bit_length():
            text = f"{total} of {asked} samples of epoch {epoch} could not be made and were {done}"
            print(f"rankup data: {text}; the last is {last}", file=sys.stderr, flush=True)

    def repeats(self, epoch: int, most: int) -> None:
        """Warn once where an epoch's augmentation is drawn for more samples than it can have."""
        warned = self.slots[_WARNED].numpy()
        if warned[0] or self._sums(epoch)[0] <= most:
            return
        warned[0] = 1
        print(
            f"rankup data: augmentation of epoch {epoch} is drawn again, so that samples are "
            f"augmented as before: call set_epoch before each epoch. Through torch's Subset a "
            f"`Batches` cannot say the epoch: take dataset.subset(…)",
            file=sys.stderr,
            flush=True,
        )

    def _sums(self, epoch: int) -> tuple[int, int]:
        slots = self.slots[:_WARNED].numpy()
        made, bad = slots[slots[:, 0] == epoch + 1, 1:].sum(0).tolist()
        return made, bad
