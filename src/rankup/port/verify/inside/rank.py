"""One rank of one run: everything in place, then the user's script as `python SCRIPT ARGS…`."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from ....login.fetch.inside import accelerator, functions, writers
from ....login.fetch.inside import devices as gpu
from ....login.fetch.inside.audit import Hook
from ....login.fetch.inside.devices import Devices
from ....login.fetch.inside.imports import AfterImport
from ....login.fetch.inside.journal import Journal
from ....login.fetch.inside.where import Places
from ..plan import Plan, Run, Try, journal
from . import group
from .comparable import Comparable
from .files import Files
from .halves import Halves
from .lines import Lines
from .loops import Compiler, Loops
from .noise import Noise
from .progress import Progress
from .samples import Samples
from .saves import Saves
from .steps import Steps

_PR_SET_PDEATHSIG = 1
_LARGEST_FILE = 8 << 30
FINISHED = b"F"


@dataclass(frozen=True)
class Pipes:
    """Ends that this rank has.

    Attributes:
        said: for what goes to stderr.
        status: one byte once the script has ended.
        order: the zygote's questions to the original, a folder per line; -1: none will come.
    """

    said: int
    status: int
    order: int


@dataclass(frozen=True)
class _Place:
    plan: Plan
    run: Run
    tried: Try
    rank: int
    batches: dict[int, int]


def live(
    plan: Plan, run: Run, tried: Try, rank: int, batches: dict[int, int], pipes: Pipes
) -> NoReturn:
    """Be that rank, and end with it."""
    code = 70
    try:
        _become_own(pipes)
        os.chdir(run.cwd)
        watched = _Watched(_Place(plan, run, tried, rank, batches))
        code = watched.run_script()
        os.write(pipes.status, FINISHED if watched.finished else b"E")
        _end_threads(code)
        if pipes.order >= 0 and watched.finished:
            watched.answer(pipes.order)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _become_own(pipes: Pipes) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(pipes.said, 2)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = _LARGEST_FILE if hard == resource.RLIM_INFINITY else min(_LARGEST_FILE, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Watched:
    """The rank with all hooks."""

    def __init__(self, place: _Place) -> None:
        import torch
        import torch.utils.data as data

        plan, run = place.plan, place.run
        self._place = place
        self._main = os.getpid()
        self.finished = False
        self._journal = Journal(journal(plan.state, run.name, place.rank), Places(run.script).where)
        progress = Progress()
        self._redirect(torch, Devices(self._journal))
        Comparable(run.folder, progress, self._journal).install(torch)
        Halves(progress, self._journal).install(torch)
        Noise(progress, self._journal).install(torch)
        Samples(run, place.tried, place.batches, progress, self._journal).install(data)
        self._steps = Steps(run, place.rank, plan.state, progress, self._journal)
        self._steps.install(torch)
        self._saves = Saves(run.folder, self._journal)
        if not run.world:
            self._saves.install(torch)
        files = Files(run.folder, (plan.temporary, plan.state), self._journal)
        hook = Hook()
        # It wants an `Outputs` for its method `written` alone.
        changes: Any = writers.changes(files, hook)  # type: ignore[arg-type]
        AfterImport(changes, self._journal, (), lambda what, error: None).install()
        torch.save = torch.serialization.save
        self._lines = Lines(progress, self._journal)
        self._lines.install()
        self._compiler = Compiler(run.folder, Loops(progress))
        self._compiler.install()
        handlers = files.handlers()
        if not run.world:
            handlers["os.rename"] = _both(handlers["os.rename"], self._saves.renamed)
        hook.install(handlers)
        self._hook = hook

    def _redirect(self, torch: Any, devices: Devices) -> None:
        place = self._place
        accelerator.stand_in(torch, devices, place.tried.gpu)
        if place.tried.gpu:
            group.number_gpus(torch, place.rank, place.run.world)
        for change in functions.changes(devices):
            change(torch)
        functions.limit_threads(torch, 1)
        gpu.redirect(torch, devices)
        functions.redirect_parallel(torch.nn.parallel.distributed)
        functions.redirect_data_parallel(sys.modules["torch.nn.parallel.data_parallel"])
        group.redirect(torch.distributed.distributed_c10d)
        group.redirect_mesh(torch.distributed.device_mesh, devices)

    def run_script(self) -> int:
        """The code that Python would exit with."""
        plan, run = self._place.plan, self._place.run
        self._journal.must("start", script=run.script)
        sys.argv = [run.script, *plan.args]
        sys.path.insert(0, os.path.dirname(run.script))
        sys.path += plan.stand_ins
        module = types.ModuleType("__main__")
        module.__file__ = run.script
        module.__loader__ = SourceFileLoader("__main__", run.script)
        vars(module).update(__builtins__=__builtins__, __cached__=None, __annotations__={})
        sys.modules["__main__"] = module
        code = 0
        error: BaseException | None = None
        try:
            with open(run.script, "rb") as file:
                source = file.read()
            exec(self._compiler.compile(source, run.script), vars(module))  # noqa: S102
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            if code:
                error = ended
        except BaseException as raised:
            code, error = 1, raised
        return self._ended(code, error)

    def _ended(self, code: int, error: BaseException | None) -> int:
        if os.getpid() != self._main:  # a fork of the script's own has come to its end
            os._exit(code)
        self._lines.finish()
        self.finished = code == 0
        if error is None:
            self._steps.finished()
            names = [] if self._place.run.world else self._saves.names()
            self._journal.tell("end", code=code, saved=names)
            return code
        shown = traceback.format_exception(type(error), error, _theirs(error))
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        self._journal.tell(
            "end",
            code=code,
            error="".join(shown)[-4000:],
            kind=type(error).__name__,
            message=str(error)[:500],
            missing=missing,
        )
        if not isinstance(error, SystemExit):
            error.__traceback__ = _theirs(error)
            sys.excepthook(type(error), error, error.__traceback__)  # may end this process
        return code

    def answer(self, order: int) -> None:
        """Load what ports have saved into the models that are still here, folder by folder."""
        with self._hook.unwatched(), os.fdopen(order) as folders:
            for line in folders:
                name, folder = json.loads(line)
                self._journal.tell("loaded", run=name, files=self._saves.compare(folder))


def _theirs(error: BaseException) -> types.TracebackType | None:
    """The calls of the traceback from the user's script on."""
    calls = error.__traceback__
    while calls is not None and calls.tb_frame.f_globals.get("__name__") == __name__:
        calls = calls.tb_next
    return calls


def _end_threads(code: int) -> None:
    """What Python does at its end."""
    ended = threading.Timer(10.0, os._exit, (code,))
    ended.daemon = True
    ended.start()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    ended.cancel()


def _both(first: Any, second: Any) -> Any:
    def handler(*args: Any) -> None:
        first(*args)
        second(*args)

    return handler
