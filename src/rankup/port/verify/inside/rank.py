"""One rank of one run: everything in place, then the user's script as `python SCRIPT ARGS…`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from functools import partial
from typing import NoReturn

from ....base.processes import die_with
from ....sandbox.inside import devices
from ....sandbox.inside.files import writers
from ....sandbox.inside.hooks import AfterImport, Hook
from ....sandbox.inside.journal import HERE, Journal
from ....sandbox.inside.main import exit_code, run_as_main
from ....sandbox.inside.network import Network
from ....sandbox.inside.training import without_ours
from ..protocol import FILE, Plan, Run, journal_path, read_journal
from .comparable import Clock, Comparable
from .data import Data, DataSets
from .draws import SEED, Draws, Progress, seed
from .files import Contents, Figures, Lines, Writing
from .training import Loops, Steps

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run_rank(plan: Plan, run: Run, rank: int, known: DataSets, stderr: int) -> NoReturn:
    """Be that rank, and end with it."""
    code = 70
    try:
        die_with(os.getppid())
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((nothing, 0), (nothing, 1), (stderr, 2)):
            os.dup2(old, new)
        os.chdir(run.folder)
        code = _Rank(plan, run, rank, known).run_script()
        _end_threads(code)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


class _Rank:
    """The rank with all hooks."""

    def __init__(self, plan: Plan, run: Run, rank: int, known: DataSets) -> None:
        import torch
        import torch.utils.data as data

        self._plan, self._run, self._rank, self._main = plan, run, rank, os.getpid()
        self._journal = Journal(journal_path(plan.state, run.name, rank), run.script)
        progress = Progress(self._journal)
        files = Writing(run.folder, plan.temporary, plan.state, self._journal)
        self._hook = Hook()
        comparable = Comparable(progress, free=run.free)
        gpus = max(1, run.world) if run.gpu else 0
        redirected = devices.redirections(comparable, 1, gpus=gpus, alone=False)
        needed = [change for changes in redirected.values() for change in changes]
        figures = {"matplotlib.figure": [Figures(run.folder, self._journal).watch]}
        changes = {**redirected, **writers(files, self._hook), **figures}
        AfterImport(changes, self._journal, needed, _refuse).install()
        torch.save = torch.serialization.save
        seed((SEED, rank))  # as in life: a script that sets none has others on each rank
        comparable.install(torch)
        if not run.free:
            Draws(progress).install(torch)
        self._data = Data(run, known, progress)
        self._data.install(data)
        self._steps = Steps(run, plan.state, progress)
        self._steps.install(torch)
        self._lines = Lines(progress, run.folder)
        self._lines.install()
        self._loops = Loops(run.folder, progress)
        self._loops.install()
        began = os.path.getmtime(os.path.join(plan.state, FILE))
        Clock(run.folder, began, rank if run.free else 0).install()
        net = Network(self._journal, block=True, main=os.getppid(), used=lambda: None)
        self._hook.install({**files.handlers(), **net.handlers()})

    def run_script(self) -> int:
        """Run the script; return the code that Python would exit with."""
        self._journal.must("start", script=self._run.script)
        sys.path += self._plan.stand_ins
        compiled = partial(self._loops.compile, script=True)
        error = run_as_main(self._run.script, self._plan.args, compiled)
        code = exit_code(error)
        if os.getpid() != self._main:  # a fork of the script's own has come to its end
            os._exit(code)
        self._lines.finish()
        if error is not None and code:
            self._failed(code, error)
            return code
        self._data.finished()
        self._steps.finished()
        if not self._run.free:  # both train alike
            self._read_written()
        self._journal.tell("end", code=code, unreached=sorted(self._loops.unreached))
        return code

    def _read_written(self) -> None:
        """Record what this rank has written, and compare it with what the original has."""
        state, run = self._plan.state, self._run
        with self._hook.unwatched():
            own = read_journal(journal_path(state, run.name, self._rank))
            contents = Contents(self._journal, run.folder, run.world if run.alike else 1)
            if not run.world:
                contents.record(own)
                return
            original = next(one for one in self._plan.runs if one.name == run.against)
            theirs = read_journal(journal_path(state, original.name, 0))
            contents.compare(own, theirs, original.folder)

    def _failed(self, code: int, error: BaseException) -> None:
        told = without_ours(error, (HERE, _HERE))
        shown = "".join(traceback.format_exception(*told))[-4000:]
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        self._journal.tell("end", code=code, error=shown, missing=missing)
        if not isinstance(error, SystemExit):
            sys.excepthook(*told)  # may end this process


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
