"""Processes that the tests' own fork server makes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from .pool import FORK_SERVER, end_with_tests


def test_ranks_and_their_fork_server_end_where_the_tests_are_killed() -> None:
    words = [sys.executable, "-c", "from tests.test_pool import _tests; _tests()"]
    with subprocess.Popen(
        words, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        started = [psutil.Process(int(word)) for word in tests.stdout.readline().split()]
        tests.kill()
    _, left = psutil.wait_procs(started, timeout=20)
    for process in left:
        process.kill()
    assert len(started) == 2
    assert not left


def _tests() -> None:
    """Start a rank, print its number and its server's, and hang, as the rank does."""
    FORK_SERVER.set_forkserver_preload([])  # torch takes seconds
    ours, theirs = FORK_SERVER.Pipe(duplex=False)
    FORK_SERVER.Process(target=_rank, args=(theirs,), daemon=True).start()
    print(*ours.recv(), flush=True)
    time.sleep(600)


def _rank(pipe: Connection) -> None:
    end_with_tests()
    pipe.send((os.getpid(), os.getppid()))
    time.sleep(600)
