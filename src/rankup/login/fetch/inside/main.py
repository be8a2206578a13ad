"""Runs the user's unchanged script, watched."""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader

from . import children, distributed
from .bounds import set_bounds
from .ending import without_ours
from .install import Installed, install
from .spec import MAIN, Spec, load


def main() -> int:
    """Run the script of the spec in the folder that `RANKUP_FETCH` names.

    Returns:
        The exit code that Python would end the script with.
    """
    spec = load()
    os.environ[MAIN] = str(os.getpid())
    _reach_children()
    if spec.world:
        os.environ.update(distributed.environment())
    installed = install(spec)
    set_bounds(spec, installed.journal)
    installed.journal.must("start", python=sys.version.split()[0], script=spec.script)
    with open(spec.stack, "ab") as stack:
        # The descriptor of the duplicate is faulthandler's, and stays open.
        faulthandler.register(signal.SIGUSR2, os.dup(stack.fileno()), all_threads=True)
    return _Script(spec, installed).run()


class _Script:
    def __init__(self, spec: Spec, installed: Installed) -> None:
        self._spec = spec
        self._ending = installed.ending
        self._main = os.getpid()
        self._code = 0
        self._error: BaseException | None = None

    def run(self) -> int:
        """As `python SCRIPT ARGS…` would."""
        # The first to be registered is the last to run: after the script's threads and its atexit.
        atexit.register(self._ended)
        spec = self._spec
        sys.argv = [spec.script, *spec.args]
        sys.path.insert(0, os.path.dirname(spec.script))
        module = types.ModuleType("__main__")
        module.__file__ = spec.script
        module.__loader__ = SourceFileLoader("__main__", spec.script)
        vars(module).update(__builtins__=__builtins__, __cached__=None)
        if sys.version_info < (3, 14):
            module.__annotations__ = {}
        # Not runpy: it takes the module away at the end, when threads and atexit still use it.
        sys.modules["__main__"] = module
        try:
            with open(spec.script, "rb") as file:
                source = file.read()
            code = compile(source, spec.script, "exec", dont_inherit=True)
            exec(code, vars(module))  # noqa: S102 - the user's own script is what we are here for
        except SystemExit as error:
            self._code = _exit_code(error)
        except BaseException as error:
            self._error = error
            self._code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
            self._show(error)
        return self._code

    def _show(self, error: BaseException) -> None:
        told = without_ours(error)
        with self._held():
            try:
                sys.excepthook(*told)
            except Exception:  # the script's own hook
                sys.__excepthook__(*told)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """What is written to stderr in here goes into the file of the spec, if that says so."""
        if not self._spec.hold:
            yield
            return
        shown, kept = sys.stderr, io.StringIO()
        sys.stderr = kept
        try:
            yield
        finally:
            sys.stderr = shown
            with suppress(OSError), open(self._spec.traceback, "wb") as file:
                file.write(kept.getvalue().encode(errors="backslashreplace"))

    def _ended(self) -> None:
        if os.getpid() == self._main:
            with suppress(Exception):
                self._ending.ended(self._code, self._error)


def _reach_children() -> None:
    """Let each Python process that is started from here be watched from its start."""
    folder = os.path.dirname(os.path.abspath(children.__file__))
    given = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, given] if given else [folder])


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
