"""Which line of the user's own code a call comes from."""

from __future__ import annotations

import gc
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_WITHIN_RANKUP = os.path.join(os.sep, "login", "fetch", "inside", "")


# Threads ask one after the other, so that none switches the collection on while another looks.
_frames = threading.RLock()


def _forget_holder() -> None:
    """In a forked process nobody holds the lock, whoever held it where it was forked."""
    global _frames
    _frames = threading.RLock()


os.register_at_fork(after_in_child=_forget_holder)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Around a look at another thread's frames.

    A collection that lets that thread leave a frame which is being made an object breaks the
    memory of Python 3.11 and earlier.
    """
    with _frames:
        collects = sys.version_info < (3, 12) and gc.isenabled()
        if collects:
            gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


class Places:
    """Tells the user's files from all others, and remembers the answers.

    Args:
        script: absolute path of the user's script.
    """

    def __init__(self, script: str) -> None:
        self._home = os.path.dirname(script) + os.sep
        self._foreign = _foreign_folders()
        self._known: dict[str, bool] = {}

    def where(self) -> str:
        """`train.py:12 in main` of the innermost call in the user's code, else an empty string.

        A thread without such a call (a library's downloads) is told by the main thread.
        """
        found = self._innermost(sys._getframe(1))
        if not found:
            with _no_collection():
                main = sys._current_frames().get(threading.main_thread().ident or 0)
                found = self._innermost(main)
        return found

    def _innermost(self, frame: FrameType | None) -> str:
        while frame is not None:
            name = frame.f_code.co_filename
            if self._is_users(name):
                shown = name[len(self._home) :] if name.startswith(self._home) else name
                function = frame.f_code.co_name
                inside = "" if function == "<module>" else f" in {function}"
                return f"{shown}:{frame.f_lineno}{inside}"
            frame = frame.f_back
        return ""

    def _is_users(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._judge(name)
        return known

    def _judge(self, name: str) -> bool:
        if name.startswith("<") or not os.path.isabs(name):
            return False
        parts = name.split(os.sep)
        if "site-packages" in parts or "dist-packages" in parts:
            return False
        return not name.startswith(self._foreign)


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
