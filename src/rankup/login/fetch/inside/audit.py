"""One audit hook for all that is watched by what Python itself reports (PEP 578)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Handler = Callable[..., None]


class _Busy(threading.local):
    """Whether this thread is in a handler: what handlers do themselves is not watched."""

    value = False


class Hook:
    """Calls the handler of an event. What a handler raises reaches the script at that call."""

    def __init__(self) -> None:
        self._busy = _Busy()

    def install(self, handlers: Mapping[str, Handler]) -> None:
        """Watch from now on, in this process and its forks: a hook can never be removed."""
        busy, find = self._busy, dict(handlers).get

        def hook(event: str, args: tuple[Any, ...]) -> None:
            handler = find(event)
            if handler is None or busy.value:
                return
            busy.value = True
            try:
                handler(*args)
            finally:
                busy.value = False

        sys.addaudithook(hook)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """What the calling thread does in here is our own affair, not the script's."""
        before, self._busy.value = self._busy.value, True
        try:
            yield
        finally:
            self._busy.value = before
