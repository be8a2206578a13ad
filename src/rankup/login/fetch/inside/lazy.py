"""Data sets that download their samples one by one, while batches are drawn.

Of such a data set the first batch brings a few files only. So all its samples are drawn before the
script is stopped, in the way in which its DataLoader draws them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .journal import Journal
from .spec import Spec
from .torchside import in_worker

_PATIENCE = 300.0  # seconds for a batch of large samples from a slow server


class Lazy:
    """Notices such data sets, and walks through them.

    Attributes:
        walking: the samples that are drawn are for us, not for the script.
    """

    def __init__(self, spec: Spec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_iterator: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._thread_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._drawing = 0
        self._uses = 0
        self._drawn: list[Any] = []  # loaders, each once
        self._lazy: list[Any] = []
        self.walking = False

    def watch_loaders(self, module: Any) -> None:
        """`torch.utils.data.dataloader`: know the loaders, and whose each iterator is."""
        kind, loaders, of_iterator = module._BaseDataLoaderIter, self._loaders, self._of_iterator
        thread_of = self._thread_of
        original, original_iter = module.DataLoader.__init__, kind.__init__

        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            loaders.add(loader)

        def init_iter(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            # `for batch in DataLoader(...)` keeps the iterator only. The iterator of persistent
            # workers is held by its loader: held in turn, neither would ever go.
            kept = getattr(loader, "persistent_workers", False)  # fastai has a loader of its own
            of_iterator[iterator] = weakref.ref(loader) if kept else lambda: loader
            thread_of[iterator] = threading.get_ident()
            original_iter(iterator, loader, *args, **kwargs)

        module.DataLoader.__init__ = init
        kind.__init__ = init_iter

    def loader(self, iterator: Any) -> Any:
        """The loader that an iterator was made by; None where it is gone."""
        found = self._of_iterator.get(iterator)
        return found and found()

    @contextmanager
    def drawing(self, iterator: Any) -> Iterator[None]:
        """A batch is drawn in here, in this process or in its workers."""
        own = not getattr(iterator, "_num_workers", 0) and not self.walking
        loader = self.loader(iterator)
        self._thread_of[iterator] = threading.get_ident()
        before = self._uses
        self._drawing += own
        try:
            yield
        finally:
            self._drawing -= own
        if loader is None or self.walking or in_worker():
            return
        if self._spec.walk or loader.num_workers > 0:
            _add(self._drawn, loader)
        if self._uses > before:
            _add(self._lazy, loader)
            self._tell(self._uses - before, loader.dataset)

    def used(self) -> None:
        """The network is used, just now."""
        if in_worker():
            if not os.path.exists(self._spec.lazy):
                os.close(os.open(self._spec.lazy, os.O_WRONLY | os.O_CREAT, 0o600))
            self._tell(1, sys.modules["torch.utils.data._utils.worker"]._worker_info.dataset)
        elif self._drawing:
            self._uses += 1

    def in_workers(self) -> bool:
        """Whether a worker has used the network."""
        return os.path.exists(self._spec.lazy)

    def walk(self) -> None:
        """Draw all samples of the data sets that download while drawing.

        Also of those of the same type that the script has made loaders for: a validation set is
        drawn from much later.

        Raises:
            Exception: whatever a data set raises.
        """
        first = list(self._lazy)
        if self.in_workers():
            first += [loader for loader in self._drawn if loader.num_workers > 0]
        if self._spec.mode == "proof":
            first = []
        if self._spec.walk:
            first += self._drawn
        types = {type(_innermost(loader.dataset)) for loader in first}
        others = [one for one in self._loaders if type(_innermost(one.dataset)) in types]
        self.walking = True
        if first:
            self._end_workers()
        done: list[Any] = []
        for loader in [*first, *others]:
            if not any(loader.dataset is one for one in done):
                done.append(loader.dataset)
                self._walk_through(loader)

    def _end_workers(self) -> None:
        """Let the script's workers finish the batch that each is at, and then end.

        They draw ahead. A sample that one of them is downloading would come twice, or be read
        before it is whole, by those that start now.
        """
        children = multiprocessing.active_children()  # a fork knows the iterators of its parent
        for iterator in list(self._of_iterator):
            workers = [one for one in getattr(iterator, "_workers", ()) if one in children]
            # In another thread it would look as if the epoch were over, and training went on.
            if workers and self._thread_of.get(iterator) == threading.get_ident():
                with suppress(Exception):  # torch's own affair, which may change
                    self._end(iterator)

    def _end(self, iterator: Any) -> None:
        torch: Any = sys.modules["torch.utils.data._utils"]
        # Seconds after which torch kills a worker, which would leave half a file.
        before, torch.MP_STATUS_CHECK_INTERVAL = torch.MP_STATUS_CHECK_INTERVAL, _PATIENCE
        try:
            iterator._shutdown_workers()
        finally:
            torch.MP_STATUS_CHECK_INTERVAL = before
        loader = self.loader(iterator)
        if getattr(loader, "_iterator", None) is iterator:
            loader._iterator = None  # its workers are persistent: the next ones are to be new

    def _walk_through(self, loader: Any) -> None:
        if _streams(loader.dataset):
            return
        batches, count = _all_samples(loader)
        told, done = time.monotonic(), 0
        for _ in batches:
            done += 1
            if time.monotonic() - told > 1:
                told = time.monotonic()
                self._journal.tell("walk", done=done, of=count)
        self._journal.tell("walk", done=done, of=done)

    def _tell(self, count: int, dataset: Any) -> None:
        if self._journal.once("lazy"):
            where = self._journal.where()
            self._journal.tell("lazy", count=count, where=where, streams=_streams(dataset))


def _all_samples(loader: Any) -> tuple[Iterable[Any], int | None]:
    """Something to iterate over, in which each sample comes once, and how many items it has."""
    data: Any = sys.modules["torch.utils.data"]
    dataset, sampler = loader.dataset, getattr(loader, "sampler", None)
    own_order = sampler is not None and not type(sampler).__module__.startswith("torch.utils.data")
    if isinstance(dataset, data.IterableDataset) or own_order or not hasattr(dataset, "__len__"):
        # Only the script's own sampler knows the keys.
        return loader, _length(loader)
    kind = data.dataloader.DataLoader
    plain = kind(
        dataset,
        batch_size=1,
        num_workers=loader.num_workers,
        collate_fn=len,  # the samples themselves are not wanted, and stay where they are
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    return plain, len(dataset)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _innermost(dataset: Any) -> Any:
    """What a `Subset` and its like stand on."""
    for _ in range(20):
        inner = getattr(dataset, "dataset", None)
        if inner is None:
            break
        dataset = inner
    return dataset


def _streams(dataset: Any) -> bool:
    """Whether it is a data set of Hugging Face's that keeps nothing of what it downloads."""
    datasets: Any = sys.modules.get("datasets")
    return datasets is not None and isinstance(_innermost(dataset), datasets.IterableDataset)


def _add(loaders: list[Any], loader: Any) -> None:
    if not any(one is loader for one in loaders):
        loaders.append(loader)
