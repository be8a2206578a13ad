"""The rank pool: a few processes, started once, that play the ranks of one test after another.

Importing torch costs more than most tests: one process does it, the ranks are forked from it, and
they stay. Every call gets a fresh gloo group and leaves the process as it found it.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

START_SIZE = 4
MAX_SIZE = 8
SPAWN_TIMEOUT = 120.0
# After the first failure the other ranks may hang in a collective, or be about to fail as well.
GRACE = 2.0

# The one fork server of a process of tests: it imports what takes seconds, and ends with the tests
# when all that it has forked does, see `end_with_tests`.
FORK_SERVER = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["torch.distributed.pipelining", "rankup.train.loop"])
_RELEASE = b""
_LAUNCH_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_MANY_THREADS = 24  # more than that at once are let go of; a group has three
_LruCache = type(lru_cache(lambda: None))


class RankFailed(AssertionError):  # noqa: N818 - what happened, in a test's words
    """At least one rank raised or died.

    Attributes:
        tracebacks: failing rank -> its traceback as text, the rank that failed first in front.
    """

    def __init__(self, name: str, world_size: int, tracebacks: dict[int, str]) -> None:
        self.tracebacks = tracebacks
        parts = [f"{name}: ranks {list(tracebacks)} of {world_size} failed"]
        parts += [f"--- rank {rank}\n{text}" for rank, text in tracebacks.items()]
        super().__init__("\n".join(parts))


class RankTimeout(AssertionError):  # noqa: N818
    """Some ranks had not answered when the call's time was up; their stacks are on stderr."""


@dataclass(frozen=True)
class _Call:
    """What one rank has to do."""

    rank: int
    world_size: int
    port: int
    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class _Answer:
    """What came of it; `failure` is a traceback, empty when the call returned."""

    result: Any
    failure: str
    # CLOCK_MONOTONIC is one clock for all processes of a machine: it tells who failed first.
    time: float


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    # Where it writes its stacks when it dies of a fault of the machine's; without a name, so that
    # nothing is left of it where the tests are killed.
    crash: IO[str]


