"""Who makes batches ahead of the training loop: nobody, threads of this process, or processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset

from ..base.errors import UserError
from ..site.gpus import usable_cores
from .draw import Draw
from .making import Fetch, Made
from .transforms import Shaped


@dataclass(frozen=True)
class Options:
    """As the Loader was asked; see there."""

    workers: int | None
    kind: str
    prefetch: int
    context: str | None
    timeout: float
    pin_memory: bool


class Engine(Protocol):
    """Makes batches, in the order of their draws."""

    def run(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Made]]: ...

    def close(self) -> None: ...


def engine(fetch: Fetch, options: Options) -> Engine:
    """The engine that was asked for, or that suits the data set.

    Raises:
        UserError: no such kind.
    """
    if options.kind not in ("auto", "threads", "processes"):
        raise UserError(f"kind={options.kind!r} is not known: auto, threads or processes")
    workers = default_workers() if options.workers is None else options.workers
    if workers == 0:
        return Inline(fetch)
    threads = options.kind == "threads" or (options.kind == "auto" and _suits_threads(fetch))
    return Threads(fetch, workers, options) if threads else Processes(fetch, workers, options)


def default_workers() -> int:
    """The cores of this rank minus one, which the training loop itself needs; at least one."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    return max(1, usable_cores() // ranks - 1)


def _suits_threads(fetch: Fetch) -> bool:
    transform = getattr(fetch.dataset, "transform", None)
    return isinstance(transform, Shaped) and transform.releases_gil


class Inline:
    """In the loop itself, when it asks."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def run(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Made]]:
        for draw in draws:
            yield draw, self._fetch(draw)

    def close(self) -> None:
        pass


class Threads:
    """Threads of this process, each with a batch of its own: nothing travels between processes."""

    def __init__(self, fetch: Fetch, workers: int, options: Options) -> None:
        self._fetch, self._workers, self._options = fetch, workers, options
        self._pool: ThreadPoolExecutor | None = None

    def run(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Made]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, "rankup-data")
        waiting: deque[tuple[Draw, Future[Made]]] = deque()
        try:
            for draw in draws:
                waiting.append((draw, self._pool.submit(self._fetch, draw)))
                if len(waiting) > self._workers * self._options.prefetch:
                    yield self._first(waiting)
            while waiting:
                yield self._first(waiting)
        finally:
            for _, future in waiting:
                future.cancel()

    def _first(self, waiting: deque[tuple[Draw, Future[Made]]]) -> tuple[Draw, Made]:
        draw, future = waiting.popleft()
        return draw, future.result(self._options.timeout or None)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Processes:
    """Worker processes of torch's own DataLoader."""

    def __init__(self, fetch: Fetch, workers: int, options: Options) -> None:
        self._source = _Draws()
        self._make: Callable[[], DataLoader[Any]] = lambda: DataLoader(
            _Fetched(fetch),
            batch_sampler=self._source,  # type: ignore[arg-type]
            collate_fn=_as_it_is,  # type: ignore[arg-type]
            num_workers=workers,
            prefetch_factor=options.prefetch,
            persistent_workers=True,
            multiprocessing_context=options.context,
            timeout=options.timeout,
            pin_memory=options.pin_memory,
        )
        self._loader: DataLoader[Any] | None = None

    def run(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Made]]:
        if self._loader is None:
            self._loader = self._make()
        self._source.begin(draws)
        for made in self._loader:
            yield self._source.asked.popleft(), made

    def close(self) -> None:
        self._loader = None


class _Draws:
    """The batch sampler of a DataLoader that stays, epoch after epoch."""

    def __init__(self) -> None:
        self._draws: Iterator[Draw] = iter(())
        self.asked: deque[Draw] = deque()

    def begin(self, draws: Iterator[Draw]) -> None:
        self._draws, self.asked = draws, deque()

    def __iter__(self) -> Iterator[Draw]:
        for draw in self._draws:
            self.asked.append(draw)
            yield draw


@dataclass(frozen=True)
class _Fetched(Dataset[Any]):
    fetch: Fetch

    def __getitems__(self, draw: Draw) -> Made:
        return self.fetch(draw)


def _as_it_is(made: Made) -> Made:
    return made
