"""End the daemons and jobs of a private Slurm, and remove its folder, once stdin is closed.

`python guard.py FOLDER` runs beside the tests. A kill -9 of pytest closes the pipe as well as a
normal end does, so there is one way to clean up and it is always taken.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Who kills while others start processes has to look again.
_ROUNDS = 20


def processes_of(folder: Path) -> list[psutil.Process]:
    """The daemons, job steps and job processes of the cluster in `folder`, but this process.

    They name the folder in their command line or environment (SLURM_CONF); what a job has started
    without either is found below its step.
    """
    found = {process.pid: process for process in _naming(str(folder))}
    for process in list(found.values()):
        with suppress(psutil.Error):
            found.update({child.pid: child for child in process.children(recursive=True)})
    return list(found.values())


def _naming(folder: str) -> Iterator[psutil.Process]:
    spared = {psutil.Process().pid, *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        with suppress(psutil.Error, OSError):  # gone, or not ours to look at
            told = [*process.cmdline(), *_environment(process)]
            if any(word.partition("=")[2].startswith(folder) for word in told):
                yield process


def variable(process: psutil.Process, name: str) -> str:
    """A variable of a process's environment, empty when it is not set."""
    values = [
        word.partition("=")[2] for word in _environment(process) if word.startswith(f"{name}=")
    ]
    return values[0] if values else ""


def _environment(process: psutil.Process) -> list[str]:
    # psutil stops at the first empty entry, and slurmstepd has some in front.
    return os.fsdecode(Path(f"/proc/{process.pid}/environ").read_bytes()).split("\0")


def end_all(folder: Path) -> None:
    """Kill every process of the cluster in `folder` and wait until none is left (bounded)."""
    for _ in range(_ROUNDS):
        left = processes_of(folder)
        if not left:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)


def main() -> None:
    folder = Path(sys.argv[1])
    sys.stdin.read()
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
