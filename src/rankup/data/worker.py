"""What runs in a worker process of `processes.py`."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

import torch

from ..base.errors import UserError
from .making import ROOM, Fetch
from .shared import Filling, Slot, Written
from .transforms import OWN_GENERATORS

_MOST = 1 << 14  # bytes of an error's text: some quote the data that they are about
_PARENT = 1.0  # seconds between two looks whether the training process is still there


class _InWorker(Exception):  # noqa: N818 - printed as the cause of the error that it belongs to
    """The traceback of an error, as it was in the worker."""

    def __str__(self) -> str:
        return f"in a data worker:\n\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """An error on its way to the training process.

    Attributes:
        error: pickled; empty where it cannot be.
        summary: type and message.
        trace: with it, where it happened; empty for what the message says all about.
    """

    error: bytes
    summary: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        summary = f"{type(error).__name__}: {error}"
        cause = error.__cause__
        clean = isinstance(error, UserError) and (cause is None or isinstance(cause, UserError))
        trace = "" if clean else "".join(traceback.format_exception(error))
        try:
            pickled = pickle.dumps(error)
            if len(pickled) > _MOST:
                pickled = pickle.dumps(type(error)(str(error)[: _MOST // 4]))
            pickle.loads(pickled)  # noqa: S301 - some errors can be pickled and not made again
        except Exception:
            pickled = b""
        return cls(pickled, summary[:_MOST], trace[:_MOST])

    def reraise(self) -> None:
        try:
            error = pickle.loads(self.error)  # noqa: S301 - the worker is ours
        except Exception:
            error = RuntimeError(self.summary)
        raise error from (_InWorker(self.trace) if self.trace else None)


def work(fetch: Fetch, pipe: Connection) -> None:
    """The life of a worker: a draw, its batch; until it is told to end."""
    # Signals to all processes of a job (Ctrl-C, Slurm's warning before the end) are for the
    # training process, which saves and needs its batches until it is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    OWN_GENERATORS.set(True)
    slots: dict[int, Slot] = {}
    asked: deque[Any] = deque()
    while True:
        # All that has come is taken, so that the word to end is seen after this batch.
        while not asked or pipe.poll():
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                return
            if message is None:
                return
            if message[2]:
                slots[message[1]] = Slot(recv_handle(pipe))
            asked.append(message)
        ticket, number, _, where, letter = asked.popleft()
        slot = slots[number]
        result = _made(fetch, slot, slot.mapped(where)[:where] if where else letter)
        try:
            pipe.send((ticket, number, result))
        except OSError:
            return


def _made(fetch: Fetch, slot: Slot, letter: bytes) -> Written | Failure:
    filling = Filling(slot)
    token = ROOM.set(filling.allocate)
    try:
        made = fetch(pickle.loads(letter))  # noqa: S301 - the training process's own
        return filling.write(made)
    except BaseException as error:
        return Failure.of(error)
    finally:
        ROOM.reset(token)


def _end_with_parent() -> None:
    """End this process when the training process is gone, whatever it is busy with."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    own = os.getppid()
    # Processes that were forked from the same one may hold the sentinel open.
    while not wait([parent.sentinel], _PARENT) and os.getppid() == own:
        pass
    sys.stderr.flush()
    os._exit(1)
