"""Cuts data sets to a few samples, takes shuffling away, and tells which samples are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from ....login.fetch.inside.functions import change_arguments
from ....login.fetch.inside.journal import Journal
from ..plan import SAMPLES, Run, Try
from .cut import CUT, Beside, at_most, bare, fingerprint, own_random, plain, subclass
from .progress import Progress


class Samples:
    """Watches the loaders of one rank.

    Args:
        batches: batch sizes of the original's data sets, in the order in which they were cut.
    """

    def __init__(
        self, run: Run, tried: Try, batches: dict[int, int], progress: Progress, journal: Journal
    ) -> None:
        self._run, self._tried, self._batches = run, tried, batches
        self._progress, self._journal = progress, journal
        self._cut = 0
        self._passes: dict[int, int] = {}
        self._drawing: list[Any] | None = None

    def install(self, data: Any) -> None:
        """`torch.utils.data`."""
        module = data.dataloader
        change_arguments(module.DataLoader, "__init__", lambda given: self._loader(given, data))
        change_arguments(data.BatchSampler, "__init__", lambda given: self._batched(given, data))
        change_arguments(
            data.DistributedSampler,
            "__init__",
            lambda given: given.update(dataset=self.cut(given["dataset"])),
        )
        change_arguments(
            data.RandomSampler,
            "__init__",
            lambda given: given.update(data_source=self.cut(given["data_source"])),
        )
        change_arguments(
            data.SequentialSampler,
            "__init__",
            lambda given: given.update(data_source=self.cut(given["data_source"])),
        )
        _in_order(data)
        self._watch(module._BaseDataLoaderIter)

    def cut(self, dataset: Any) -> Any:
        """The data set with its first samples only, each draw told; itself where that is possible.

        Its type becomes a subclass of what it was, so that `isinstance` and all else stay.
        """
        if hasattr(dataset, CUT):
            return dataset
        streams = not hasattr(dataset, "__len__") or not hasattr(type(dataset), "__getitem__")
        # A file of samples without a length is a stream too.
        size = SAMPLES if streams else at_most(len(dataset), self._most())
        number = self._cut
        try:
            if type(dataset).__module__ == "builtins":
                raise TypeError
            kind = subclass(type(dataset), self, number, size, streams)
            dataset.__class__ = kind
            changed = dataset
        except (TypeError, AttributeError):
            if streams:
                return dataset
            changed = Beside(dataset, self, number, size)
        self._cut += 1
        whole = None if streams else len(bare(changed))
        self._journal.tell("cut", dataset=number, size=size, of=whole, kind=type(dataset).__name__)
        return changed

    def draw(self, number: int, index: Any, get: Any) -> Any:
        """Draw a sample, with random numbers that depend on nothing but its index."""
        drawing = self._drawing
        if drawing is None:
            return get()
        drawing.append((number, plain(index)))
        self._drawing = None  # what this one is made of is not told
        try:
            with own_random(zlib.crc32(repr(plain(index)).encode())):
                return get()
        finally:
            self._drawing = drawing

    def drawn(self, number: int, item: Any) -> None:
        """A stream has given an item: it has no index, so it is known by what it is."""
        if self._drawing is not None:
            self._drawing.append((number, fingerprint(item)))

    def _most(self) -> int:
        return SAMPLES if self._tried.batch else 2 * 64 + 7

    def _loader(self, given: dict[str, Any], data: Any) -> None:
        before = self._cut
        dataset = given["dataset"] = self.cut(given["dataset"])
        if given.get("num_workers"):
            self._note("data workers: samples are drawn in the process itself")
        given["num_workers"] = 0
        for name in ("prefetch_factor", "multiprocessing_context"):
            given.pop(name, None)
        given.update(persistent_workers=False, pin_memory=False, timeout=0)
        if given.get("pin_memory_device"):
            given["pin_memory_device"] = ""
        if given.get("batch_sampler") is not None or given.get("batch_size", 1) is None:
            return
        said = given.get("batch_size", 1)
        given["batch_size"] = self._size(said, given.get("sampler"), dataset, data)
        if before != self._cut and not self._run.world:
            number = getattr(dataset, CUT, before)
            self._journal.tell("batched", dataset=number, said=said, size=given["batch_size"])

    def _batched(self, given: dict[str, Any], data: Any) -> None:
        if isinstance(given.get("batch_size"), int):
            source = getattr(given["sampler"], "dataset", None)
            source = source or getattr(given["sampler"], "data_source", None)
            given["batch_size"] = self._size(given["batch_size"], given["sampler"], source, data)

    def _size(self, said: Any, sampler: Any, dataset: Any, data: Any) -> Any:
        if not isinstance(said, int):
            return said
        size = min(said, self._tried.batch) if self._tried.batch else said
        if self._run.world and dataset is not None:
            size = self._batches.get(getattr(dataset, CUT, -1), size)
        if isinstance(sampler, data.DistributedSampler):
            size = max(1, size // sampler.num_replicas)
        if size != said and not isinstance(sampler, data.DistributedSampler):
            self._note(f"batches of {said} are batches of {size}")
        return size

    def _watch(self, kind: Any) -> None:
        init, draw = kind.__init__, kind.__next__
        ours = self

        def init_iterator(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            init(iterator, loader, *args, **kwargs)
            iterator._rankup = ours._begin(loader)

        def next_batch(iterator: Any) -> Any:
            told = getattr(iterator, "_rankup", None)
            if told is None or ours._drawing is not None:
                return draw(iterator)
            return ours._draw(iterator, told, draw)

        kind.__init__, kind.__next__ = init_iterator, next_batch

    def _begin(self, loader: Any) -> dict[str, Any]:
        import torch

        batched = getattr(loader, "batch_sampler", None)
        sampler = getattr(batched, "sampler", None) or getattr(batched, "_sampler", None)
        number = getattr(getattr(loader, "dataset", None), CUT, -1)
        count = self._passes[number] = self._passes.get(number, 0) + 1
        grad = torch.is_grad_enabled()
        fields = {
            "dataset": number,
            "pass": count,
            "grad": grad,
            "sampler": type(sampler).__name__,
            "shuffles": _shuffles(sampler),
            "epoch": getattr(sampler, "epoch", None),
        }
        self._journal.tell("iterate", **fields, where=self._journal.where())
        return {"dataset": number, "pass": count, "backwards": self._progress.backwards}

    def _draw(self, iterator: Any, told: dict[str, Any], draw: Any) -> Any:
        import torch

        self._drawing = []
        try:
            batch = draw(iterator)
        except StopIteration:
            trained = self._progress.backwards > told["backwards"]
            self._progress.epochs += trained
            fields = {"dataset": told["dataset"], "pass": told["pass"], "trained": trained}
            self._journal.tell("iterated", **fields)
            raise
        finally:
            drawn, self._drawing = self._drawing, None
        progress = self._progress
        grad = torch.is_grad_enabled()
        progress.phase = "train" if grad else "eval"
        ids = [index for number, index in drawn or () if number == told["dataset"]]
        progress.batch, progress.calls = ids, 0
        if grad:
            progress.drawn = len(ids)
        fields = {"dataset": told["dataset"], "pass": told["pass"], "grad": grad}
        self._journal.tell("batch", **fields, ids=ids, after=progress.backwards)
        return batch

    def _note(self, text: str) -> None:
        if self._progress.first("note", text):
            self._journal.tell("note", text=text)


def _in_order(data: Any) -> None:
    """What a shuffling sampler would draw, in order: both scripts then see the same batches."""

    def numbers(sampler: Any) -> Iterator[int]:
        size = len(sampler.data_source)
        return (place % size for place in range(sampler.num_samples))

    def subset(sampler: Any) -> Iterator[int]:
        return iter([int(index) for index in sampler.indices][: len(sampler)])

    def weighted(sampler: Any) -> Iterator[int]:
        return iter(range(len(sampler)))

    data.RandomSampler.__iter__ = numbers
    data.SubsetRandomSampler.__iter__ = subset
    data.SubsetRandomSampler.__len__ = lambda one: at_most(len(one.indices))
    data.WeightedRandomSampler.__iter__ = weighted
    data.WeightedRandomSampler.__len__ = lambda one: at_most(min(one.num_samples, len(one.weights)))
    dealt = data.DistributedSampler.__iter__

    def distributed(sampler: Any) -> Iterator[int]:
        shuffle, sampler.shuffle = sampler.shuffle, False
        try:
            return iter(list(dealt(sampler)))
        finally:
            sampler.shuffle = shuffle

    data.DistributedSampler.__iter__ = distributed


def _shuffles(sampler: Any) -> bool:
    name = type(sampler).__name__
    if name in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"):
        return True
    return name == "DistributedSampler" and bool(sampler.shuffle)
