"""Runs functions on a module right after the script has imported it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .journal import Journal

Change = Callable[[Any], None]
Changes = Mapping[str, Sequence[Change]]
Refuse = Callable[[str, BaseException], None]


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

        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            self._journal.problem(name, error)
            if any(change in self._needed for change in self._changes[name]):
                self._refuse(name, error)

    def _apply(self, name: str, module: ModuleType) -> None:
        for number, change in enumerate(self._changes[name], 1):
            self._try(f"{name}, change {number}", change, module)

    def _try(self, what: str, change: Change, module: ModuleType) -> None:
        try:
            change(module)
        except Exception as error:
            # A version that we do not know: the script is not to suffer from it.
            self._journal.problem(what, error)
            if change in self._needed:
                self._refuse(what, error)
