"""Worker processes that make batches, for transforms that hold the interpreter's lock.

They are those of torch's DataLoader: each request of a batch is an item of its sampler, and the
batch travels in shared memory.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import util
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from ..base.errors import UserError
from ..base.processes import die_with, freeze_in_children
from .batches import BatchRequest
from .fetch import Fetch, Made
from .transforms import OWN_GENERATORS

_GUARD = (
    ". Each worker imports the script first: all that the script does belongs below "
    "`if __name__ == '__main__':`"
)
_GRACE = 5.0  # seconds in which a worker that has hung up is seen to have ended
_PIPE, _POLL = 1 << 20, 0.01  # bytes that a pipe has at most, and seconds until it has some again


class Processes:
    """The engine; see `engines.Engine`."""

    def __init__(
        self, fetch: Fetch, workers: int, prefetch: int, context: str | None, timeout: float
    ) -> None:
        self._fetch, self._count, self._prefetch = fetch, workers, prefetch
        self._context, self._timeout = context, timeout
        self._requests = _Requests()
        self._iterator: Any = None
        self._pid = 0
        self._end: util.Finalize | None = None

    def run(self, requests: Iterator[BatchRequest]) -> Iterator[Made]:
        if self._iterator is not None and self._pid != os.getpid():
            self._iterator._shutdown = True  # a forked child does not end the workers of its parent
            self._iterator = self._end = None
        if self._iterator is not None and not all(
            one.is_alive() for one in self._iterator._workers
        ):
            self._give_up()
        if self._iterator is None:
            self._start()
        self._requests.asked = requests
        self._try(iter, self._loader)
        while (result := self._try(next, self._iterator, None)) is not None:
            if isinstance(result, _Failure):
                result.reraise()
            yield result

    def close(self) -> None:
        """End the workers; batches that were handed out stay valid."""
        if self._end is not None:
            self._end()
        self._iterator = self._end = None

    def _give_up(self) -> Any:
        """End workers of which one has died or hangs: torch would wait for each. Return one that
        has died."""
        self._iterator._shutdown = True
        dead = next((one for one in self._iterator._workers if not one.is_alive()), None)
        self.close()
        return dead

    def _start(self) -> None:
        """Start workers without requests: what is torch's own until it has begun cannot be ended
        as it should, see `_end`."""
        self._requests.asked = iter(())
        freeze_in_children()
        # For the kernel the parent is the thread that starts a worker, and others may end before.
        main = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if main else 0
        self._loader = DataLoader(
            _Batches(self._fetch),
            batch_size=None,
            sampler=self._requests,
            num_workers=self._count,
            collate_fn=_unchanged,
            timeout=self._timeout,
            worker_init_fn=partial(_begin_worker, parent=parent),
            multiprocessing_context=self._context,
            generator=torch.Generator(),  # else it draws from that of the training loop
            prefetch_factor=self._prefetch,
            persistent_workers=True,
        )
        try:
            with warnings.catch_warnings():
                # More workers than cores are what was asked for; what cannot be pickled is said
                # below.
                warnings.filterwarnings("ignore", "This DataLoader will create|Got pickle error")
                self._iterator, self._pid = iter(self._loader), os.getpid()
        except (EOFError, ConnectionError, RuntimeError) as error:
            # One has ended before it had its task, which torch may notice by its signal.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            traceback.clear_frames(error.__traceback__)  # which ends the others
            raise UserError(
                f"a data worker ended as it was started ({error or type(error).__name__}); what it "
                f"said stands above{self._guard()}"
            ) from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"the data set cannot be handed to worker processes: {error}. What travels there "
                f"has to be found by its name: define the transform and the collate function at "
                f"the top level of a module, not as a lambda or inside a function; or take "
                f"context='fork', kind='threads' or workers=0"
            ) from None
        for number, worker in enumerate(self._iterator._workers):
            worker.name = f"rankup-data-{number}"
        self._end = util.Finalize(self, _end, (self._iterator,), exitpriority=100)

    def _try(self, function: Any, *args: Any) -> Any:
        """Call `iter` or `next`; with an error of torch's the workers end."""
        try:
            return function(*args)
        except Exception as error:  # what a worker raises is a `_Failure`
            if isinstance(error, OSError | EOFError):  # of the connection to one that has died
                workers = self._iterator._workers
                ended = wait([one.sentinel for one in workers], _GRACE)
                for one in workers:
                    if one.sentinel in ended:  # its pipe is closed before it can be waited for
                        one.join(_GRACE)
            dead = self._give_up()
            if dead is not None:
                raise self._died(dead) from None
            if "timed out" in str(error):
                raise late(self._timeout) from None
            raise
        except BaseException:  # Ctrl-C in the middle of a message
            self.close()
            raise

    def _died(self, worker: Any) -> UserError:
        number, guard = worker.name.rpartition("-")[2], ""
        if worker.exitcode == 1:
            guard = self._guard()
        return UserError(
            f"data worker {number} (process {worker.pid}) {_ended(worker.exitcode)}{guard}"
        )

    def _guard(self) -> str:
        """Return what to do about workers that import the script, and are no copies of it."""
        context = self._loader.multiprocessing_context or torch.multiprocessing
        return _GUARD if context.get_start_method() != "fork" else ""


