"""The pool of worker processes: what ends it, and what is said then."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import psutil
import pytest

from rankup.data.pool import WorkerFailed, spread


def test_results_come_from_several_processes() -> None:
    found = list(spread(lambda part: (part * part, os.getpid()), range(100), 2))
    assert sorted(value for value, _ in found) == [part * part for part in range(100)]
    assert os.getpid() not in {pid for _, pid in found}
    assert list(spread(lambda part: part, [], 2)) == []


def test_a_worker_never_ends_what_its_parent_has_forgotten() -> None:
    """A process group ends by joining its threads: a worker, which has none, waited for ever."""

    class Group:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            ended.append(os.getpid())

    def work(part: int) -> list[int]:
        gc.collect()
        return list(ended)

    ended: list[int] = []
    gc.disable()
    try:
        Group()
        assert list(spread(work, range(4), 2)) == [[]] * 4
    finally:
        gc.enable()
    gc.collect()
    assert ended == [os.getpid()]


def test_a_killed_worker_is_named() -> None:
    def work(part: int) -> int:
        if part == 3:
            os.kill(os.getpid(), 9)
        return part

    with pytest.raises(WorkerFailed, match=r"process \d+\) was ended by SIGKILL: out of memory"):
        list(spread(work, range(10), 2))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FileNotFoundError(2, "No such file", "x"), FileNotFoundError),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
        (MemoryError(), WorkerFailed),
    ],
)
def test_what_a_worker_raises_is_raised_as_what_it_is(
    error: Exception, raised: type[Exception]
) -> None:
    """Neither a bug nor too little memory is a container that is damaged."""

    def work(part: int) -> int:
        if part == 30:
            raise error
        return part

    with pytest.raises(raised):
        list(spread(work, range(20, 40), 2))


def test_a_reason_to_stop_ends_the_workers() -> None:
    class Stop(Exception):  # noqa: N818
        pass

    calls = []

    def watch() -> None:
        calls.append(1)
        if len(calls) > 1:
            raise Stop

    before = set(psutil.Process().children())
    with pytest.raises(Stop):
        list(spread(lambda part: time.sleep(1000), range(10), 2, watch))
    assert set(psutil.Process().children()) <= before


def test_a_parent_that_is_killed_leaves_no_process() -> None:
    program = (
        "import os, time; from rankup.data.pool import spread\n"
        "def work(part):\n"
        "    time.sleep(0.1)\n"
        "    return os.getpid()\n"
        "for pid in spread(work, range(10_000), 2):\n"
        "    print(pid, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        workers = {int(process.stdout.readline()) for _ in range(8)}
        process.kill()
    assert len(workers) == 2
    end = time.monotonic() + 60
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_killed_within_large_results_are_not_waited_for() -> None:
    """A part of a result lay in the pipe, and the pool waited for its rest."""
    code = (
        "from rankup.data.pool import spread\n"
        "for _ in range(8):\n"
        "    next(spread(lambda part: bytes(1 << 25), range(100), 4))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=100, check=False)
    assert done.returncode == 0
