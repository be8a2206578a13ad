"""The journal of a watched process: a line for each event, and the line of the user's code."""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from .hooks import replaces

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_WITHIN_RANKUP = os.path.join(os.sep, "sandbox", "inside", "")
_STARTED = "_rankup_where"  # attribute of a thread: the place that started it


class Journal:
    """Appends events, from any thread and any process of the script's tree.

    The file is opened for each line: a script may close descriptors that it does not know, and a
    number kept here could then be a file of its own. One `write` with O_APPEND keeps lines whole.

    Args:
        script: absolute path of the user's script; the files beside it are shown relative to it.
        shadow: the folder that stands for `/` in a copy: paths below it are told as those that they
            stand for.
    """

    def __init__(self, path: str, script: str, shadow: str = "") -> None:
        self._path = path
        self._home = os.path.dirname(script) + os.sep
        self._shadow = json.dumps(shadow)[1:-1].encode() if shadow else b""
        self._told: set[object] = set()
        self._foreign = _foreign_folders()
        self._users: dict[str, bool] = {}  # files
        self._follow_threads()

    def must(self, event: str, **fields: Any) -> None:
        """Append an event that the parent cannot do without.

        Raises:
            OSError: it could not be written.
        """
        record = {"event": event, "time": time.time(), "pid": os.getpid(), **fields}
        line = json.dumps(record).encode() + b"\n"
        if self._shadow:
            line = line.replace(self._shadow, b"")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def tell(self, event: str, **fields: Any) -> None:
        """Append an event that only explains; the script goes on where that is not possible."""
        with suppress(OSError):
            self.must(event, **fields)

    def where(self) -> str:
        """Return `train.py:12 in main` of the innermost call in the user's code, else nothing.

        A thread without such a call (a library's downloads) has the place that started it.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if self._is_users(name):
                shown = name[len(self._home) :] if name.startswith(self._home) else name
                function = frame.f_code.co_name
                inside = "" if function == "<module>" else f" in {function}"
                return f"{shown}:{frame.f_lineno}{inside}"
            frame = frame.f_back
        return str(getattr(threading.current_thread(), _STARTED, ""))

    def once(self, *key: object) -> bool:
        """Return True for the first call with this key in this process."""
        if key in self._told:
            return False
        self._told.add(key)
        return True

    def problem(self, what: str, error: BaseException) -> None:
        """Say that something here did not work; the script goes on without it."""
        if self.once("problem", what):
            self.tell("problem", what=what, error=f"{type(error).__name__}: {error}")

    def _follow_threads(self) -> None:
        """Have each thread know the place that starts it."""

        @replaces(threading.Thread, "start")
        def start(original: Any, thread: threading.Thread) -> None:
            setattr(thread, _STARTED, self.where())
            original(thread)

    def _is_users(self, name: str) -> bool:
        known = self._users.get(name)
        if known is None:
            parts = name.split(os.sep)
            library = "site-packages" in parts or "dist-packages" in parts
            known = os.path.isabs(name) and not library and not name.startswith(self._foreign)
            self._users[name] = known
        return known


def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.add(os.path.dirname(os.__file__))
    folders.update(getattr(site, "getsitepackages", list)())
    found = {os.path.abspath(folder) + os.sep for folder in folders if folder}
    found |= {os.path.realpath(folder) + os.sep for folder in folders if folder}
    # rankup itself, where it is installed as a link to its sources.
    package = HERE.rpartition(_WITHIN_RANKUP)[0]
    found.add(package + os.sep if package else HERE)
    return tuple(found)
