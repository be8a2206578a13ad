"""torchrun with the failures of its ranks kept as data instead of printed as a banner."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

from . import failure

PARENT = "RANKUP_PARENT"  # process id of whoever starts the next process
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run torchrun with this process's arguments; the exit code of the rank that failed first."""
    die_with_parent()
    log = Path(os.environ["RANKUP_RUN_DIR"]) / "log"
    failure.forget(log)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    _log_to(log / "torchrun.log")
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        codes = {rank: child.exitcode for rank, child in error.failures.items()}
        first = failure.first_cause(log, codes)
        if first.rank not in {one.rank for one in failure.read_all(log)}:  # killed, say
            with contextlib.suppress(OSError):
                failure.write(log, first)
        if first.exit_code != 128 + signal.SIGINT:
            print(f"\n{failure.report(first)}", file=sys.stderr, flush=True)
        return first.exit_code
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _log_to(path: Path) -> None:
    """torchrun's own remarks go to a file: what the user needs of them is said at the end."""
    handler = logging.FileHandler(path)
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
