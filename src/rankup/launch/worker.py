"""One rank: runs the recipe or the script, and writes down how it failed."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from ..site import rundir
from . import failure
from .die_with_parent import die_with_parent


def main() -> None:
    """Do what the run directory's `job.json` says."""
    die_with_parent()
    rank = int(os.environ["RANK"])
    directory = Path(os.environ["RANKUP_RUN_DIR"])
    job = rundir.read(directory)
    try:
        if job.kind == "recipe":
            _recipe(job.target, job.args, directory)
        else:
            _script(job.target, job.args)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        end = failure.of_exception(error, rank, job.target if job.kind == "script" else "")
        failure.write(directory / "log", end)
        from ..runtime.world import leave

        leave(end.exit_code)


def _recipe(name: str, args: list[str], directory: Path) -> None:
    from ..recipes import find

    find(name).run(args, directory, resume=os.environ.get("RANKUP_RESUME") == "1")


def _script(path: str, args: list[str]) -> None:
    """As `python path args…` would, in this process."""
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")