def late(timeout: float) -> UserError:
    """Return the error about a worker, a thread or a process, that hangs."""
    return UserError(
        f"a data worker has not made its batch within {timeout:g} s. Is the file system stuck, or "
        f"does the transform wait for something (a lock, the network)? workers=0 shows where; "
        f"Loader(timeout=…) allows more time, 0 for ever"
    )


class _Requests:
    """The requests of the running loop that are to come, as a sampler of torch's."""

    asked: Iterator[BatchRequest]

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.asked


class _Batches(Dataset[Any]):
    """A data set whose items are batches, and whose indices are requests."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def __getitem__(self, request: BatchRequest) -> Any:
        try:
            return self._fetch(request)
        except BaseException as error:
            return _Failure.of(error)


class _Failure(NamedTuple):
    """An error on its way to the training process.

    Attributes:
        error: pickled.
        trace: where it happened; empty for what the message says all about.
    """

    error: bytes
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        cause = error.__cause__
        clean = isinstance(error, UserError) and (cause is None or isinstance(cause, UserError))
        trace = "" if clean else "".join(traceback.format_exception(error))
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # noqa: S301 - some errors can be pickled and not made again
        except Exception:
            pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return cls(pickled, trace)

    def reraise(self) -> None:
        error = pickle.loads(self.error)  # noqa: S301 - the worker is ours
        raise error from (_InWorker(self.trace) if self.trace else None)


class _InWorker(Exception):  # noqa: N818 - printed as the cause of the error that it belongs to
    """The traceback of an error, as it was in the worker."""

    def __str__(self) -> str:
        return f"in a data worker:\n\n{self.args[0]}"


def _begin_worker(number: int, parent: int) -> None:
    if os.getppid() == parent:  # not below a fork server, which ends with the parent by itself
        die_with(parent)
    # Signals to all processes of a job (Ctrl-C, Slurm's warning before the end) are for the
    # training process, which saves and needs its batches until it is done.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(one, signal.SIG_IGN)
    OWN_GENERATORS.set(True)


def _unchanged(batch: Any) -> Any:
    return batch


def _end(iterator: Any) -> None:
    """End workers, first kindly. Also at the end of the process: then without their `Processes`."""
    if iterator._worker_pids_set:  # else torch takes their end for an error, whenever it is seen
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    # Copies, as the threads that write requests close the ends of their pipes.
    pipes = []
    for queue in iterator._index_queues:
        with suppress(OSError):  # too many files are open, and workers are to end all the same
            pipes.append((queue, os.dup(queue._reader.fileno())))
    # Of one that was killed torch would wait for each lock that it held.
    iterator._shutdown |= not all(worker.is_alive() for worker in iterator._workers)
    iterator._shutdown_workers()
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()
        worker.join()
    for queue in iterator._index_queues:
        queue.cancel_join_thread()
        queue.close()
    for queue, end in pipes:
        with open(end, "rb", buffering=0) as pipe:
            os.set_blocking(end, False)
            # The thread may be at a request that no worker reads any more.
            while queue._thread is not None and queue._thread.is_alive():
                pipe.read(_PIPE)
                queue._thread.join(_POLL)


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return (
            "was killed (SIGKILL), most likely since the memory of the job or the node was used "
            "up: take fewer workers, a smaller prefetch or less staged data, or ask for more "
            "memory. In Slurm, `sacct -j JOB -o State,MaxRSS` says more"
        )
    if code == -signal.SIGBUS:
        return (
            "was ended by SIGBUS: a file that it had mapped was cut short or its disk failed, or "
            "memory was used up, /dev/shm perhaps, where batches lie"
        )
    if code < 0:
        what = signal.Signals(-code).name
        return (
            f"was ended by {what}: a C library has crashed, on a damaged sample perhaps; workers=0 "
            f"with `python -X faulthandler` shows where"
        )
    return f"ended with exit code {code}; what it said stands above"
