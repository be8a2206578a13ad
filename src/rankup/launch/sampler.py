"""The sampler beside a run on this machine; under Slurm the job script starts one on each node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..monitor.lines import FOLDER, STOP

SWITCH = "RANKUP_MONITOR"  # 0: no run started from this shell is sampled
_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.monitor.collect.main import main; sys.exit(main())"
)
_PATIENCE = 5.0  # seconds that the last sample may take


def wanted(asked: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a run is to be sampled: unless the user said no, here or for the whole shell."""
    return asked and environment.get(SWITCH, "1") != "0"


@contextlib.contextmanager
def sampled(directory: Path, ranks: int, wish: bool) -> Iterator[None]:
    """Sample this machine into `<directory>/monitor` during the block.

    That nothing can be sampled costs the report, never the run.
    """
    if not wish:
        yield
        return
    process = _start(directory, ranks)
    try:
        yield
    finally:
        if process is not None:
            _stop(process)


def _start(directory: Path, ranks: int) -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-c", _START, str(directory), "--ranks", str(ranks)]
    command += ["--parent", str(os.getpid())]  # which may have ended before it looks itself
    try:
        (directory / FOLDER / STOP).unlink(missing_ok=True)
        # Of a session of its own: the terminal's Ctrl-C asks the ranks to save, and it goes on.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"warning: no sampler, so no GPU figures: {error}", file=sys.stderr)
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for ever
            process.wait(_PATIENCE)
