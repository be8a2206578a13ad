"""One rank: runs the recipe or the script, and writes down how it failed."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from .. import recipes
from ..base.errors import UserError
from . import failure
from .die_with_parent import die_with_parent


def main() -> None:
    """Run `TARGET ARGS…`, a recipe's name or a script's path, as the rank torchrun says.

    Also the command `rankup-rank`, which a job script starts where rankup is installed.
    """
    if len(sys.argv) < 2 or "RANK" not in os.environ:
        sys.exit("rankup-rank TARGET [ARGS...] is started by torchrun: use `rankup run`")
    die_with_parent()
    rank, (target, *args) = int(os.environ["RANK"]), sys.argv[1:]
    recipe = target in recipes.RECIPES
    given = os.environ.get("RANKUP_RUN_DIR")
    try:
        if not recipe:
            _script(target, args)
        elif given is None:
            raise UserError("a recipe needs RANKUP_RUN_DIR, its run directory: use `rankup run`")
        else:
            resume = os.environ.get("RANKUP_RESUME") == "1"
            recipes.find(target).run(args, Path(given), resume=resume)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        end = failure.of_exception(error, rank, "" if recipe else target)
        if given is not None:
            failure.write(Path(given) / "log", end)
        else:
            print(failure.report(end), file=sys.stderr)
        from ..runtime.world import leave

        leave(end.exit_code)


def _script(path: str, args: list[str]) -> None:
    """As `python path args…` would, in this process."""
    if Path(sys.argv[0]).name == "rankup-rank" and sys.path:
        del sys.path[0]  # the folder that rankup-rank lies in is not the script's
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
