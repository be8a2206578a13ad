"""One rank: runs the recipe or the script, and writes down how it failed."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

from . import failure
from .die_with_parent import die_with_parent


def main() -> None:
    die_with_parent(signal.SIGTERM)
    kind, target, *args = sys.argv[1:]
    rank = int(os.environ["RANK"])
    directory = Path(os.environ["RANKUP_RUN_DIR"])
    try:
        if kind == "recipe":
            _recipe(target, args, directory)
        else:
            _script(target, args)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            raise
        end = failure.of_exception(error, rank, target if kind == "script" else "")
        failure.write(directory / "log", end)
        from ..runtime.world import leave

        leave(end.exit_code)


def _recipe(name: str, args: list[str], directory: Path) -> None:
    from ..recipes import find

    find(name).run(args, directory, resume=os.environ.get("RANKUP_RESUME") == "1")


def _script(path: str, args: list[str]) -> None:
    """As `python path args…` would, in this process."""
    sys.argv = [path, *args]
    sys.path[0] = str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
