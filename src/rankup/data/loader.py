"""`Loader`: batches of any map-style data set, the same ones on any number of ranks and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch.utils.data import Dataset

from ..base.errors import UserError
from ..runtime.deal import LEDGER
from ..runtime.world import setup
from . import engines
from .draw import Draw, draws
from .making import Bad, Fetch, handed_out
from .orders import Ordering, Sequential, Shuffled

Kind = Literal["auto", "threads", "processes"]


class Loader:
    """This rank's part of each global batch, made ahead of the training loop by workers.

        loader = rankup.data.Loader(photos, global_batch=1024, seed=1)
        for epoch in range(loader.epoch, 90):
            for images, labels in loader:
                ...

    Which samples a global batch has, and what their augmentation draws, depends on
    (seed, epoch, position) alone: not on ranks, workers, or on where a run was interrupted.
    Each `for` runs one epoch; the next one has the next epoch's order. `state_dict()` counts the
    batches that the loop was given, not those that were made ahead, and `load_state_dict` goes on
    there, at any number of ranks and workers. With `wrap`, gradients are weighed by what each rank
    was dealt.

    Args:
        dataset: map-style; a `PackedDataset` for augmentation that is keyed by sample.
        global_batch: samples of all ranks together.
        shuffle: a new permutation each epoch; False for evaluation. Or an order of its own, see
            `rankup.data.orders`.
        train: whether ranks have to step together; by default where the order shuffles. In
            evaluation a rank may get fewer batches than another: keep collectives out of that loop
            and use `rankup.mean(total, count)` after it.
        seed: of the order and of augmentation.
        drop_last: leave out a batch that is not full.
        workers: threads or processes of this rank that make batches; 0 for none; by default the
            cores of this rank minus one.
        kind: threads where the transform spends its time outside the interpreter's lock, else
            processes; `auto` sees which.
        collate: function of a list of items, where the inputs are of different shapes.
        prefetch: batches that each worker is ahead.
        context: `fork`, `spawn` or `forkserver`, for processes.
        timeout: seconds that a batch may take before that is an error; 0 for ever.
        pin_memory: hand out page-locked tensors, which a GPU reads while it computes; by default
            where there is one.
        rank, world_size: by default those of this process.

    Raises:
        UserError: values that make no sense together.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        global_batch: int,
        *,
        shuffle: bool | Ordering = True,
        train: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        workers: int | None = None,
        kind: Kind = "auto",
        collate: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 2,
        context: str | None = None,
        timeout: float = 1800.0,
        pin_memory: bool | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if global_batch < 1:
            raise UserError(f"global_batch={global_batch}: a batch has at least one sample")
        if (rank is None) != (world_size is None):
            raise UserError("give rank and world_size together, or neither")
        self.dataset = dataset
        self.global_batch = global_batch
        self.seed = seed
        count = len(dataset)  # type: ignore[arg-type]
        self.order: Ordering
        if isinstance(shuffle, bool):
            self.order = Shuffled(count, seed) if shuffle else Sequential(count)
        else:
            self.order = shuffle
            if shuffle.global_batch not in (None, global_batch):
                raise UserError(
                    f"this order is made for a global batch of {shuffle.global_batch}, and the "
                    f"Loader has {global_batch}"
                )
        self.train = train if train is not None else not isinstance(self.order, Sequential)
        self._drop_last = drop_last
        if rank is None or world_size is None:
            world = setup()
            rank, world_size = world.rank, world.world_size
        self._rank, self._world_size = rank, world_size
        pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        fetch = Fetch(dataset, collate)
        options = engines.Options(workers, kind, prefetch, context, timeout, pin)
        self._engine = engines.engine(fetch, options)
        self._epoch, self._consumed = 0, 0
        self._fresh = True  # the next `for` runs the epoch that is set, from where it is set
        self.bad: list[Bad] = []

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next `for` runs."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Samples of the epoch that the loops of all ranks were given."""
        return self._consumed

    def __len__(self) -> int:
        """Global batches of an epoch."""
        whole, rest = divmod(self.order.n, self.global_batch)
        return whole + bool(rest and not self._drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next `for` runs; where it is that of a resume, from there."""
        if epoch != self._epoch or not self._fresh:
            self._epoch, self._consumed = epoch, 0
        self._fresh = True

    def state_dict(self) -> dict[str, int]:
        """The place in the run: plain integers, equal on all ranks."""
        return {
            "version": 1,
            "seed": self.seed,
            "epoch": self._epoch,
            "consumed": self._consumed,
            "samples": self.order.n,
            "global_batch": self.global_batch,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on at a place of `state_dict`, at any number of ranks and workers.

        Raises:
            UserError: it is that of other data, or of a run with another seed or global batch.
        """
        own = self.state_dict()
        for name, what in _IDENTITY.items():
            if state.get(name) != own[name]:
                raise UserError(
                    f"this place in a run is one of {what} {state.get(name)}, and this Loader has "
                    f"{own[name]}: its batches would be others"
                )
        epoch, consumed = state.get("epoch"), state.get("consumed")
        for number, most in ((epoch, None), (consumed, self.order.n)):
            if type(number) is not int or number < 0 or (most is not None and number > most):
                raise UserError(f"this is no place in a run: {dict(state)}")
        self._epoch, self._consumed = state["epoch"], state["consumed"]
        self._fresh = True

    def __iter__(self) -> Iterator[Any]:
        if not self._fresh:
            self._epoch, self._consumed = self._epoch + 1, 0
        self._fresh = False
        self.bad = []
        try:
            for draw, made in self._engine.run(self._draws()):
                self._consumed = draw.stop
                self.bad += made.bad
                if self.train:
                    LEDGER.samples = (made.count, draw.total)
                yield handed_out(made)
        finally:
            if self.train:  # what follows may not have been dealt by anybody
                LEDGER.samples = None
        self._epoch, self._consumed, self._fresh = self._epoch + 1, 0, True

    def close(self) -> None:
        """End the workers; a `for` that follows starts new ones."""
        self._engine.close()

    def _draws(self) -> Iterator[Draw]:
        return draws(
            self.order,
            self.global_batch,
            self.seed,
            self._epoch,
            self._consumed,
            rank=self._rank,
            world_size=self._world_size,
            train=self.train,
            drop_last=self._drop_last,
        )


# What has to be equal for a place to mean the same samples, in words.
_IDENTITY = {
    "version": "version",
    "seed": "seed",
    "samples": "a number of samples of",
    "global_batch": "a global batch of",
}
