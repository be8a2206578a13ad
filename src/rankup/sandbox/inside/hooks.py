"""The two ways to watch a script: audit events of Python (PEP 578), and changes of modules.

A module is changed right after the script has imported it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .journal import Journal

Handler = Callable[..., None]
Change = Callable[[Any], None]
Changes = Mapping[str, Sequence[Change]]
Refuse = Callable[[str, BaseException], None]


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put a function in the place of another one, which it is given as its first argument."""
    original = getattr(owner, name)

    def put(new: Callable[..., Any]) -> None:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return new(original, *args, **kwargs)

        setattr(owner, name, call)

    return put


class _Busy(threading.local):
    """True in a thread that is in a handler: what handlers do themselves is not watched."""

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
        """Do not watch the calling thread in here: that is our own affair, not the script's."""
        before, self._busy.value = self._busy.value, True
        try:
            yield
        finally:
            self._busy.value = before


class AfterImport:
    """A finder that stands first and finds nothing itself: the others do.

    The module keeps its own loader, which others look at (`inspect`, `importlib.resources`); only
    its `exec_module` is wrapped for one call.

    Args:
        needed: those of `changes` without which the script must not go on.
        refuse: ends the script; called with the name of such a change, and why it failed.
    """

    def __init__(
        self, changes: Changes, journal: Journal, needed: Collection[Change], refuse: Refuse
    ) -> None:
        self._changes = changes
        self._journal = journal
        self._needed = needed
        self._refuse = refuse

    def install(self) -> None:
        """Begin; what is imported already is changed at once."""
        sys.meta_path.insert(0, self)
        for name in self._changes:
            if name in sys.modules:
                self._apply(name, sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the other finders say; with the change put behind the execution of the module."""
        if name not in self._changes:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._wrap(name, spec)
                return spec
        return None

    def _wrap(self, name: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            original(module)
            self._apply(name, module)

        loader.exec_module = exec_module

    def _apply(self, name: str, module: ModuleType) -> None:
        for number, change in enumerate(self._changes[name], 1):
            try:
                change(module)
            except Exception as error:  # noqa: PERF203 - the others are made all the same
                # A version that we do not know: the script is not to suffer from it.
                what = f"{name}, change {number}"
                self._journal.problem(what, error)
                if change in self._needed:
                    self._refuse(what, error)
