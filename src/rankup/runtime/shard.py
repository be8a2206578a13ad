"""`shard(loader)`, `deal(batch)`: each rank takes its part of every batch of a single GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal, NoReturn, TypeVar, overload

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .collectives import broadcast
from .context import CONTEXT, Place, ShardContext
from .hang.leaving import TRAINING
from .log import print_once
from .notices import checked, say_last_batch
from .random_state import DRAWN, STREAMS, States, draw_apart
from .world import World, setup

T = TypeVar("T")

_BLOCK = 64  # batches that rank 0 draws at once for the others
# The same in an evaluation, which one rank may leave earlier than another, where it has no end.
_ENDLESS = 1024
_MEMO = "_rankup_sharded"
_PR_SET_PDEATHSIG = 1
# These draw all they need from torch before their first index; others may draw at any time.
_DRAW_AT_START = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


def part(size: int, rank: int, world_size: int) -> range:
    """Positions of a batch of `size` that belong to `rank`: contiguous, sizes differ by one."""
    return range(rank * size // world_size, (rank + 1) * size // world_size)


def rounds(batches: Iterable[list[int]], size: int) -> Iterator[list[list[int]]]:
    """The batches in order, together with neighbours until each of `size` ranks can have a sample.

    Only when there are fewer samples than ranks in all is what goes together too short.
    """
    ready: list[list[int]] = []
    short: list[list[int]] = []
    for batch in batches:
        short.append(batch)
        if sum(map(len, short)) >= size:
            if ready:
                yield ready
            ready, short = short, []
    if ready or short:
        yield ready + short


def joined(batches: Iterable[list[int]], number: int) -> Iterator[list[int]]:
    """`number` batches after each other as one; the last is of what is left."""
    source = iter(batches)
    while together := list(islice(source, number)):
        yield [index for batch in together for index in batch]


def shard(
    loader: DataLoader[Any] | ShardedLoader,
    *,
    train: bool | None = None,
    batch: Literal["global", "per-gpu"] = "global",
) -> ShardedLoader:
    """Deal a DataLoader's batches over the ranks; the global batches stay what they were.

    The loader's own sampler decides the order, rank 0's on all ranks, and each batch is cut by
    position into one part per rank. `len` stays the number of global batches. Nothing is padded or
    dropped: in evaluation a rank may get fewer batches than another, so keep collectives out of
    that loop and use `mean(total, count)` after it. In training a rank for whom nothing is left of
    a short batch gets one sample of weight zero, so that all ranks step together; `wrap` applies
    the weights.

    Call it once, or at the head of the loop in each epoch: workers that the loader keeps stay, and
    the loader itself stays as it is on one GPU.

    Within a pass over a training loader each rank draws random numbers of its own (noise, dropout,
    augmentation, with workers and without): from Python, NumPy and torch, rank 0 as a single
    process would. Behind the last batch all ranks go on from rank 0's states; behind a loop that is
    left early, from those in common when it began.

    With a model from `parallelize` that is split in other ways than by copying it, the ranks that
    compute one batch together get the same part. There every forward is a collective, so that in
    evaluation too all ranks get equally many batches: one that has no sample for each goes with its
    neighbour, and of fewer samples than ranks every rank gets all, which leaves
    `mean(total, count)` exact.

    Args:
        loader: any map-style DataLoader; call on every rank.
            One that is dealt already stays as it is, but for another `train`.
        train: whether the batches are trained on. By default it is read off when iteration starts:
            with gradients on, yes while a wrapped model is in train mode; where there is none, yes
            for a loader that shuffles. While all are in `eval()` it is an evaluation, until a
            backward reaches one of them: an error where a rank was left out before, or batches were
            put together. True also serves an evaluation where a forward is a collective: under
            `no_grad` all ranks then go through the batches together, and `batch_mean` and
            `batch_sum` leave out the sample of weight zero.
        batch: what the loader's batch size means: `global`, the batch of all ranks together, or
            `per-gpu`, where a global batch is one of the loader's batches for each rank, and `len`
            the number of those.

    Raises:
        TypeError: an IterableDataset, or a loader without batches of indices, has no positions to
            deal by; a DistributedSampler, or a rankup Loader, has dealt them already; a loader that
            iterates in a way of its own may do anything with them.
        ValueError: `batch` is neither.
    """
    if batch not in ("global", "per-gpu"):
        raise ValueError(f"shard: batch is 'global' or 'per-gpu', not {batch!r}")
    if isinstance(loader, ShardedLoader):
        return loader if train is None else loader.sharded_anew(train)
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"shard deals the batches of a torch DataLoader, not of {type(loader).__name__}; a "
            f"rankup.data.Loader has dealt its own already: iterate over it as it is"
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise TypeError(
            "shard deals batches by position and needs a map-style dataset with a batch size; "
            "for an IterableDataset let the dataset itself give each rank a part of the same length"
        )
    if isinstance(getattr(loader.batch_sampler, "sampler", None), DistributedSampler):
        raise TypeError("shard deals the batches itself: take the DistributedSampler out")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise TypeError(
            f"shard replaces how a DataLoader iterates, and {type(loader).__name__} has an "
            "__iter__ of its own: take a plain DataLoader, and do in the loop what it does"
        )
    return ShardedLoader(loader, train, batch, CONTEXT)


class ShardedLoader:
    """What `shard` returns: iterates over this rank's parts, otherwise behaves as the loader."""

    def __init__(
        self,
        loader: DataLoader[Any],
        train: bool | None,
        batch: Literal["global", "per-gpu"],
        context: ShardContext,
    ) -> None:
        world = setup()
        self._context = context
        self._loader, self._train, self._batch = loader, train, batch
        self._joined = world.world_size if batch == "per-gpu" else 1
        # Kept at the loader, whose end is theirs, for the workers that stay. Not this object, which
        # holds the loader: workers that end with a circle, when Python collects that, have lost
        # the queue that tells them, and each is waited for in vain.
        made: dict[Any, tuple[_Parts, _SeedWorker, DataLoader[Any]]]
        made = vars(loader).setdefault(_MEMO, {})
        if (train, batch) not in made:
            source, seed = loader.batch_sampler, _SeedWorker(loader.worker_init_fn)
            parts = _Parts(source, world, train, self._joined, context)
            collate = checked(loader.collate_fn, world.rank) if world.world_size > 1 else None
            made[train, batch] = parts, seed, _with_batch_sampler(loader, parts, seed, collate)
        self._parts, self._seed, self._inner = made[train, batch]

    def __len__(self) -> int:
        return -(-len(self._loader) // self._joined)

    def sharded_anew(self, train: bool) -> ShardedLoader:
        """Return the same loader, for training or for an evaluation."""
        return self if train == self._train else shard(self._loader, train=train, batch=self._batch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        # Asked for only now: a model may have been split since the loader was made.
        self._parts.place = self._context.place()
        self._seed.rank = self._parts.place.rank
        # For the kernel the parent is the thread that starts a worker, and others may end before.
        main = threading.current_thread() is threading.main_thread()
        self._seed.parent = os.getpid() if main else 0
        return _Pass(self._inner, self._parts, self._context)


def _with_batch_sampler(
    loader: DataLoader[Any],
    batch_sampler: BatchSampler,
    worker_init_fn: Callable[[int], None],
    collate: Callable[[Any], Any] | None,
) -> DataLoader[Any]:
    """Return a copy of the loader, of its own class and with all of its settings."""
    # By hand: `DataLoader.__setattr__` refuses another batch sampler, and `copy` would look for
    # methods on a copy without attributes, on which a `__getattr__` of the script may not end.
    copied: DataLoader[Any] = object.__new__(type(loader))
    # Persistent workers, in `_iterator`, stay with the loader that has started them.
    own: dict[str, Any]
    own = {"batch_sampler": batch_sampler, "worker_init_fn": worker_init_fn, "_iterator": None}
    if collate is not None:
        own["collate_fn"] = collate
    vars(copied).update(vars(loader), **own)
    vars(copied).pop(_MEMO, None)
    return copied


@dataclass(eq=False)
class _Assignment:
    """The part of a pass that is assigned to this rank.

    Attributes:
        training: the batches are trained on; an idle rank gets a stand-in sample.
        apart: the ranks draw random numbers of their own.
        unsure: a backward makes this a training pass. Until then an idle rank's stand-ins, which
            workers may have drawn long before, are left out.
        again: the loader was trained on before, so that the first batch is taken for one of
            training again: a rank that is left out there could not learn of the others' backward.
        batches: number of each batch that is still to come, samples of this rank and of all, and
            whether it was put together of several.
        marked: random states to go back to when an evaluation is over.
    """

    training: bool
    apart: bool
    unsure: bool
    again: bool = False
    batches: deque[tuple[int, int, int, bool]] = field(default_factory=deque)
    marked: tuple[int, States] | None = None


class _Pass:
    """One pass over this rank's parts, each with a note of what part of the batch it is."""

    def __init__(self, loader: DataLoader[Any], parts: _Parts, context: ShardContext) -> None:
        self._parts, self._context = parts, context
        self._rank = parts.place.rank
        self._assignment = assignment = parts.assign()
        if assignment.apart:
            STREAMS.synchronize()
            # Begun at once, as torch's: of two loaders side by side each draws from the random
            # state when it begins, and only then its first batch.
            with STREAMS.in_common():
                self._batches = iter(loader)
        else:
            self._batches = iter(loader)
        # An evaluation in the middle of an epoch leaves the batch at hand what it was.
        self._weighs = assignment.training and torch.is_grad_enabled()
        self._log: list[tuple[int, int]] | None = None
        self._not_as_trained = ""  # why a batch was not what training on it would have had

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        if self._log is None:
            self._log = self._context.log = []
        ranks = self._parts.place.size
        while True:
            batch, number, mine, size, merged = self._drawn()
            if merged:
                self._not_as_trained = f"batches too small for {ranks} ranks were put together"
            first = number == 0 and self._assignment.again
            if size >= ranks or self._assignment.training or first:
                break
            self._not_as_trained = f"not each of {ranks} ranks has had a part of a batch of {size}"
            if mine:
                break
        if merged and self._assignment.training:  # workers had it before the first backward
            self._refuse()
        unsure = self.train if self._assignment.unsure else None
        self._context.give(mine, size, self._weighs, unsure, self)
        self._log.append((number, mine))
        return batch

    def _drawn(self) -> tuple[Any, int, int, int, bool]:
        try:
            batch = next(self._batches)
        except StopIteration:
            # All ranks train on equally many batches, and come here together; but beside the
            # collectives of their main threads those of another one would come in any order.
            self.close(together=threading.current_thread() is threading.main_thread())
            raise
        except BaseException:
            self.close()
            raise
        if not self._assignment.batches:
            self.close()
            raise RuntimeError(
                "shard: the loader hands out a batch that its batch sampler has not drawn, so that "
                "this rank's part of it is not known: take a plain DataLoader, and do in the loop "
                "what this one does"
            )
        return batch, *self._assignment.batches.popleft()

    def train(self) -> None:
        """Make this a training pass: a backward follows a batch of it.

        Raises:
            RuntimeError: a rank was left out of a batch, and would be waited for; or batches were
                put together, which one GPU would have trained on one by one.
        """
        assignment = self._assignment
        if self._not_as_trained:
            self._refuse()
        self._parts.trained = True
        assignment.unsure, assignment.training, assignment.marked = False, True, None
        if not assignment.apart and dist.get_world_size() > 1:
            assignment.apart = True
            STREAMS.begin(assignment, self._rank)
        self._weighs = True

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "shard: gradients are wanted in a pass that was taken for an evaluation, since the "
            f"model is in eval(), and in which {self._not_as_trained}; call train() of the model "
            "before the loop, or shard(loader, train=True) where it is to stay in eval()"
        )

    def close(self, exhausted: bool = True, together: bool = False) -> None:
        """End the pass: what follows the last of several may not have been dealt by anybody.

        Args:
            together: all ranks end it here, in a training pass. Collective then.
        """
        assignment = self._assignment
        if assignment.apart:
            STREAMS.end(assignment, together)
        STREAMS.rewind(assignment.marked)
        assignment.marked = None
        trained = self._weighs and self._log is not None
        if trained:
            TRAINING.end_pass()
        self._context.end_pass(self, trained, exhausted, self.train)
        self._weighs = assignment.unsure = False

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_weighs") and not ending():  # by then this module may have no `sys`
            self.close(exhausted=False)


class _Parts(BatchSampler):
    """This rank's part of each batch of indices, with a note of what was dealt."""

    def __init__(
        self, source: Any, world: World, train: bool | None, joined: int, context: ShardContext
    ) -> None:
        self._source, self._context = source, context
        self._joined = joined
        self._sampler = getattr(source, "sampler", source)
        self._world = world
        self._train = train
        self.place = Place(0, 1)
        self.trained = False
        self._next = _Assignment(False, False, False)

    def __len__(self) -> int:
        return len(self._source)

    def assign(self) -> _Assignment:
        """Return what the pass that begins next will assign this rank."""
        STREAMS.end(DRAWN)
        training = self._trains()
        grad = torch.is_grad_enabled()
        apart = training and grad and self._world.world_size > 1
        self.trained |= training and grad
        unsure = grad and not training and self._train is None
        self._next = _Assignment(training, apart, unsure, unsure and self.trained)
        return self._next

    def __iter__(self) -> Iterator[list[int]]:
        return self._deal(self._next)

    def _trains(self) -> bool:
        if self._train is not None:
            return self._train
        if not torch.is_grad_enabled():
            return False
        if not self._context.models:
            return not isinstance(self._sampler, SequentialSampler)
        return any(model.training for model in self._context.models)

    def _deal(self, assignment: _Assignment) -> Iterator[list[int]]:
        place, number = self.place, 0
        batches = self._batches(assignment)
        if self._joined > 1:
            batches = joined(batches, self._joined)
        for group in self._groups(batches, assignment):
            # Once a backward has come, what is still to be drawn stays as it is.
            training = assignment.training or not place.together
            for batch in group if training else [list(chain(*group))]:
                if number == 0:
                    self._begin(assignment, len(batch))
                mine = [batch[i] for i in part(len(batch), place.rank, place.size)]
                first = number == 0 and assignment.again
                if not training and not first and len(batch) < place.size:
                    mine = batch
                if mine or assignment.training or assignment.unsure:
                    merged = not training and len(group) > 1
                    assignment.batches.append((number, len(mine), len(batch), merged))
                    yield mine or [batch[0]]
                number += 1

    def _groups(
        self, batches: Iterator[list[int]], assignment: _Assignment
    ) -> Iterator[list[list[int]]]:
        """The batches, with their neighbours where all ranks have to have a part in evaluation."""
        if assignment.training or not self.place.together:
            return ([batch] for batch in batches)
        first = ([batch] for batch in islice(batches, int(assignment.again)))
        return chain(first, rounds(batches, self.place.size))

    def _begin(self, assignment: _Assignment, size: int) -> None:
        """Between the draws of the sampler and what the data set draws for the first sample."""
        if assignment.apart:
            STREAMS.begin(assignment, self.place.rank)
        elif self._world.world_size > 1:
            assignment.marked = STREAMS.mark()
        if assignment.training and self.place.size > 1:
            self._say_parts(size)

    def _say_parts(self, size: int) -> None:
        """Say what a training pass makes of small batches; its first one has `size` samples."""
        parts, last = self.place.size, self._last_size() or size
        self._context.smallest = max(1, min(size, last) // parts)
        if size < parts:
            print_once(
                f"shard: a batch of {size} for {parts} ranks leaves {parts - size} of them "
                f"idle; give the DataLoader a batch size of at least {parts}, or use "
                f'shard(loader, batch="per-gpu")'
            )
        elif 1 < last < 2 * parts <= size:
            say_last_batch(last, parts)

    def _last_size(self) -> int:
        """Samples of an epoch's last batch; 0 where it is as the others, or not known."""
        source = self._source
        if type(source) is not BatchSampler:
            return 0
        try:
            number = len(self._sampler)
        except TypeError:
            return 0
        if source.drop_last:
            number -= number % source.batch_size
        return int(number % (source.batch_size * self._joined))

    def _batches(self, assignment: _Assignment) -> Iterator[list[int]]:
        """The source's batches, the same ones on every rank."""
        if self._world.world_size == 1 or type(self._sampler) is SequentialSampler:
            yield from self._source
        elif type(self._source) is BatchSampler and type(self._sampler) in _DRAW_AT_START:
            yield from self._drawn_in_common(assignment)
        else:
            yield from self._drawn_by_root(assignment)

    def _drawn_in_common(self, assignment: _Assignment) -> Iterator[list[int]]:
        """Every rank draws, from rank 0's random state."""
        if not assignment.apart:  # else the pass has done so
            STREAMS.synchronize()
        generator = getattr(self._sampler, "generator", None)
        if generator is not None:
            generator.set_state(broadcast(generator.get_state()))
        with STREAMS.in_common():
            batches = iter(self._source)
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches

    def _drawn_by_root(self, assignment: _Assignment) -> Iterator[list[int]]:
        """Rank 0 draws and tells the others: nobody knows what this sampler draws from."""
        batches = iter(self._source) if self._world.is_root else iter(())
        most = _BLOCK if assignment.training else self._all()
        while True:
            with STREAMS.in_common():
                block = broadcast([list(batch) for batch in islice(batches, most)])
                STREAMS.synchronize()
            yield from block
            if len(block) < most:
                return

    def _all(self) -> int:
        """More batches than there are, where that is known."""
        try:
            return len(self._source) + 1
        except TypeError:
            return _ENDLESS


class _SeedWorker:
    """Gives the DataLoader workers of each rank random numbers of their own, and the rank's end."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self.rank = self.parent = 0
        self._then = then

    def __call__(self, worker: int) -> None:
        if os.getppid() == self.parent and sys.platform == "linux":
            # A worker of a rank that was killed may wait in a full pipe, and look for nobody.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        self._part()
        if self._then is not None:
            self._then(worker)
            self._part()  # it may have seeded the workers of all ranks alike

    def _part(self) -> None:
        if self.rank:  # rank 0's workers draw what one process's would: nobody goes on from there
            draw_apart(self.rank)


@overload
def deal(batch: Callable[..., T], *args: Any, dim: int = 0, **options: Any) -> T: ...
@overload
def deal(batch: T, *, dim: int = 0) -> T: ...
def deal(batch: Any, *args: Any, dim: int = 0, **options: Any) -> Any:
    """This rank's part of a batch that the script draws itself, without a DataLoader.

        x, y = rankup.deal(get_batch, "train")

    calls `get_batch("train")` on every rank, with the random states that all have in common.
    Rank 0's batch counts, and is cut by position; `wrap` applies the weights. From here each rank
    draws random numbers of its own (noise, dropout), until the next call, a pass over a loader from
    `shard`, or `eval()` of the wrapped model: an evaluation draws alike on all ranks.

    Args:
        batch: a function that draws a batch, or one that was drawn, `rankup.deal(get_batch())`,
            after which the random states stay alike. A batch is a tensor, or tuples, lists and
            dictionaries of them, with equally many samples. What is no tensor, or has no dimension,
            stays.
        args: for the function, as are further keywords.
        dim: the dimension of the samples.

    Raises:
        ValueError: no tensor in it, or unequal numbers of samples.
    """
    draws = callable(batch)
    if draws:
        STREAMS.end(DRAWN)
        with STREAMS.in_common():
            batch = batch(*args, **options)
    sizes = {tensor.shape[dim] for tensor in _tensors(batch)}
    if len(sizes) != 1:
        found = f"{sorted(sizes)} samples" if sizes else "no tensor"
        raise ValueError(f"deal cuts a batch by its samples, and found {found} in it")
    size, place = sizes.pop(), CONTEXT.place()
    mine = part(size, place.rank, place.size)
    CONTEXT.give(len(mine), size, trains=True)
    # Nothing is left for this rank: one sample, of weight zero, keeps it in step.
    cut = _cut(batch, mine if mine else range(1), dim, place.size > 1)
    if draws and place.size > 1 and torch.is_grad_enabled() and not STREAMS.apart:
        STREAMS.begin(DRAWN, place.rank)
    return cut


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.dim() else []
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, list | tuple | dict):
        return [tensor for item in inside for tensor in _tensors(item)]  # type: ignore[attr-defined]
    return []


def _cut(value: T, mine: range, dim: int, several: bool) -> T:
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        whole = broadcast(value.contiguous()) if several else value
        return whole.narrow(dim, mine.start, len(mine))  # type: ignore[return-value]
    if isinstance(value, list):
        return [_cut(item, mine, dim, several) for item in value]  # type: ignore[return-value]
    if isinstance(value, tuple):
        parts = [_cut(item, mine, dim, several) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {key: _cut(item, mine, dim, several) for key, item in value.items()}  # type: ignore[return-value]
    return value
