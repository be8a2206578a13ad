"""`Loader`: batches of any map-style data set, the same ones on any number of ranks and workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, IterableDataset

from ..base.errors import UserError
from ..base.text import say
from ..runtime.context import CONTEXT
from . import engines
from .batches import Place
from .errors import BadContainer
from .fetch import Bad, Fetch, Made, Tally
from .orders import Ordering, Sequential, Shuffled, unwrapped

Kind = Literal["auto", "threads", "processes"]
# What was made, and the batch of it.
_Batch = tuple[Made, Any]
QUIET = "RANKUP_QUIET"


class Loader(Place):
    """This rank's part of each global batch, made ahead of the training loop by workers.

        loader = rankup.data.Loader(photos, global_batch=1024, seed=1)
        for epoch in range(loader.epoch, 90):
            for images, labels in loader:
                ...

    Which samples a global batch has, and what their augmentation draws, depends on
    (seed, epoch, position) alone: not on ranks, workers, or on where a run was interrupted.
    Each `for` runs one epoch; the next one has the next epoch's order. `state_dict()` counts the
    batches that the loop was given, not those that were made ahead, and `load_state_dict` goes on
    there, at any number of ranks and workers. With `wrap`, gradients are weighed by the share that
    each rank has.

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
        order, global_batch, seed, train, rank, world_size: as above.
        epoch: that runs, or that the next `for` runs.
        consumed: samples of it that the loops of all ranks were given.
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
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise UserError(
                f"a Loader takes samples by their numbers, and {type(dataset).__name__} is an "
                f"IterableDataset or has no length: take a PackedDataset, or torch's DataLoader "
                f"for a stream"
            )
        dataset = self.dataset = unwrapped(dataset)
        count = len(dataset)  # type: ignore[arg-type]
        if isinstance(shuffle, bool):
            shuffle = Shuffled(count, seed or 0) if shuffle else Sequential(count)
        if train is None:
            train = not isinstance(shuffle, Sequential)
        if hasattr(shuffle, "samples") and shuffle.samples != count:
            raise UserError(
                f"this order is made for a data set of {shuffle.samples} samples, and this one has "
                f"{count}: make the order of len(dataset), also where that is a subset"
            )
        super().__init__(
            shuffle,
            global_batch,
            seed=seed,
            train=train,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        self._device = None if device is None else torch.device(device)
        quiet = bool(os.environ.get(QUIET)) if quiet is None else quiet
        self._pin = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._engine = engines.engine(
            Fetch(dataset, collate),
            workers,
            kind,
            prefetch=prefetch,
            context=context,
            timeout=timeout,
            pin_memory=self._pin,
        )
        if workers is None and not quiet and self.rank == 0:
            _say_workers(engines.default_workers(), type(self._engine).__name__.lower())
        # The one that runs: an older one may not go on beside it, none after `close`.
        self._loop: object = None
        self.bad: list[Bad] = []

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._loop = object()

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        loop = self._loop = object()
        self.bad = []
        check = getattr(self.dataset, "check", None)
        if check is not None:
            check(self.epoch)
        counted = Tally(self.epoch, self.order.n, self.world_size)
        share: tuple[int, int] | None = None
        done = self.consumed // self.global_batch
        left = len(self) - done * self._gets(self.global_batch)
        batches = self._batches()
        try:
            for made, batch in batches:
                left -= 1
                self.consumed = made.request.stop
                self.bad += made.bad
                counted.add(made.bad)
                if not made.count and not self.train:  # all of them were dropped
                    continue
                CONTEXT.give(made.count, made.request.total, self.train)
                if self.train:
                    share = CONTEXT.samples
                yield batch
                if loop is not self._loop:
                    if not left and self._loop is None:  # closed at its last batch
                        break
                    raise UserError(
                        "this loop cannot go on: its Loader was closed, or is at another place "
                        "(load_state_dict, or another loop); close it after the loop, and make a "
                        "second Loader for a second loop"
                    )
        finally:
            if share is not None and CONTEXT.samples is share:
                CONTEXT.samples = None  # what follows may not have been sharded by anybody
            batches.close()
        if check is not None:
            try:  # what was written to meanwhile would else be seen in the next epoch
                check()
            except BadContainer as error:
                raise BadContainer(
                    f"{error}. Samples of epoch {self.epoch} may have been others"
                ) from None
        line = counted.report()
        if line:  # never quiet: the run is another one than was asked for
            say(f"rank {self.rank}: {line}")
        self.go_to(self.epoch + 1)

    def _batches(self) -> Generator[_Batch, None, None]:
        requests = self.requests()
        made = self._engine.run(requests)
        batches: Iterator[_Batch] = ((one, one.batch()) for one in made)
        if self._pin:
            batches = ((one, _mapped(batch, torch.Tensor.pin_memory)) for one, batch in batches)
        if self._device is not None and self._device.type == "cuda":
            batches = copied_ahead(batches, self._device)
        try:
            yield from batches
        finally:
            # What it is ahead is not left to a garbage collector, and a Loader that nobody has any
            # more not to its own requests, which torch keeps with the workers.
            for one in (made, requests):
                if isinstance(one, Generator):
                    one.close()

    def close(self) -> None:
        """End the workers, and with an error a loop that goes on; a new one starts new workers."""
        self._loop = None
        self._engine.close()


@cache
def _say_workers(workers: int, kind: str) -> None:
    """Once for each number, however many Loaders there are."""
    say(
        f"{kind} that make batches: {workers} per rank, by its cores; Loader(workers=…) chooses, "
        f"{QUIET}=1 says nothing"
    )


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting of dicts, lists and tuples, with each tensor through a function."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {name: _mapped(one, function) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(one, function) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(one, function) for one in value)
    return value


# With the batch on its way, and what tells that it is there.
_Copied = tuple[Made, Any, Any, torch.cuda.Event]


def copied_ahead(batches: Iterator[_Batch], device: torch.device) -> Iterator[_Batch]:
    """The same batches on a GPU: the next one is copied while the present one is trained on.

    The copies run on a stream of their own; what is handed out may be used on the stream that is
    current then, as if it had been made there. Page-locked batches are copied without waiting.
    """
    stream = torch.cuda.Stream(device)
    waiting: _Copied | None = None
    for one, batch in batches:
        with torch.cuda.stream(stream):
            there = _mapped(batch, lambda value: value.to(device, non_blocking=True))
            done = torch.cuda.Event()
            done.record(stream)
        if waiting is not None:
            yield _arrived(waiting, device)
        waiting = one, batch, there, done
    if waiting is not None:
        yield _arrived(waiting, device)


def _arrived(waiting: _Copied, device: torch.device) -> _Batch:
    one, source, there, done = waiting
    current = torch.cuda.current_stream(device)
    current.wait_event(done)

    def used_there(value: torch.Tensor) -> torch.Tensor:
        # Its memory is not given to another copy before this stream has done with it.
        value.record_stream(current)
        return value

    done.synchronize()  # a batch ago it was started; only then may its source be written again
    del source
    return one, _mapped(there, used_there)
