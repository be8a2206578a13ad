"""How the script ends: stopped by us, or by itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

from ...base.secrets import redacted
from .. import processes
from .hooks import Hook
from .journal import HERE, Journal
from .spec import Spec

_MOST = 64 << 10  # characters of an error in a line of the journal


class Ending:
    """Ends this process, and the script's others.

    Args:
        main: process id of the script itself.
    """

    def __init__(self, spec: Spec, journal: Journal, hook: Hook, main: int) -> None:
        self._stack = spec.stack
        self._journal = journal
        self._hook = hook
        self._main = main
        self._begun = threading.Lock()

    def stop(self, reached: str) -> None:
        """End here and now: no `finally`, no `atexit`, no `except` of the script runs any more.

        They could upload a checkpoint of an untrained model.
        """
        if self._begun.acquire(blocking=False):
            self._leave(0, "stop", reached=reached, where=self._journal.where())

    def _leave(self, exit_code: int, event: str, **fields: Any) -> None:
        with self._hook.unwatched():
            flush()
            pids = processes.members(self._main)
            self._journal.tell("modules", names=_packages())
            if event == "stop":
                fields["open"] = sorted(processes.written_by(pids) - {self._stack})
            self._journal.tell(event, **fields)
            _let_children_die()
            # A main process that waits for this one would go on with the script.
            processes.kill([self._main, *(pid for pid in pids if pid != self._main)])
            os._exit(exit_code)

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
        self._leave(1, "end", code=1, error=None, type=None, message=None, unknown=why[:_MOST])


def _packages() -> list[str]:
    """Return the packages that the script has imported: they decide what a job is told."""
    found = {name.partition(".")[0] for name in list(sys.modules)}
    return sorted(found - sys.stdlib_module_names)


def _let_children_die() -> None:
    """No handler of SIGCHLD runs any more: torch's raises an error where a worker was killed.

    The script would go on with its `except` or `finally`. Python changes handlers in the main
    thread only, and this may be another one.
    """
    with suppress(Exception):  # a Python without ctypes
        import ctypes

        default = ctypes.c_void_p(int(signal.SIG_DFL))
        ctypes.CDLL(None).signal(int(signal.SIGCHLD), default)


def flush() -> None:
    """Write out what the script has printed; it may have put something else in its place."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def without_ours(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """An exception and those it came from, without the calls of this package."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _theirs(one.__traceback__)
            todo += [one.__cause__, one.__context__]
    return type(error), error, error.__traceback__


def _theirs(calls: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while calls is not None:
        if not calls.tb_frame.f_code.co_filename.startswith(HERE):
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
