"""One rank: runs the recipe or the script, and writes down how it failed."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from .. import recipes
from ..base.errors import UserError
from ..parallel.lowcomm.gossip.alive import WORKER
from ..site.gpus import cores_near
from . import failure
from .agent import die_with_parent


def main() -> None:
    """Run `TARGET ARGS…`, a recipe's name or a script's path, as the rank torchrun says, or as the
    worker that a crew has numbered.

    Also the command `rankup-rank`, which a job script starts where rankup is installed.
    """
    number = os.environ.get("RANK", os.environ.get(WORKER))
    if len(sys.argv) < 2 or number is None:
        sys.exit("rankup-rank TARGET [ARGS...] is started by torchrun: use `rankup run`")
    # A worker takes SIGTERM as the wish to end the run, of which its crew is only a part.
    die_with_parent(signal.SIGKILL if WORKER in os.environ else signal.SIGTERM)
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
            resume = os.environ.get("RANKUP_RESUME") == "1"
            recipes.find(target).run(args, Path(given), resume=resume)
        if WORKER in os.environ:
            from ..runtime.world import leave

            leave(0)  # threads may wait for workers that never came
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        script = f"{target.replace('.', '/')}.py" if module else target
        end = failure.of_exception(error, rank, "" if recipe else script)
        if given is not None:
            failure.write(Path(given) / "log", end)
        else:
            print(failure.report(end), file=sys.stderr)
        from ..runtime.world import leave

        leave(end.exit_code)


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
