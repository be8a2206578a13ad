"""One rank of one run: everything in place, then the user's script as `python SCRIPT ARGS…`."""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ....sandbox.inside import devices
from ....sandbox.inside.ending import without_ours
from ....sandbox.inside.files import writers
from ....sandbox.inside.hooks import AfterImport, Hook
from ....sandbox.inside.journal import HERE, Journal
from ....sandbox.inside.main import run_as_main
from ....sandbox.inside.network import Network
from ..protocol import FILE, Plan, Run, Try, journal_path, read_journal
from .comparable import Clock, Comparable
from .data import Data, DataSets
from .draws import SEED, Draws, Progress, seed
from .files import Lines, Writing
from .saves import Saves, compare
from .training import Compiler, Loops, Steps

_PR_SET_PDEATHSIG = 1
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LARGEST_FILE = 8 << 30


@dataclass(frozen=True)
class _Place:
    plan: Plan
    run: Run
    tried: Try
    rank: int
    known: DataSets


def run_rank(plan: Plan, run: Run, tried: Try, rank: int, known: DataSets, stderr: int) -> NoReturn:
    """Be that rank, and end with it."""
    code = 70
    try:
        _set_up_process(stderr)
        os.chdir(run.cwd)
        watched = _Watched(_Place(plan, run, tried, rank, known))
        code = watched.run_script()
        _end_threads(code)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _set_up_process(stderr: int) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(stderr, 2)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    most = _LARGEST_FILE if hard == resource.RLIM_INFINITY else min(_LARGEST_FILE, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Watched:
    """The rank with all hooks."""

    def __init__(self, place: _Place) -> None:
        import torch
        import torch.utils.data as data

        plan, run, rank = place.plan, place.run, place.rank
        self._place = place
        self._main = os.getpid()
        self._journal = Journal(journal_path(plan.state, run.name, rank), run.script)
        progress = Progress(self._journal)
        files = Writing(run.folder, plan.temporary, plan.state, self._journal)
        hook = Hook()
        pretend = place.tried.gpu
        redirected = devices.redirections(self._journal, 1, pretend=pretend, alone=False)
        needed = [change for changes in redirected.values() for change in changes]
        changes = {**redirected, **writers(files, hook)}
        AfterImport(changes, self._journal, needed, _refuse).install()
        torch.save = torch.serialization.save
        if pretend:
            _number_gpus(torch, rank, run.world)
        seed((SEED, rank))  # as in life: a script that sets none has others on each rank
        Comparable(progress, free=run.free).install(torch)
        if not run.free:
            Draws(progress).install(torch)
        Data(run, place.tried, place.known, progress).install(data)
        self._steps = Steps(run, rank, plan.state, progress)
        self._steps.install(torch)
        self._saves = Saves(run.folder)
        if not run.world:
            self._saves.install(torch)
        self._lines = Lines(progress)
        self._lines.install()
        self._loops = Loops(progress)
        self._compiler = Compiler(run.folder, self._loops)
        self._compiler.install()
        began = os.path.getmtime(os.path.join(plan.state, FILE))
        Clock(run.folder, began, rank if run.free else 0).install()
        net = Network(self._journal, block=True, main=os.getppid(), used=lambda: None)
        handlers = {**files.handlers(), **net.handlers()}
        if not run.world:
            handlers["os.rename"] = _both(handlers["os.rename"], self._saves.renamed)
        hook.install(handlers)
        self._hook = hook

    def run_script(self) -> int:
        """The code that Python would exit with."""
        plan, run = self._place.plan, self._place.run
        self._journal.must("start", script=run.script)
        sys.path += plan.stand_ins
        error = run_as_main(run.script, plan.args, partial(self._compiler.compile, script=True))
        code = int(error is not None)
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            error = error if code else None
        return self._ended(code, error)

    def _compare_saved(self) -> None:
        """Compare what this port has saved with the original's files, where both train alike."""
        place, run = self._place, self._place.run
        if not run.world or place.rank or run.free:
            return
        original = next(one for one in place.plan.runs if one.name == run.against)
        ends = read_journal(journal_path(place.plan.state, run.against, 0)).of("end")
        names = [name for end in ends for name in end.get("saved", ())]
        with self._hook.unwatched():
            self._journal.tell("loaded", files=compare(names, original.folder, run.folder))

    def _ended(self, code: int, error: BaseException | None) -> int:
        if os.getpid() != self._main:  # a fork of the script's own has come to its end
            os._exit(code)
        self._lines.finish()
        if error is None:
            self._steps.finished()
            self._compare_saved()
            names = [] if self._place.run.world else self._saves.names()
            unreached = sorted(self._loops.unreached)
            self._journal.tell("end", code=code, saved=names, unreached=unreached)
            return code
        told = without_ours(error, (HERE, _HERE))
        shown = traceback.format_exception(*told)
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
            sys.excepthook(*told)  # may end this process
        return code


def _refuse(what: str, error: BaseException) -> NoReturn:
    """A torch that cannot be redirected: nothing could be compared."""
    raise error


def _end_threads(code: int) -> None:
    """Do what Python does at its end."""
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


def _number_gpus(torch: Any, rank: int, world: int) -> None:
    """Each rank has its own pretended GPU."""
    properties = torch.cuda.get_device_properties

    def own(*args: Any, **kwargs: Any) -> Any:
        found = properties(*args, **kwargs)
        found.uuid = f"verify-{rank}"
        return found

    torch.cuda.get_device_properties = own
    torch.cuda.device_count = lambda: max(1, world)
