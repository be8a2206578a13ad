"""Block shuffle, for data much larger than memory: each rank reads large pieces of it, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from ...base.errors import UserError
from ...runtime.keys import derive
from ...runtime.order import Order
from ...runtime.shard import part
from ..errors import require_positive
from ..index import Int64s
from .plain import Computed, column, identity, keys, permuted

_LANES = 64
_BLOCK, _WINDOW = 128, 1024
_BLOCK_BYTES = 16 << 20  # of a piece that is read at once: a block of GPFS
_MEMORY = 4 << 30


@dataclass(frozen=True)
class Blocks(Computed):
    """Blocks of consecutive samples in random order, then shuffled within windows of them.

    1. The epoch's samples, turned by a random number, are cut into blocks; the blocks are permuted.
    2. What results is cut into `lanes` of equal length, and each lane into windows. Lanes change to
       their next window one after another, so that reading is steady.
    3. Within each window samples are permuted. A global batch takes the same number of samples from
       every lane, in the order of the lanes.

    Since a rank's part of a batch is contiguous, rank r of W reads the r-th W-th of the blocks and
    nothing else, whatever W is; only a lane on the border is read by two ranks. Give at least as
    many lanes as there will be ranks. Each epoch has each sample once. All of it is a function of
    (seed, epoch, position), and no state but the piece that was computed last.

    On all ranks together `lanes * window` samples (and those read ahead) should fit into memory.

    The price is that a rank's samples of one batch come from its own lanes, which a batch norm over
    them sees where samples of a class lie together; a full shuffle (`Shuffled`) has no such price.
    How well whole batches are mixed: of 1 281 167 samples in order of their 1000 classes, a batch
    of 1024 has 385 different classes on average with the defaults, 600 with blocks of 16, 565 with
    windows of 4096, and 641 of a full shuffle.

    Args:
        n: samples.
        seed: of the run.
        global_batch: the Loader's.
        block: samples that lie together, about 16 MiB of them on a parallel file system.
        window: samples of a lane that are shuffled together, several blocks.
        lanes: what each batch is taken from; at most one per sample of a batch is used.

    Raises:
        UserError: a number that makes no sense.
    """

    n: int
    seed: int
    global_batch: int
    block: int = _BLOCK
    window: int = _WINDOW
    lanes: int = _LANES

    def __post_init__(self) -> None:
        require_positive(
            global_batch=self.global_batch, block=self.block, window=self.window, lanes=self.lanes
        )
        if self.n < 0:
            raise UserError(f"Blocks: there cannot be {self.n} samples")

    @classmethod
    def of(
        cls,
        lengths: npt.ArrayLike | Dataset[Any],
        seed: int,
        global_batch: int,
        *,
        block_bytes: int = _BLOCK_BYTES,
        memory_bytes: int = _MEMORY,
        lanes: int = _LANES,
    ) -> Blocks:
        """Blocks and windows by bytes.

        Args:
            lengths: bytes of each sample, as `PackedDataset.lengths`; negative: not known. Or a
                data set that has them.
            block_bytes: of a block.
            memory_bytes: of all windows of all ranks together.

        Raises:
            UserError: a number that makes no sense.
        """
        known = column(lengths, "lengths")
        sizes = np.empty(0, np.int64) if known is None else known
        known = sizes[sizes >= 0]
        mean = max(1.0, float(known.mean())) if len(known) else block_bytes / _BLOCK
        lanes_used = max(1, min(lanes, global_batch))
        window = max(1, int(memory_bytes / mean / lanes_used))
        # Of few blocks a window would hold few classes, where data is sorted by them.
        block = max(1, min(int(block_bytes / mean), window // 8))
        return cls(len(sizes), seed, global_batch, block, window, lanes)

    @property
    def identity(self) -> str:
        return identity("Blocks", block=self.block, window=self.window, lanes=self._lanes)

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        batch, slot = np.divmod(positions, self.global_batch)
        size = np.where(batch == self._whole, self._rest, self.global_batch)
        lane = slot * self._lanes // np.maximum(size, 1)
        index = batch * self._per_batch(lane) + slot - self._first_slot(lane, size)
        window = self._window_of(lane, index)
        start, stop = self._bounds(lane, window)
        key = keys(derive(self.seed, "blocks", epoch), lane, window)
        index = start + permuted(index - start, stop - start, key)
        return self._line(epoch, self._first(lane) + index)

    def windows(self, epoch: int, start: int, rank: int, world_size: int) -> list[tuple[int, int]]:
        """(lane, window) of all that a rank takes from the global batch at position `start`."""
        size = min(self.global_batch, self.n - start)
        mine = part(size, rank, world_size)
        slots = np.arange(mine.start, mine.stop, dtype=np.int64)
        lane = slots * self._lanes // max(size, 1)
        index = start // self.global_batch * self._per_batch(lane) + slots
        index -= self._first_slot(lane, np.full_like(lane, size))
        pairs = np.stack([lane, self._window_of(lane, index)], axis=1)
        return [(int(a), int(b)) for a, b in np.unique(pairs, axis=0)]

    def members(self, epoch: int, lane: int, window: int) -> Int64s:
        """The samples of a window, int64, in the order of the blocks: mostly consecutive."""
        lanes = np.array([lane], np.int64)
        (start,), (stop,) = self._bounds(lanes, np.array([window], np.int64))
        (first,) = self._first(lanes)
        return self._line(epoch, first + np.arange(start, stop, dtype=np.int64))

    def _line(self, epoch: int, places: Int64s) -> Int64s:
        """Samples at places of the line of permuted blocks; the short block may lie anywhere."""
        if not self.n:
            return places
        count, short = divmod(self.n, self.block)
        cut = derive(self.seed, "short block", epoch) % (count + 1) * self.block
        behind = places >= cut + short
        in_short = (places >= cut) & ~behind
        number, offset = np.divmod(places - np.where(behind, short, 0), self.block)
        number = np.where(in_short, 0, number)
        if count:
            order = Order(count, derive(self.seed, "order of blocks"), epoch)
            # The blocks of a piece are few, and each is asked for by many of its samples.
            known, which = np.unique(number, return_inverse=True)
            number = order(torch.from_numpy(known)).numpy()[which.reshape(-1)]
        samples = np.where(
            in_short, count * self.block + places - cut, number * self.block + offset
        )
        turned: Int64s = (samples + derive(self.seed, "turn", epoch) % self.n) % self.n
        return turned

    @property
    def _lanes(self) -> int:
        return min(self.lanes, self.global_batch)

    @property
    def _whole(self) -> int:
        return self.n // self.global_batch

    @property
    def _rest(self) -> int:
        return self.n % self.global_batch

    def _first_slot(self, lane: Int64s, size: Int64s | int) -> Int64s:
        """Return where a lane's samples begin in a batch of a size."""
        return -(-lane * size // self._lanes)

    def _per_batch(self, lane: Int64s) -> Int64s:
        size = self.global_batch
        return self._first_slot(lane + 1, size) - self._first_slot(lane, size)

    def _first(self, lane: Int64s) -> Int64s:
        """Return where a lane begins on the line."""
        whole = self._whole * self._first_slot(lane, self.global_batch)
        return whole + self._first_slot(lane, self._rest)

    def _window_of(self, lane: Int64s, index: Int64s) -> Int64s:
        return (index + lane * self.window // self._lanes) // self.window

    def _bounds(self, lane: Int64s, window: Int64s) -> tuple[Int64s, Int64s]:
        """The places of a lane that a window has."""
        start = window * self.window - lane * self.window // self._lanes
        length = self._first(lane + 1) - self._first(lane)
        return np.maximum(start, 0), np.minimum(start + self.window, length)
