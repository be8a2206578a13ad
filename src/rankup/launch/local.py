"""A run on this machine: torchrun in a session of its own, stopped together, failing clearly."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from ..site.gpus import usable_cores
from ..site.rundir import Job
from . import split
from .die_with_parent import PARENT

_START = (
    "import sys; sys.path = [p for p in sys.path if p]; "
    "from rankup.launch.{} import main; sys.exit(main())"
)
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def start(
    job: Job, directory: Path, nproc: int, resume: bool, extra: Mapping[str, str] | None = None
) -> int:
    """Run `job` on `nproc` ranks of this machine and wait for it.

    The first Ctrl-C (or SIGTERM) is handed to the ranks, who save and stop; the second ends them.

    Returns:
        The job's exit code; 128 + the signal's number for a run that was asked to stop.
    """
    environment = {
        **os.environ,
        # torchrun would set 1, which leaves most cores idle.
        "OMP_NUM_THREADS": _threads(nproc),
        "RANKUP_RUN_DIR": str(directory),
        PARENT: str(os.getpid()),
        "RANKUP_RESUME": "1" if resume else "0",
        **(extra or {}),
    }
    command = [*_launcher(job, nproc), job.target, *job.args]
    signals = _Signals()
    before = {
        number: signal.signal(number, signals.handle)
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup means it
    }
    process = None
    try:
        # A session of its own keeps the terminal's Ctrl-C from reaching the ranks unordered.
        process = subprocess.Popen(command, env=environment, cwd=job.cwd, start_new_session=True)
        signals.watch(process.pid)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process is not None and process.poll() is None:
            _kill_tree(process.pid)
    if signals.first is not None and code <= 0:
        return 128 + signals.first
    return 128 - code if code < 0 else code


def _launcher(job: Job, nproc: int) -> list[str]:
    """What starts the ranks of `job`, up to its target."""
    # All programs start without the current folder on their path, as a script would. Behind `--`
    # torchrun takes no word for its own.
    if split.by_crew(job):
        return [sys.executable, "-c", _START.format("crew"), "--nproc", str(nproc), "--"]
    return [
        *(sys.executable, "-c", _START.format("agent")),
        *("--standalone", "--nproc-per-node", str(nproc)),
        *("--no-python", "--", sys.executable, "-u", "-c", _START.format("worker")),
    ]


def shown(job: Job, nproc: int) -> str:
    """The command that does the same without rankup; a crew is a part of it."""
    if split.by_crew(job):
        return shlex.join(["python", *_launcher(job, nproc)[1:], job.target, *job.args])
    rank = "rankup-rank" if job.kind == "recipe" else "python"
    words = ["torchrun", "--standalone", f"--nproc-per-node={nproc}", "--no-python", "--", rank]
    return shlex.join([*words, job.target, *job.args])


def _threads(nproc: int) -> str:
    """Threads of a rank: what the user has set, else the cores shared out."""
    given = os.environ.get("OMP_NUM_THREADS")
    if given is not None and given.isdigit() and int(given) > 0:
        return given
    if given is not None:
        print(f"warning: OMP_NUM_THREADS={given!r} is not a number, ignored", file=sys.stderr)
    return str(max(1, usable_cores() // nproc))


class _Signals:
    """What to do when this process is asked to stop."""

    def __init__(self) -> None:
        self._agent: int | None = None
        self.first: int | None = None

    def watch(self, agent: int) -> None:
        """The process there is to stop, which may have been asked for before it was there."""
        self._agent = agent
        if self.first is not None:
            _kill_tree(agent)

    def handle(self, number: int, frame: FrameType | None) -> None:
        again, self.first = self.first is not None, self.first or number
        if self._agent is None:
            return
        ranks = _ranks(self._agent)
        if again or not ranks:  # without ranks there is nothing that could save
            _kill_tree(self._agent)
            return
        print("\nasking the ranks to stop (once more ends them now)", file=sys.stderr, flush=True)
        for pid in ranks:
            _send(pid, number)


def _ranks(agent: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(agent).children()]
    except psutil.NoSuchProcess:
        return []


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_tree(agent: int) -> None:
    """Kill torchrun and all that it started; torchrun gives each rank a session of its own."""
    import psutil

    try:
        root = psutil.Process(agent)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        _send(process.pid, signal.SIGKILL)
