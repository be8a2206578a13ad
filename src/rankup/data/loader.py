"""`Loader`: batches of any map-style data set, the same ones on any number of ranks and workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, IterableDataset

from ..base.errors import UserError
from ..runtime.deal import LEDGER
from . import device as devices
from . import engines
from .ahead import along
from .bad import Bad, Tally
from .cut import Cut
from .draw import Draw
from .errors import BadContainer
from .making import Fetch, Made, handed_out
from .orders import Ordering, Sequential, Shuffled
from .splits import unwrapped

Kind = Literal["auto", "threads", "processes"]
QUIET = "RANKUP_QUIET"


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

    A data set whose policy is to go on without bad samples (`on_bad` of `PackedDataset`) has them
    counted: at the end of an epoch each rank that met some prints a line to stderr.

    Args:
        dataset: map-style; a `PackedDataset` for augmentation that is keyed by sample.
        global_batch: samples of all ranks together.
        shuffle: a new permutation each epoch; False for evaluation. Or an order of its own, made
            for the length of this data set, see `rankup.data.orders`.
        train: whether ranks have to step together; by default where the order shuffles. In
            evaluation a rank may get fewer batches than another: keep collectives out of that loop
            and use `rankup.mean(total, count)` after it.
        seed: of the order and of augmentation; by default that of an order of its own, or 0. Two
            that differ are refused.
        drop_last: leave out a batch that is not full.
        workers: threads or processes of this rank that make batches; 0 for none; by default the
            cores of this rank minus one, and at least one.
        kind: threads where the transform spends its time outside the interpreter's lock, else
            processes; `auto` sees which. A transform that draws from torch's, Python's or numpy's
            own generators, not from `rng`, is repeatable in processes and without workers, not in
            threads.
        collate: function of a list of items, where the inputs are of different shapes.
        prefetch: batches that each worker is ahead.
        context: `fork`, `spawn` or `forkserver`, for processes.
        timeout: seconds that a batch may take before that is an error; 0 for ever.
        pin_memory: hand out page-locked tensors, which a GPU reads while it computes; by default
            where there is one.
        device: where batches are handed out; the next one is copied to a GPU while this one is
            trained on. By default they stay in memory.
        rank, world_size: by default those of this process.
        quiet: do not say how many workers there are by default; by default where `$RANKUP_QUIET`
            is set. Bad samples are reported all the same.

    Attributes:
        bad: samples of the running epoch that could not be made, of this rank.

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
        seed: int | None = None,
        drop_last: bool = False,
        workers: int | None = None,
        kind: Kind = "auto",
        collate: Callable[[list[Any]], Any] | None = None,
        prefetch: int = 2,
        context: str | None = None,
        timeout: float = 1800.0,
        pin_memory: bool | None = None,
        device: torch.device | str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        quiet: bool | None = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise UserError(
                f"a Loader takes samples by their numbers, and {type(dataset).__name__} is an "
                f"IterableDataset: take a PackedDataset, with shuffle=orders.Blocks(…) for blocks; "
                f"or torch's DataLoader for a stream"
            )
        if not hasattr(dataset, "__len__"):
            raise UserError(
                f"a Loader takes samples by their numbers, and {type(dataset).__name__} has no "
                f"length: for a stream take torch's DataLoader"
            )
        dataset = self.dataset = unwrapped(dataset)
        count = len(dataset)  # type: ignore[arg-type]
        if isinstance(shuffle, bool):
            shuffle = Shuffled(count, seed or 0) if shuffle else Sequential(count)
        if train is None:
            train = not isinstance(shuffle, Sequential)
        self._cut = Cut.of(
            shuffle, global_batch, seed, rank=rank, world_size=world_size, train=train,
            drop_last=drop_last, samples=count,
        )  # fmt: skip
        self.order, self.global_batch, self.seed = shuffle, global_batch, self._cut.seed
        self.train = train
        self._rank, self._world_size = self._cut.rank, self._cut.world_size
        self._device = None if device is None else torch.device(device)
        self._quiet = bool(os.environ.get(QUIET)) if quiet is None else quiet
        pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._pin = pin
        self._engine = engines.engine(
            Fetch(dataset, collate), workers, kind,
            prefetch=prefetch, context=context, timeout=timeout, pin_memory=pin,
        )  # fmt: skip
        if workers is None and not self._quiet and self._rank == 0:
            _say_workers(engines.default_workers(), type(self._engine).__name__.lower())
        self._place = self._cut.place()
        self._loop = object()  # the one that runs: an older one may not go on beside it
        self.bad: list[Bad] = []

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next `for` runs."""
        return self._place.epoch

    @property
    def consumed(self) -> int:
        """Samples of the epoch that the loops of all ranks were given."""
        return self._place.consumed

    def __len__(self) -> int:
        """Batches of this rank in an epoch; in training the same on every rank."""
        return len(self._cut)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next `for` runs; where it is that of a resume, from there."""
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place in the run: integers, and the order in words; equal on all ranks.

        After the last batch it is the end of the epoch, until the loop has ended: going on there
        gives a loop without batches, so that what follows it (validation) is not left out.
        """
        return self._place.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place of `state_dict`, at any number of ranks and workers.

        Raises:
            UserError: it is that of other data, or of a run with another seed, global batch
                or order.
        """
        self._place.load_state_dict(state)
        self._loop = object()

    def __iter__(self) -> Iterator[Any]:
        place = self._place
        place.begin()
        loop = self._loop = object()
        self.bad = []
        check = getattr(self.dataset, "check", None)
        if check is not None:
            check(place.epoch)
        counted = Tally(self.order.n, self._world_size)
        dealt: tuple[int, int] | None = None
        batches = self._batches()
        try:
            for draw, made, batch in batches:
                place.consumed = draw.stop
                self.bad += made.bad
                counted.add(made.bad)
                if not made.count and not self.train:  # all of them were dropped
                    continue
                if self.train:
                    dealt = LEDGER.samples = (made.count, draw.total)
                yield batch
                if loop is not self._loop:
                    raise UserError(
                        "this loop was left for another one over the same Loader, and cannot go "
                        "on: a Loader is at one place; make a second Loader for a second loop"
                    )
        finally:
            if dealt is not None and LEDGER.samples is dealt:
                LEDGER.samples = None  # what follows may not have been dealt by anybody
            batches.close()
        if check is not None:
            _check_again(check, place.epoch)
        line = counted.report(place.epoch)
        if line:  # never quiet: the run is another one than was asked for
            print(f"rankup data: rank {self._rank}: {line}", file=sys.stderr, flush=True)
        place.set(place.epoch + 1)

    def _batches(self) -> Generator[tuple[Draw, Made, Any], None, None]:
        made = self._engine.run(self._draws())
        batches: Iterator[tuple[Draw, Made, Any]] = ((*one, handed_out(one[1])) for one in made)
        if self._pin:
            batches = ((draw, of, devices.pin(batch)) for draw, of, batch in batches)
        if self._device is not None and self._device.type == "cuda":
            batches = devices.copied_ahead(batches, self._device)
        try:
            yield from batches
        finally:
            if isinstance(made, Generator):  # what it is ahead is not left to a garbage collector
                made.close()

    def close(self) -> None:
        """End the workers; a `for` that follows starts new ones."""
        self._engine.close()

    def _draws(self) -> Iterator[Draw]:
        found = self._cut.draws(self._place.epoch, self._place.consumed)
        return along(found, self.order, self.dataset, rank=self._rank, world_size=self._world_size)


def _check_again(check: Callable[[], None], epoch: int) -> None:
    """At the end of an epoch: what was written to meanwhile would else be seen in the next one."""
    try:
        check()
    except BadContainer as error:
        raise BadContainer(f"{error}. Samples of epoch {epoch} may have been others") from None


@cache
def _say_workers(workers: int, kind: str) -> None:
    """Once for each number, however many Loaders there are."""
    many = kind if workers > 1 else kind.removesuffix("es" if kind == "processes" else "s")
    print(
        f"rankup data: {workers} worker {many} per rank, by the cores that it has; "
        f"Loader(workers=…) chooses, {QUIET}=1 says nothing",
        file=sys.stderr,
        flush=True,
    )
