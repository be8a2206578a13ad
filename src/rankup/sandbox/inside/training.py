"""How far the script has come, its first batch, forward, backward and step; and how it ends.

Training is reached with a forward after a batch was drawn, or with a backward or a step: those show
training without a DataLoader. A forward before any batch is a test of shapes, or a summary.

A data set that uses the network while a batch is drawn downloads its samples one by one: of those
only the first ones come, which is told.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

from ...base.secrets import redacted
from .hooks import Hook, replaces
from .journal import HERE, Journal

_MOST = 64 << 10  # characters of an error in a line of the journal


class Training:
    """Watches torch, and ends this process, and the script's others; one for each process.

    Args:
        main: process id of the script itself.
    """

    def __init__(self, journal: Journal, hook: Hook, main: int) -> None:
        self._journal, self._hook, self._main = journal, hook, main
        self._drawn = False
        self._thread = threading.local()
        self._stopping = threading.Lock()

    def watch_loader(self, module: Any) -> None:
        """`torch.utils.data.dataloader`: Lightning, accelerate and fastai draw from it, too."""

        @replaces(module._BaseDataLoaderIter, "__next__")
        def draw(original: Any, iterator: Any) -> Any:
            if self._is_drawing():
                return original(iterator)
            self._thread.drawing = True
            try:
                batch = original(iterator)
            finally:
                self._thread.drawing = False
            if not self._drawn and not in_worker():
                self._drawn = True
                self._journal.tell("batch", where=self._journal.where())
            return batch

    def network_used(self) -> None:
        """The network is used, just now."""
        if (in_worker() or self._is_drawing()) and self._journal.once("lazy"):
            self._journal.tell("lazy", where=self._journal.where())

    def watch_modules(self, module: Any) -> None:
        """`torch.nn.modules.module`: every call of every module comes by here."""
        module.register_module_forward_pre_hook(self._forward)

    def watch_autograd(self, module: Any) -> None:
        """`torch.autograd`, whose `backward` is also that of tensors."""

        @replaces(module, "backward")
        def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
            self._reached("backward")
            return original(*args, **kwargs)

    def watch_optimizers(self, module: Any) -> None:
        """`torch.optim.optimizer`."""
        module.register_optimizer_step_pre_hook(self._step)

    def _is_drawing(self) -> bool:
        return bool(getattr(self._thread, "drawing", False))

    def _forward(self, module: Any, args: Any) -> None:
        if self._is_drawing() or in_worker():
            return
        # The transforms of images are modules as well, but have no parameters.
        if next(module.parameters(), None) is None:
            return
        if self._journal.once("forward"):
            self._journal.tell("forward", model=type(module).__name__, where=self._journal.where())
        if self._drawn:
            self._stop("batch and forward")

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # A step without gradients changes nothing: some call it once before a scheduler is made.
        groups = optimizer.param_groups
        if any(one.grad is not None for group in groups for one in group["params"]):
            self._reached("step")

    def _reached(self, what: str) -> None:
        if not in_worker():
            self._journal.tell(what, where=self._journal.where())
            self._stop(what)

    def _stop(self, reached: str) -> None:
        """Stand still, for the parent to end all: no `finally`, no `atexit`, no `except` runs.

        They could upload a checkpoint of an untrained model. A process that waits for this one
        would go on with the script, so that all of the group stop at once.
        """
        if self._stopping.acquire(blocking=False):
            with self._hook.unwatched():
                flush()
                self._journal.tell("modules", names=_packages())
                self._journal.tell("stop", reached=reached, where=self._journal.where())
                for pid in (self._main, -os.getpgrp(), os.getpid()):
                    os.kill(pid, signal.SIGSTOP)
        while True:  # the signal may go to another thread, which takes its time
            time.sleep(60)

    def ended(self, code: int, error: BaseException | None) -> None:
        """Say that the script has ended by itself."""
        told: dict[str, str | None] = {"error": None, "type": None, "message": None}
        if error is not None:
            told = {**_told(error, traceback.format_exception(*without_ours(error)))}
        self._journal.tell("modules", names=_packages())
        self._journal.tell("end", code=code, **told)

    def refuse(self, what: str, error: BaseException) -> None:
        """End the script here: it cannot be watched, and would train to its end."""
        why = f"{what}: {type(error).__name__}: {error}"
        with self._hook.unwatched():
            self._journal.tell("end", code=1, unknown=why[:_MOST])
        self._stop("")


def in_worker() -> bool:
    """Return True in a worker of a DataLoader."""
    worker: Any = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker._worker_info is not None


def _packages() -> list[str]:
    """Return the packages that the script has imported: they decide what a job is told."""
    found = {name.partition(".")[0] for name in list(sys.modules)}
    return sorted(found - sys.stdlib_module_names)


def flush() -> None:
    """Write out what the script has printed; it may have put something else in its place."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def without_ours(
    error: BaseException, folders: tuple[str, ...] = (HERE,)
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An exception and those it came from, without the calls of files in these folders."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _theirs(one.__traceback__, folders)
            todo += [one.__cause__, one.__context__]
    return type(error), error, error.__traceback__


def _theirs(calls: TracebackType | None, folders: tuple[str, ...]) -> TracebackType | None:
    kept: list[TracebackType] = []
    while calls is not None:
        if not calls.tb_frame.f_code.co_filename.startswith(folders):
            kept.append(calls)
        calls = calls.tb_next
    first = None
    for call in reversed(kept):
        call.tb_next, first = first, call
    return first


def _told(error: BaseException, lines: list[str]) -> dict[str, str | None]:
    kind = type(error)
    prefix = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    try:
        message = str(error)
    except Exception as failed:  # somebody's own __str__
        message = f"<no message: {failed!r}>"
    return {
        "error": _short(redacted("".join(lines), os.environ)),
        "type": prefix + kind.__qualname__,
        "message": _short(redacted(message, os.environ)),
    }


def _short(text: str) -> str:
    """Both ends of a text: a message may hold a whole tensor, and what counts stands at its end."""
    half = _MOST // 2
    return text if len(text) <= _MOST else f"{text[:half]}\n[...]\n{text[-half:]}"
