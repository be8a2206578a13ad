"""The sampler's entry: `rankup monitor`, or without the command's own imports

python -c 'import sys; from rankup.monitor.collect.main import main; sys.exit(main())' RUN_DIR
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def main(words: Sequence[str] | None = None) -> int:
    """Sample as the words of a command line say; return the exit code."""
    ignore_warnings()
    import argparse
    from pathlib import Path

    from ...base.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError
    from ...base.text import say

    parser = argparse.ArgumentParser(prog="rankup monitor")
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--every", type=float)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--attempt")
    parser.add_argument("--parent", type=int)
    parser.add_argument("--whole-node", action="store_true")
    try:
        return start(**vars(parser.parse_args(words)))
    except UserError as error:
        say(str(error))
        return EXIT_BAD_INPUT
    except OSError as error:  # the run directory cannot be written
        say(f"what this node does is not recorded: {error}")
        return EXIT_FAILED


def ignore_warnings() -> None:
    """Ignore the signals that are for the training, before anything is imported.

    The warning of the time limit would end a process that has just been started.
    """
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def start(run: Path, **options: Any) -> int:
    """Sample into `run` until the job ends; return the exit code.

    Args:
        options: of `sampler.Options`; None: as they are without.

    Raises:
        UserError: an option is no good.
        OSError: the run directory cannot be written.
    """
    import os

    from .sampler import Options, sample_run

    said = {name: value for name, value in options.items() if value is not None}
    return sample_run(Options(run, **said), os.environ)


if __name__ == "__main__":
    sys.exit(main())
