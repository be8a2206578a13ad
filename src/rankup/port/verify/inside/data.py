"""Records which samples the loaders of a rank draw, with a hash, and from which random states."""

from __future__ import annotations

import hashlib
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ....sandbox.inside.devices import change_arguments, not_pinned
from ....sandbox.inside.hooks import replaces
from ..protocol import Run
from .cut import at_most, is_index, scale, shorten_samplers, shuffles, spread
from .draws import Progress, fingerprints, restore, seed, states

NUMBER = "_rankup_number"  # attribute of a data set that was cut
_STEPS = 12  # samples after which their scales come again
_DEPTH = 6


@dataclass(frozen=True)
class DataSets:
    """The original's data sets, by their numbers, in the order they were cut.

    Attributes:
        batches: their batch sizes.
        trained: those that are trained on.
    """

    batches: Mapping[int, int]
    trained: frozenset[int]


@dataclass
class _Drawing:
    """A way through a loader.

    Attributes:
        kept: the random states at its beginning.
        outer: the one that was open already.
        backwards: that there had been before it.
        batches: drawn so far.
        left: of a free run, the random states since which its loop has drawn; None outside it.
    """

    dataset: int
    number: int
    kept: Any
    outer: _Drawing | None
    backwards: int
    batches: int = 0
    ended: bool = False
    left: Mapping[str, str] | None = None

    @property
    def key(self) -> dict[str, int]:
        """The fields by which events name it."""
        return {"dataset": self.dataset, "pass": self.number}


