"""The worker processes of one node, each by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from ..base.processes import starting
from ..parallel.lowcomm.gossip.names import STORE, WORKER, WORKERS
from ..site.gpus import visible_gpus

# A process that finds these would take itself for a rank among many, and wait for them.
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS"),
)
_PAUSE = 0.05


class Workers:
    """Starts workers `first` … `first + number - 1` of `total`.

    Args:
        words: TARGET and its arguments.
        address: of the store.

    Raises:
        ValueError: the node has GPUs, and fewer than workers.

    Attributes:
        codes: exit codes of those that have ended, negative for a signal.
    """

    def __init__(
        self, words: Sequence[str], first: int, number: int, total: int, address: str
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in _OF_RANKS}
        environment |= {WORKERS: str(total), STORE: address}
        gpus = own_gpus(os.environ, number)
        self.codes: dict[int, int] = {}
        self._processes = {
            first + local: subprocess.Popen(
                [sys.executable, "-u", "-c", starting("rankup.launch.worker"), *words],
                env={**environment, **gpus[local], WORKER: str(first + local)},
            )
            for local in range(number)
        }

    @property
    def running(self) -> list[int]:
        """Numbers of those that have not ended, as of the last `reap`."""
        return [worker for worker in self._processes if worker not in self.codes]

    def reap(self) -> dict[int, int]:
        """Exit codes of those that have ended since the last call."""
        found = {}
        for worker in self.running:
            code = self._processes[worker].poll()
            if code is not None:
                found[worker] = code
        self.codes |= found
        return found

    def wait(self, seconds: float) -> None:
        """Until all have ended, at most so long; `reap` tells how."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in self._left()):
            time.sleep(_PAUSE)

    def send(self, number: int) -> None:
        """Send a signal to all that run."""
        for process in self._left():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def kill(self) -> None:
        """End all that run, now."""
        for process in self._left():
            process.kill()
        for process in self._left():
            process.wait()

    def _left(self) -> list[subprocess.Popen[bytes]]:
        return [self._processes[worker] for worker in self.running]


def own_gpus(environment: Mapping[str, str], number: int) -> list[dict[str, str]]:
    """For each worker of a node the variables that show it a GPU of its own; without GPUs none.

    Each worker is a run of one rank, which takes the first GPU that it sees.

    Raises:
        ValueError: there are GPUs, and fewer than `number`.
    """
    present = visible_gpus(environment)
    if present == 0:
        return [{} for _ in range(number)]
    if present < number:
        raise ValueError(f"{number} workers on a node with {present} GPUs; start one per GPU")
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    names = listed.split(",") if listed else [str(index) for index in range(present)]
    return [{"CUDA_VISIBLE_DEVICES": names[index].strip()} for index in range(number)]