class RankPool:
    """Up to `MAX_SIZE` processes that run functions as the ranks of a process group.

    Nothing is started before the first `run`.
    """

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def run(
        self, world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 150.0
    ) -> list[Any]:
        """Call `function(world, *args)` on every rank of a fresh group; the results by rank.

        `world` is what `rankup.runtime.world.setup()` returned. With `world_size` 1 it is a group
        of one without launch variables. Function, arguments and results must be picklable, the
        function by its module's name.

        Raises:
            RankFailed: a rank raised or died; the pool is started anew for the next call.
            RankTimeout: `timeout` seconds were not enough; the pool is started anew.
        """
        if not 1 <= world_size <= MAX_SIZE:
            raise ValueError(f"the rank pool plays 1 to {MAX_SIZE} ranks, not {world_size}")
        port = free_port() if world_size > 1 else 0
        calls = [
            pickle.dumps(_Call(rank, world_size, port, function, args))
            for rank in range(world_size)
        ]
        try:
            self._grow(max(START_SIZE, world_size))
            workers = self._workers[:world_size]
            for worker, call in zip(workers, calls, strict=True):
                worker.connection.send_bytes(call)
            answers = _gather(workers, function.__qualname__, timeout)
            for worker in workers:
                worker.connection.send_bytes(_RELEASE)
        except (
            BaseException
        ):  # a time-out of pytest, Ctrl-C: ranks in mid-call cannot be used again
            self.close()
            raise
        return [answers[rank].result for rank in range(world_size)]

    def close(self) -> None:
        """Kill every process of the pool and wait for its end; the next `run` starts anew."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
            worker.crash.close()
        self._workers = []

    def _grow(self, size: int) -> None:
        fresh = []
        while len(self._workers) < size:
            ours, theirs = FORK_SERVER.Pipe()
            crash = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as it
            place = f"/proc/{os.getpid()}/fd/{crash.fileno()}"
            process = FORK_SERVER.Process(target=_serve, args=(theirs, place), daemon=True)
            process.start()
            theirs.close()  # or the end of the process would not show as end of file
            self._workers.append(_Worker(process, ours, crash))
            fresh.append(self._workers[-1])
        for worker in fresh:
            if not worker.connection.poll(SPAWN_TIMEOUT):
                raise RankTimeout(f"a rank process was not ready after {SPAWN_TIMEOUT:.0f} s")
            worker.connection.recv_bytes()


def _gather(workers: list[_Worker], name: str, timeout: float) -> dict[int, _Answer]:
    ranks = {worker.connection: rank for rank, worker in enumerate(workers)}
    answers: dict[int, _Answer] = {}
    deadline = time.monotonic() + timeout
    while len(answers) < len(workers):
        pending = [connection for connection, rank in ranks.items() if rank not in answers]
        ready = wait(pending, max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            rank = ranks[connection]  # type: ignore[index]
            answers[rank] = _receive(workers[rank])
            if answers[rank].failure:
                deadline = min(deadline, time.monotonic() + GRACE)
    failed = sorted((answer.time, rank) for rank, answer in answers.items() if answer.failure)
    if failed:
        raise RankFailed(name, len(workers), {rank: answers[rank].failure for _, rank in failed})
    if len(answers) < len(workers):
        late = [rank for rank in range(len(workers)) if rank not in answers]
        _dump_stacks([workers[rank] for rank in late])
        raise RankTimeout(
            f"{name}: ranks {late} of {len(workers)} had not answered after {timeout:g} s"
        )
    return answers


def _receive(worker: _Worker) -> _Answer:
    try:
        answer = pickle.loads(worker.connection.recv_bytes())
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        stacks = worker.crash.read()
        text = f"the process ended with exit code {code}\n{stacks}"
        return _Answer(None, text, time.monotonic())
    assert isinstance(answer, _Answer)
    return answer


def _dump_stacks(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.process.pid is not None and worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGUSR2)
    time.sleep(0.2)


def free_port() -> int:
    """A port between 20000 and 30000 that nobody listens on now, on any address."""
    # Below the range from which the kernel numbers outgoing connections: gloo opens many of those
    # between the moment this port is found free and the moment rank 0 listens on it.
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))  # as rank 0 will
            except OSError:
                continue
            return port


def _wait_for(port: int) -> None:
    """Wait until rank 0 listens: a store's client that comes too early tries again a second later.

    The kernel is asked, because the store may stumble over a connection that says nothing.
    """
    deadline = time.monotonic() + 10
    listens = f":{port:04X} "
    while time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            lines = Path(table).read_text().splitlines() if Path(table).exists() else []
            # "  0: 0100007F:5A3C 00000000:0000 0A …": own address, peer's, state (0A is LISTEN)
            if any(listens in line[:45] and line.split()[3] == "0A" for line in lines):
                return
        time.sleep(0.002)


def end_with_tests() -> None:
    """Have this process, which the fork server made, end as soon as the tests have.

    Else it would stay where they are killed while it waits for something, and the server with it,
    which lives as long as one of its processes does.
    """
    tests = multiprocessing.parent_process()
    assert tests is not None

    def follow() -> None:
        tests.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()


def _serve(connection: Connection, crash: str) -> None:
    """The attempt of a pool process: a call, its answer, the release; until the parent is gone."""
    end_with_tests()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    faulthandler.enable(open(crash, "w"), all_threads=True)  # noqa: SIM115 - for all its life
    for variable in list(os.environ):
        if variable.startswith("SLURM_") or variable in (*_LAUNCH_VARIABLES, "MASTER_PORT"):
            del os.environ[variable]
    # All ranks are here; without this gloo looks up the host's name, which may not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The store looks up the names of its peers for its log; a name server that is slow to say that
    # it knows none would cost 5 s a call.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the pool's groups are gloo on every machine
    import torch

    torch.set_num_threads(1)
    most = _MANY_THREADS
    try:
        connection.send_bytes(b"ready")
        while True:
            call = connection.recv_bytes()
            with _left_as_found():
                connection.send_bytes(_answer(call))
                # A group that one rank leaves early can break a peer's last collective.
                connection.recv_bytes()
            if _threads() >= most:
                _let_go_of_groups()
                # Some stay: a graph without backward holds its mesh. To look for those after each
                # call, through all of torch's objects, would take longer than the calls do.
                most = _threads() + _MANY_THREADS
    except (EOFError, KeyboardInterrupt):
        return


def _answer(data: bytes) -> bytes:
    try:
        call: _Call = pickle.loads(data)
        result = _run(call)
        # By value: multiprocessing's own pickler would hand tensors over as shared memory.
        return pickle.dumps(_Answer(result, "", time.monotonic()))
    except BaseException:
        return pickle.dumps(_Answer(None, traceback.format_exc(), time.monotonic()))


def _run(call: _Call) -> Any:
    import torch

    from rankup.runtime.world import setup

    # Reproducible, and different on every rank: what forgets to seed its draws must not look right.
    torch.manual_seed(100 * call.world_size + call.rank)
    random.seed(100 * call.world_size + call.rank)

    if call.world_size > 1:
        rank, size = str(call.rank), str(call.world_size)
        values = (rank, rank, size, size, "127.0.0.1")
        os.environ.update(zip(_LAUNCH_VARIABLES, values, strict=True))
        os.environ["MASTER_PORT"] = str(call.port)
        if call.rank:
            _wait_for(call.port)
    return call.function(setup(), *call.args)


@contextmanager
def _left_as_found() -> Iterator[None]:
    """Undo what a test did to its process: group, environment, folder, hooks, random states."""
    import torch

    from rankup.runtime.world import destroy_process_group

    environment, folder, hook = dict(os.environ), os.getcwd(), sys.excepthook
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    output, errors = sys.stdout, sys.stderr
    yield
    destroy_process_group()
    atexit.unregister(destroy_process_group)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.excepthook, sys.stdout, sys.stderr = hook, output, errors
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_grad_enabled(True)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    if torch.are_deterministic_algorithms_enabled():  # the setter imports the compiler
        torch.use_deterministic_algorithms(False)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _let_go_of_groups() -> None:
    """Free the groups of earlier calls.

    torch's caches of how tensors are cut keep every mesh they have seen, and with it its groups.
    Each of these has a thread that wakes a hundred times a second: after some hundred calls they
    take more of the machine than the tests do.
    """
    for found in gc.get_objects():
        if type(found) is _LruCache and str(found.__module__).startswith("torch.distributed"):
            found.cache_clear()
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is not None:
        import torch

        redistribute = sys.modules["torch.distributed.tensor._redistribute"]
        getattr(redistribute, "_planner_cache", {}).clear()
        getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()
    gc.collect()
