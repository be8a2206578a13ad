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
from functools import wraps
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from ....sandbox.inside import accelerator
from ....sandbox.inside import devices as gpu
from ....sandbox.inside.devices import Devices
from ....sandbox.inside.files import writers
from ....sandbox.inside.hooks import AfterImport, Hook
from ....sandbox.inside.journal import Journal
from ..protocol import FILE, Plan, Run, Try, journal_path
from .comparable import Clock, Comparable
from .data import Data, DataSets
from .draws import SEED, Draws, Progress, seed
from .files import Files, Lines
from .saves import Saves
from .training import Compiler, Loops, Steps

_PR_SET_PDEATHSIG = 1
_LARGEST_FILE = 8 << 30
FINISHED = b"F"


@dataclass(frozen=True)
class Pipes:
    """Ends that this rank has.

    Attributes:
        stderr: for what goes there.
        status: one byte once the script has ended.
        order: the fork server's questions to the original, a folder per line; -1: none will come.
    """

    stderr: int
    status: int
    order: int


@dataclass(frozen=True)
class _Place:
    plan: Plan
    run: Run
    tried: Try
    rank: int
    known: DataSets


def run_rank(
    plan: Plan, run: Run, tried: Try, rank: int, known: DataSets, pipes: Pipes
) -> NoReturn:
    """Be that rank, and end with it."""
    code = 70
    try:
        _set_up_process(pipes)
        os.chdir(run.cwd)
        watched = _Watched(_Place(plan, run, tried, rank, known))
        code = watched.run_script()
        os.write(pipes.status, FINISHED if watched.finished else b"E")
        _end_threads(code)
        if pipes.order >= 0 and watched.finished:
            watched.answer(pipes.order)
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _set_up_process(pipes: Pipes) -> None:
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(pipes.stderr, 2)
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
        self.finished = False
        self._journal = Journal(journal_path(plan.state, run.name, rank), run.script)
        progress = Progress(self._journal)
        self._redirect(torch, Devices(self._journal))
        seed((SEED, rank))  # as in life: a script that sets none has others on each rank
        Comparable(progress, free=run.free).install(torch)
        if not run.free:
            Draws(progress).install(torch)
        Data(run, place.tried, place.known, progress).install(data)
        self._steps = Steps(run, rank, plan.state, progress)
        self._steps.install(torch)
        self._saves = Saves(run.folder, self._journal)
        if not run.world:
            self._saves.install(torch)
        files = Files(run.folder, plan.temporary, plan.state, self._journal)
        hook = Hook()
        AfterImport(writers(files, hook), self._journal, (), lambda what, error: None).install()
        torch.save = torch.serialization.save
        self._lines = Lines(progress)
        self._lines.install()
        self._loops = Loops(progress)
        self._compiler = Compiler(run.folder, self._loops)
        self._compiler.install()
        began = os.path.getmtime(os.path.join(plan.state, FILE))
        Clock(run.folder, began, rank if run.free else 0).install()
        handlers = files.handlers()
        if not run.world:
            handlers["os.rename"] = _both(handlers["os.rename"], self._saves.renamed)
        hook.install(handlers)
        self._hook = hook

    def _redirect(self, torch: Any, devices: Devices) -> None:
        place = self._place
        accelerator.stand_in(torch, devices, place.tried.gpu)
        if place.tried.gpu:
            _number_gpus(torch, place.rank, place.run.world)
        for change in gpu.changes(devices):
            change(torch)
        gpu.limit_threads(torch, 1)
        gpu.redirect(torch, devices)
        gpu.redirect_parallel(torch.nn.parallel.distributed)
        gpu.redirect_data_parallel(sys.modules["torch.nn.parallel.data_parallel"])
        _redirect_groups(torch.distributed.distributed_c10d)
        _redirect_mesh(torch.distributed.device_mesh, devices)

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
            exec(self._compiler.compile(source, run.script, script=True), vars(module))  # noqa: S102
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
            unreached = sorted(self._loops.unreached)
            self._journal.tell("end", code=code, saved=names, unreached=unreached)
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


def _redirect_groups(module: Any) -> None:
    """`torch.distributed.distributed_c10d`: gloo, whatever the script asks for."""
    init, new = module.init_process_group, module.new_group

    @wraps(init)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        return init("gloo", *args, **kwargs)

    @wraps(new)
    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        timeout = {"timeout": kwargs["timeout"]} if "timeout" in kwargs else {}
        return new(ranks, backend="gloo", **timeout)

    import torch.distributed as dist

    module.init_process_group = dist.init_process_group = init_process_group
    module.new_group = dist.new_group = new_group


def _number_gpus(torch: Any, rank: int, world: int) -> None:
    """Each rank has its own pretended GPU."""
    properties = torch.cuda.get_device_properties

    def own(*args: Any, **kwargs: Any) -> Any:
        found = properties(*args, **kwargs)
        found.uuid = f"verify-{rank}"
        return found

    torch.cuda.get_device_properties = own
    torch.cuda.device_count = lambda: max(1, world)


def _redirect_mesh(module: Any, devices: Devices) -> None:
    """`torch.distributed.device_mesh`."""
    original = module.init_device_mesh

    @wraps(original)
    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return original(devices.mapped(device_type), *args, **kwargs)

    import torch.distributed as dist

    module.init_device_mesh = dist.init_device_mesh = init_device_mesh