class Data:
    """Watches the loaders of one rank."""

    def __init__(self, run: Run, known: DataSets, progress: Progress) -> None:
        self._run, self._known = run, known
        self._progress, self._journal = progress, progress.journal
        self._count = 0
        self._passes: dict[int, int] = {}
        self._trained: Counter[int] = Counter()  # passes in which the model was
        self._open: _Drawing | None = None
        self._current: _Drawing | None = None  # whose batch is being drawn
        self._drawn: list[tuple[int, Any, str]] | None = None
        # Behind a loop of a free run: its pass, and the random states there.
        self._behind: tuple[dict[str, int], Mapping[str, str]] | None = None
        progress.behind = self._ended_loop
        self.within = False  # code of a data set that draws a sample is running

    def install(self, data: Any) -> None:
        """`torch.utils.data`."""
        module = data.dataloader
        change_arguments(module.DataLoader, "__init__", lambda given: self._loader(given, data))
        change_arguments(data.BatchSampler, "__init__", lambda given: self._batched(given, data))
        for kind in (data.DistributedSampler, data.RandomSampler, data.SequentialSampler):
            change_arguments(kind, "__init__", self._sampler)
        shorten_samplers(data, self._run.samples, in_order=not self._run.free)
        self._watch(module._BaseDataLoaderIter)
        if self._run.free:
            self._watch_seeds()

    def cut(self, dataset: Any) -> Any:
        """The data set with a few samples only, each draw recorded; itself where that is possible.

        Its type becomes a subclass of what it was, so that `isinstance` and all else stay.
        """
        if hasattr(dataset, NUMBER):
            return dataset
        streams = not hasattr(dataset, "__len__") or not hasattr(type(dataset), "__getitem__")
        number = self._count
        # A file of samples without a length is a stream too.
        batch = self._known.batches.get(number)
        length = self._most(number) if streams else len(dataset)
        size = self._most(number) if streams else at_most(length, self._most(number), batch)
        try:
            if type(dataset).__module__ == "builtins":
                raise TypeError
            dataset.__class__ = subclass(type(dataset), self, number, size, streams)
            changed = dataset
        except (TypeError, AttributeError):
            if streams:
                return dataset
            changed = Beside(dataset, self, number, size)
        self._count += 1
        whole = None if streams else whole_length(changed)
        kind = type(dataset).__name__
        where = self._journal.where()
        self._journal.tell("cut", dataset=number, size=size, of=whole, kind=kind, where=where)
        return changed

    def draw(
        self, number: int, index: Any, sizes: tuple[int, int], get: Callable[[Any], Any]
    ) -> Any:
        """Draw a sample of a loader's batch.

        Args:
            sizes: what the data set's length is taken for, and what it is.
        """
        if self._drawn is None:
            return get(index)
        drawn, self._drawn, self.within = self._drawn, None, True
        place = self._place(number, index)
        source = spread(place, *sizes) if self._run.varied else place
        source = source if isinstance(place, int) else index
        kept = states()
        try:
            if self._run.free:
                item = self._as_in_life(lambda: get(source))
            else:  # its random numbers depend on nothing but the sample
                seed(place)
                item = get(source)
                restore(kept)
        finally:
            self._drawn, self.within = drawn, False
        if self._run.varied and isinstance(place, int):
            item = scale(item, 0.25 + 0.75 * (place % _STEPS) / (_STEPS - 1))
        drawn.append((number, place, "" if self._run.free else digest(item)))
        return item

    def items(self, number: int, size: int, source: Iterator[Any]) -> Iterator[Any]:
        """The items of a stream: it has no index, so they are known by their contents."""
        first = None
        for item in islice(source, size):
            first = item if first is None else first
            # Where all parts of a training batch are alike, all its samples are.
            shown = first if self._run.alike and self._trains(number) else item
            if self._drawn is not None:
                self._drawn.append((number, digest(shown), ""))
            yield shown

    def _as_in_life(self, get: Callable[[], Any]) -> Any:
        """Draw with the rank's own random numbers, and record which of them were used."""
        before = fingerprints()
        item = get()
        if self._current is not None:
            self._used(self._current, "samples", before, fingerprints())
        return item

    def _used(
        self, drawing: _Drawing, what: str, before: Mapping[str, str], after: Mapping[str, str]
    ) -> None:
        if not self._trains(drawing.dataset):
            return
        used = {name: state for name, state in before.items() if after[name] != state}
        if used:
            place = {**drawing.key, "n": drawing.batches}
            self._journal.tell("random", **place, what=what, states=used)

    def _watch_seeds(self) -> None:
        """See also what is drawn from a seed that the training loop sets for each batch.

        Its states at the ends of two batches are the same, as if nothing had been drawn. A backward
        may set others as well: that of a port in `eval()` is where its ranks begin to part.
        """
        import numpy as np
        import torch

        seeds = ((random, "seed"), (np.random, "seed"), (torch, "manual_seed"))
        for module, name in (*seeds, (torch.autograd, "backward")):
            replaces(module, name)(self._seeding)

    def _seeding(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        import torch

        drawing = self._current
        # Without gradients it is a picture or a number on the way, which may be alike.
        if drawing is None or drawing.left is None or not torch.is_grad_enabled():
            return original(*args, **kwargs)
        self._used(drawing, "loop", drawing.left, fingerprints())
        try:
            return original(*args, **kwargs)
        finally:
            drawing.left = fingerprints()

    def _place(self, number: int, index: Any) -> Any:
        """The sample in an index's place."""
        if not is_index(index):
            return repr(index)[:100]
        place = int(index)
        if not (self._run.alike and self._trains(number)):
            return place
        batch = self._known.batches.get(number)
        if not batch:
            return 0
        # Contiguous and interleaved halves of a batch have the same samples.
        different = batch // 4 if batch % 4 == 0 else 1
        return place - place % batch + place % batch // 2 % different

    def _trains(self, number: int) -> bool:
        import torch

        known = not self._known.trained or number in self._known.trained
        return torch.is_grad_enabled() and known

    def _most(self, number: int) -> int:
        if not self._run.batch:
            return 2 * 64 + 7
        evaluated = self._run.alike and number not in self._known.trained
        return self._run.samples - 1 if evaluated else self._run.samples

    def _sampler(self, given: dict[str, Any]) -> None:
        name = "dataset" if "dataset" in given else "data_source"
        given[name] = self.cut(given[name])

    def _loader(self, given: dict[str, Any], data: Any) -> None:
        before = self._count
        dataset = given["dataset"] = self.cut(given["dataset"])
        if given.get("num_workers"):
            self._progress.note("data workers: samples are drawn in the process itself")
        given["num_workers"] = 0
        for name in ("prefetch_factor", "multiprocessing_context"):
            given.pop(name, None)
        given.update(persistent_workers=False, timeout=0)
        not_pinned(given)
        if given.get("batch_sampler") is not None or given.get("batch_size", 1) is None:
            return
        asked = given.get("batch_size", 1)
        given["batch_size"] = self._size(asked, given.get("sampler"), dataset, data)
        if before != self._count and not self._run.world:
            number = getattr(dataset, NUMBER, before)
            self._journal.tell("batched", dataset=number, size=given["batch_size"])

    def _batched(self, given: dict[str, Any], data: Any) -> None:
        if isinstance(given.get("batch_size"), int):
            source = getattr(given["sampler"], "dataset", None)
            source = source or getattr(given["sampler"], "data_source", None)
            given["batch_size"] = self._size(given["batch_size"], given["sampler"], source, data)

    def _size(self, asked: Any, sampler: Any, dataset: Any, data: Any) -> Any:
        if not isinstance(asked, int):
            return asked
        size = min(asked, self._run.batch) if self._run.batch else asked
        if self._run.world and dataset is not None:
            size = self._known.batches.get(getattr(dataset, NUMBER, -1), size)
        if isinstance(sampler, data.DistributedSampler):
            size = max(1, size // sampler.num_replicas)
        if size != asked and not isinstance(sampler, data.DistributedSampler):
            self._progress.note(f"batches of {asked} are batches of {size}")
        return size

    def _watch(self, kind: Any) -> None:
        @replaces(kind, "__init__")
        def init(original: Any, iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._drawn_behind()
            kept = states()
            original(iterator, loader, *args, **kwargs)
            if not self._run.free:
                restore(kept)
            iterator._rankup = self._begin(iterator, loader, kept)

        @replaces(kind, "__next__")
        def draw(original: Any, iterator: Any) -> Any:
            drawing = getattr(iterator, "_rankup", None)
            if drawing is None or self._drawn is not None or self.within:
                return original(iterator)
            return self._draw(iterator, drawing, original)

    def _ended_loop(self) -> None:
        if self._run.free and self._current is not None and self._current.ended:
            self._behind = self._current.key, fingerprints()

    def finished(self) -> None:
        """The script has come to its end."""
        self._drawn_behind()

    def _drawn_behind(self) -> None:
        """Record the states behind a loop that something was drawn from."""
        if self._behind is not None:
            (key, before), self._behind = self._behind, None
            now = fingerprints()
            used = {name: state for name, state in before.items() if now[name] != state}
            self._journal.tell("behind", **key, states=used)

    def _begin(self, iterator: Any, loader: Any, kept: Any) -> _Drawing:
        batched = getattr(loader, "batch_sampler", None)
        sampler = getattr(batched, "sampler", None) or getattr(batched, "_sampler", None)
        number = getattr(getattr(loader, "dataset", None), NUMBER, -1)
        count = self._passes[number] = self._passes.get(number, 0) + 1
        backwards = self._progress.backwards
        drawing = self._open = _Drawing(number, count, kept, self._open, backwards)
        # A loop that breaks drops its iterator.
        weakref.finalize(iterator, self._end, drawing).atexit = False
        fields = {
            **drawing.key,
            "sampler": type(sampler).__name__,
            "shuffles": shuffles(sampler),
            "epoch": getattr(sampler, "epoch", None),
        }
        self._journal.tell("iterate", **fields, where=self._journal.where())
        return drawing

    def _draw(self, iterator: Any, drawing: _Drawing, draw: Any) -> Any:
        import torch

        progress = self._progress
        kept = states()
        if drawing.left is not None:
            self._used(drawing, "loop", drawing.left, fingerprints())
            drawing.left = None
        progress.batch, self._drawn, self._current = [], [], drawing
        drawing.batches += 1
        try:
            batch = draw(iterator)
        except StopIteration:
            self._trained[drawing.dataset] += progress.backwards > drawing.backwards
            progress.epochs = max(self._trained.values())
            self._end(drawing)
            raise
        finally:
            drawn, self._drawn = self._drawn, None
        grad = torch.is_grad_enabled()
        samples = [one for number, *one in drawn or () if number == drawing.dataset]
        progress.batch, progress.calls = [place for place, _ in samples], 0
        # Without gradients it is of an evaluation, if any batch is drawn with them.
        progress.graded |= grad
        progress.drew((drawing.dataset, drawing.number))
        if grad or not progress.graded:
            progress.drawn = len(samples)
        fields = {**drawing.key, "grad": grad, "samples": samples}
        if self._run.free:
            fields["content"] = digest(batch)
            drawing.left = fingerprints() if grad else None
        else:
            # What else is drawn for this batch is the same in all runs.
            restore(kept)
            seed((drawing.dataset, drawing.number, drawing.batches))
        self._journal.tell("batch", **fields)
        return batch

    def _end(self, drawing: _Drawing) -> None:
        """Go on with the random states at the beginning, as a port does behind a training pass."""
        if drawing.ended:
            return
        drawing.ended, drawing.left = True, None
        self._journal.tell("iterated", **drawing.key)
        while self._open is not None and self._open.ended:
            self._open = self._open.outer
        # Of `zip(one, other)` the inner one is dropped after the outer one has ended.
        if not self._run.free and (drawing.outer is None or not drawing.outer.ended):
            restore(drawing.kept)


class Beside:
    """A list, a tensor and the like with a few samples only."""

    def __init__(self, dataset: Any, ours: Data, number: int, size: int) -> None:
        self._rankup_inner, self._rankup_ours = dataset, ours
        self._rankup_number, self._rankup_size = number, size

    def __len__(self) -> int:
        return self._rankup_size

    def __getitem__(self, index: Any) -> Any:
        inner = self._rankup_inner
        if not is_index(index):
            return inner[index]
        sizes = (self._rankup_size, len(inner))
        return self._rankup_ours.draw(self._rankup_number, index, sizes, inner.__getitem__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_rankup")):
            raise AttributeError(name)
        return getattr(self._rankup_inner, name)


def subclass(kind: Any, ours: Data, number: int, size: int, streams: bool) -> Any:
    def length(self: Any) -> int:
        whole: int = super(changed, self).__len__()  # type: ignore[misc]
        return whole if ours.within else size  # its own code may ask

    def item(self: Any, index: Any) -> Any:
        get = super(changed, self).__getitem__  # type: ignore[misc]
        if not is_index(index):
            return get(index)
        return ours.draw(number, index, (size, super(changed, self).__len__()), get)  # type: ignore[misc]

    def items(self: Any, indices: Any) -> Any:
        return [self[index] for index in indices]

    def iterate(self: Any) -> Iterator[Any]:
        return ours.items(number, size, super(changed, self).__iter__())  # type: ignore[misc]

    body: dict[str, Any] = {NUMBER: number, "__module__": kind.__module__, "__doc__": kind.__doc__}
    body["_rankup_bare"] = kind
    if streams:
        body["__iter__"] = iterate
    else:
        body["__len__"], body["__getitem__"] = length, item
        if hasattr(kind, "__getitems__"):
            body["__getitems__"] = items
    changed = type(kind)(kind.__name__, (kind,), body)
    changed.__qualname__ = kind.__qualname__
    return changed


def whole_length(dataset: Any) -> int:
    if isinstance(dataset, Beside):
        return len(dataset._rankup_inner)
    return int(type(dataset)._rankup_bare.__len__(dataset))


def digest(item: Any) -> str:
    """Return a hash of what a sample or a batch consists of."""
    found = hashlib.blake2b(digest_size=8)
    for part in _parts(item):
        found.update(part)
    return found.hexdigest()


def _parts(item: Any, depth: int = 0) -> Iterator[bytes]:
    import numpy as np
    import torch

    yield type(item).__name__.encode()
    if isinstance(item, torch.Tensor):
        value = item.detach()
        value = value.coalesce().to_dense() if value.is_sparse else value
        yield repr((tuple(value.shape), value.dtype)).encode()
        if not value.is_meta:
            yield value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(item, np.ndarray) and item.dtype != object:
        yield repr((item.shape, item.dtype.str)).encode() + item.tobytes()
    elif item is None or isinstance(item, str | bytes | int | float | complex | np.generic):
        yield repr(item).encode()
    elif depth < _DEPTH and isinstance(item, Mapping):
        for key, value in item.items():
            yield from _parts((key, value), depth + 1)
    elif depth < _DEPTH and isinstance(item, list | tuple | set | frozenset | np.ndarray):
        for value in sorted(item, key=repr) if isinstance(item, set | frozenset) else item:
            yield from _parts(value, depth + 1)
    elif hasattr(item, "tobytes"):
        yield item.tobytes()  # a picture
    elif depth < _DEPTH:
        yield from _parts(getattr(item, "__dict__", {}), depth + 1)
