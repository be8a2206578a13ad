"""Contestants that each have a process of their own, and stand still except in their turn.

A loader makes batches ahead, also while another one is measured. So all processes of those whose
turn it is not are stopped (SIGSTOP), with their workers and threads.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common import answer_of

_ANSWER_SECONDS = 180
_LEAVE_SECONDS = 20
_FEEDS = Path(__file__).with_name("_loader_feeds.py")


class Turn(NamedTuple):
    """What a contestant did in a turn.

    Attributes:
        rate: samples/s.
        cpu: CPU seconds per sample, of all its processes.
    """

    rate: float
    cpu: float


class Feed:
    """One contestant of `_loader_feeds.FEEDS`, in a process group of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process lives
        self._process = subprocess.Popen(
            [sys.executable, "-u", _FEEDS, name, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **one_thread(), "TMPDIR": str(folder)},
            text=True,
            start_new_session=True,
        )

    def ready(self) -> None:
        """Wait until it has made its first batches, and stop it."""
        self._answer()
        self._signal(signal.SIGSTOP)

    def slice(self, seconds: float) -> Turn:
        """Work for about that time."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        turn = Turn(*map(float, self._answer().split()))
        self._signal(signal.SIGSTOP)
        return turn

    def leave(self) -> None:
        """Let it end by itself: mosaicml-streaming would leave files in /dev/shm for ever."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self) -> str:
        return answer_of(self._process, self._log, self.name, _ANSWER_SECONDS)


@contextlib.contextmanager
def feeds(names: Sequence[str], folder: Path) -> Iterator[list[Feed]]:
    """Contestants that are ready, for the time of the block."""
    made: list[Feed] = []
    try:
        made.extend(Feed(name, folder) for name in names)
        for one in made:
            one.ready()
        yield made
    finally:
        for one in made:
            one.leave()
        for one in made:
            one.close()


def measure(
    names: Sequence[str], folder: Path, rounds: int, seconds: float
) -> Mapping[str, list[Turn]]:
    """The turns of each contestant, one a round; in a new random order each time."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with feeds(names, folder) as all_:
        for _ in range(rounds):
            for one in random.sample(all_, len(all_)):
                turns[one.name].append(one.slice(seconds))
    return turns


def one_thread() -> dict[str, str]:
    """What keeps each worker to one thread, and from looking for a GPU."""
    return {
        **{"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        **{"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    }
