"""The processes of a run on a node: torchrun, whose failures stay data, and each of its ranks."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import runpy
import signal
import sys
from dataclasses import replace
from pathlib import Path

from .. import recipes
from ..base.errors import UserError
from ..base.text import say
from ..site.gpus import cores_near, visible_gpus
from . import failure

AGENT = "--agent"  # the first word of a process that starts ranks
PARENT = "RANKUP_PARENT"  # process id of whoever starts the next process
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# Parameters of glibc's mallopt (malloc.h), and the variables by which a user sets the same.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_OF_MALLOC = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def main() -> None:
    """Run `TARGET ARGS…`, a recipe's name or a script's path, as the rank that torchrun says;
    with `--agent` in front, torchrun with the words that follow.

    Also the command `rankup-rank`, which a job script starts where rankup is installed.
    """
    if sys.argv[1:2] == [AGENT]:
        sys.exit(_agent(sys.argv[2:]))
    number = os.environ.get("RANK")
    if len(sys.argv) < 2 or number is None:
        sys.exit("rankup-rank [--agent] TARGET [ARGS...] is started by jobs: use `rankup run`")
    die_with_parent()
    _bind()
    module = sys.argv[1] == "-m" and len(sys.argv) > 2
    rank, (target, *args) = int(number), sys.argv[1 + module :]
    recipe = not module and target in recipes.RECIPES
    given = os.environ.get("RANKUP_RUN_DIR")
    try:
        if module:
            _module(target, args)
        elif not recipe:
            _script(target, args)
        elif given is None:
            raise UserError("a recipe needs RANKUP_RUN_DIR, its run directory: use `rankup run`")
        else:
            keep_memory()
            resume = os.environ.get("RANKUP_RESUME") == "1"
            recipes.find(target).run(args, Path(given), resume=resume)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        script = f"{target.replace('.', '/')}.py" if module else target
        end = failure.of_exception(error, rank, "" if recipe else script)
        if given is None or not _noted(Path(given) / "log", end):
            say(failure.report(end), "")
        if "torch" in sys.modules:  # else there is nobody to wait for at the end
            from ..runtime.world import leave

            leave(end.exit_code)
        sys.exit(end.exit_code)


def _noted(log: Path, end: failure.Failure) -> bool:
    """Leave a failure for the agent; False where there is no room for it, or no folder."""
    try:
        failure.write(log, end)
    except OSError:
        return False
    return True


def _bind() -> None:
    """Keep this rank, and the data workers that it starts, on the cores next to its GPU.

    A GPU reaches the memory of another NUMA node at a fraction of the speed. A rank that has the
    node to itself keeps all cores, and so do all ranks with `RANKUP_NUMA=0`.
    """
    local, size = os.environ.get("LOCAL_RANK"), os.environ.get("LOCAL_WORLD_SIZE", "1")
    if local is None or size == "1" or os.environ.get("RANKUP_NUMA") == "0":
        return
    if own := cores_near(int(local), os.environ) & os.sched_getaffinity(0):
        os.sched_setaffinity(0, own)


def keep_memory() -> None:
    """Let this process reuse the memory that it frees, where it computes on the CPU (glibc; else
    nothing).

    glibc gives large blocks back to the kernel as they are freed, and every gradient of every step
    would be made of new pages, which cost more than the optimizer. The user's own settings of
    malloc win. For recipes alone: a script of the user's may count on freed memory going back.
    """
    chosen = any(name in os.environ for name in _OF_MALLOC)
    if chosen or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and visible_gpus(os.environ) == 0:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def _script(path: str, args: list[str]) -> None:
    """As `python path args…` would, in this process."""
    if Path(sys.argv[0]).name == "rankup-rank" and sys.path:
        del sys.path[0]  # the folder that rankup-rank lies in is not the script's
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _module(name: str, args: list[str]) -> None:
    """As `python -m name args…` would, in this process."""
    if Path(sys.argv[0]).name == "rankup-rank" and sys.path:
        del sys.path[0]
    sys.argv = [name, *args]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _agent(words: list[str]) -> int:
    """Run torchrun; the exit code of the rank that failed first.

    What a rank of this node cannot write down itself, that it was killed, is written down here.
    """
    here = PARENT in os.environ  # else in a job, whose script says the cause at its end
    die_with_parent()
    log = Path(os.environ["RANKUP_RUN_DIR"]) / "log"
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    _log_to(log / "torchrun.log")
    _adopt_orphans()
    try:
        run(parse_args(words))
    except ChildFailedError as error:
        _kill_orphans()
        codes = {rank: child.exitcode for rank, child in error.failures.items()}
        notes = failure.read_all(log)
        first = failure.first_cause(notes, failure.of_codes(codes, notes))
        assert first is not None  # a rank that failed is noted, or it is silent
        if first.rank not in {note.rank for note in notes}:
            # So ends, too, a rank whose job ends.
            follows = not here and codes.get(first.rank) == -signal.SIGTERM
            with contextlib.suppress(OSError):
                failure.write(log, replace(first, consequence=follows))
        if here and first.exit_code != 128 + signal.SIGINT:
            say(f"\n{failure.report(first)}", "")
        return first.exit_code
    except SignalException as error:
        _kill_orphans()
        return 128 + int(error.sigval)
    return 0


def _adopt_orphans() -> None:
    """Become the parent of what ranks leave behind, such as data workers (Linux; else nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_orphans() -> None:
    """Kill what ranks have left, where one has failed: a killed one ends nothing."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def _log_to(path: Path) -> None:
    """torchrun's own remarks go to a file: what the user needs of them is said at the end."""
    try:
        handler = logging.FileHandler(path)
    except OSError:  # a full disk ends no run; they are printed
        return
    logging.raiseExceptions = False  # nor are there tracebacks of one that fills up later
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in (
        "torch.distributed.elastic",
        "torch.distributed.run",
        "torch.distributed.launcher",
    ):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel to send this process a signal when its parent ends (Linux; else nothing).

    A parent that ended before is noticed by its number.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != int(os.environ.get(PARENT, os.getppid())):
            sys.exit(128 + number)
    os.environ[PARENT] = str(os.getpid())
