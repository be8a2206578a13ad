"""The launcher of gossip: workers that outlive each other, and the store outside any of them.

It stands where torchrun's agent stands for other strategies, one on each node. torchrun ends all
ranks when one fails, and its store is in a rank's own process group; here each worker is a process
by itself, and what ends one is said and written down while the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..base.errors import EXIT_BAD_INPUT, EXIT_FAILED, UserError
from ..base.processes import starting
from ..base.text import say
from ..parallel.lowcomm.gossip.alive import STORE, WORKER, WORKERS, Silence, patience
from ..site.gpus import visible_gpus
from . import failure
from .worker import die_with_parent

if TYPE_CHECKING:
    import torch.distributed as dist

    from ..parallel.lowcomm.gossip.board import Board, Status

# A process that finds these would take itself for a rank among many, and wait for them.
_OF_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_STEP_NUM_TASKS",
)
_PAUSE = 0.05  # seconds between two looks at the processes
_LOOK = 0.5  # and between two at the board
_GRACE = 30.0  # for workers to save, once this process was asked to stop
_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run this node's workers to the end; the exit code.

    That is 0 where the run came to its end, in whichever workers.
    """
    die_with_parent()
    from ..parallel.lowcomm.gossip.board import Board, StoreLost

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the workers take it as a wish to stop
    given = _arguments().parse_args()
    try:
        patience()
    except UserError as error:
        say(str(error))
        return EXIT_BAD_INPUT
    total = given.nodes * given.nproc
    log = Path(os.environ["RANKUP_RUN_DIR"]) / "log"
    log.mkdir(parents=True, exist_ok=True)
    address, served = given.store, None
    try:
        if given.node == 0:
            served, address = _serve(given.store)
        board = Board(served, total) if served else Board.connect(address, total)
    except RuntimeError as error:
        what = "serve" if given.node == 0 else "reach"
        say(f"cannot {what} the run's store at {address}: {str(error).splitlines()[0]}")
        return EXIT_FAILED
    if served:
        board.prepare()
        board.set("prepared", "1")
    board.get("prepared")  # waits
    first = given.node * given.nproc
    try:
        workers = Workers(given.words, first, given.nproc, total, address)
    except ValueError as error:
        say(str(error))
        board.set("abort", str(EXIT_BAD_INPUT))
        return EXIT_BAD_INPUT
    crew = _Crew(board, workers, given.node, given.nodes, log)
    try:
        return crew.run()
    except StoreLost as error:
        workers.wait(_GRACE)  # each says so itself
        say(str(error))
        return EXIT_FAILED
    finally:
        workers.kill()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rankup.launch.crew")
    parser.add_argument("--nodes", type=int, default=1, help="how many nodes there are")
    parser.add_argument("--node", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--nproc", type=int, required=True, help="workers on each node")
    parser.add_argument("--store", default="", help="address:port of the store, on node 0")
    parser.add_argument("words", nargs="+", help="TARGET and what belongs to it, behind --")
    return parser


def _serve(address: str) -> tuple[dist.TCPStore, str]:
    """The store, and the address under which the workers find it."""
    import torch.distributed as dist

    host, _, port = (address or "127.0.0.1:0").rpartition(":")
    store = dist.TCPStore(
        host, int(port), is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    return store, f"{host}:{store.port}"


class _Crew:
    """One node's workers, and what all nodes know of theirs."""

    def __init__(self, board: Board, workers: Workers, node: int, nodes: int, log: Path) -> None:
        self.board, self.workers, self.node, self.nodes, self.log = board, workers, node, nodes, log
        self.silence = Silence(2 * patience())
        self.untold: list[str] = []
        self.asked: tuple[int, float] | None = None  # signal, and when
        for number in _ASKING:
            signal.signal(number, self._ask)

    def run(self) -> int:
        """Until the run has ended, whoever of its workers is left."""
        looked = 0.0
        while True:
            self._reap()
            if self.asked and time.monotonic() - self.asked[1] > _GRACE:
                self.workers.kill()
            if time.monotonic() - looked >= _LOOK or not self.workers.running:
                looked = time.monotonic()
                status = self.board.status()
                if status.abort:
                    return self._aborted(status.abort)
                if status.ended:
                    return self._ended()
                if self._nobody_left(status):
                    return self._failed()
                self._tell()
            time.sleep(_PAUSE)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Somebody wants this process to end: the workers save first, and need the store."""
        if self.asked is None:
            self.asked = (number, time.monotonic())
            self.workers.send(number)

    def _reap(self) -> None:
        """Put up who has ended before the run."""
        for worker, code in self.workers.reap().items():
            if code == 0:
                continue
            if code == EXIT_BAD_INPUT:  # what is wrong with the input is wrong for all
                self.board.swap("abort", "0", str(code))
                continue
            how = self._how(worker, code)
            self.board.set(f"lost/{worker}", how)
            self.untold.append(f"worker {worker} (node {failure.node_name()}) was lost: {how}")

    def _how(self, worker: int, code: int) -> str:
        written = [note for note in failure.read_all(self.log) if note.rank == worker]
        return written[0].message.splitlines()[-1] if written else failure.said(code)

    def _tell(self) -> None:
        """Say who was lost; only while there are others."""
        for line in self.untold:
            say(f"{line}; the others go on", "")
        self.untold = []

    def _nobody_left(self, status: Status) -> bool:
        silent = self.silence.of(status.beats, time.monotonic())
        return len(silent | status.lost.keys()) == self.board.workers

    def _aborted(self, code: int) -> int:
        self.workers.kill()
        if EXIT_BAD_INPUT in self.workers.codes.values():
            self._report()
        return code

    def _failed(self) -> int:
        """Nobody came to the end: the usual last words, once."""
        self.workers.kill()
        if self.asked:
            return 128 + self.asked[0]
        code = self._report() if self.node == 0 else EXIT_FAILED
        self._leave_together()
        return code

    def _report(self) -> int:
        failed = {worker: code for worker, code in self.workers.codes.items() if code}
        notes = failure.read_all(self.log)
        first = failure.first_cause(notes, failure.of_codes(failed, notes))
        if first is None:
            say("no worker is left on any node")
            return EXIT_FAILED
        if first.exit_code != 128 + signal.SIGINT:
            say(f"\n{failure.report(first)}", "")
        return first.exit_code

    def _ended(self) -> int:
        """The run is through; who does not end by itself is ended, and counts as lost."""
        self.workers.wait(patience())
        self._reap()
        for worker in self.workers.running:
            self.board.set(f"lost/{worker}", "it did not come to the end, and was killed")
        self.workers.kill()
        with contextlib.suppress(OSError):  # the job script asks for it where a crew is gone
            (self.log / "ended").touch()
        self._leave_together()
        if self.node == 0:
            nodes = self.board.nodes()
            for worker, how in sorted(self.board.status().lost.items()):
                where = nodes[worker] or "not known"
                say(f"the run ended without worker {worker} (node {where}): {how}")
        return 0

    def _leave_together(self) -> None:
        """The store goes last: others may still look."""
        if self.node:
            self.board.set(f"left/{self.node}", "1")
            return
        deadline = time.monotonic() + patience() + _LOOK
        others = set(range(1, self.nodes))
        while others and time.monotonic() < deadline:
            others = {node for node in others if not self.board.has(f"left/{node}")}
            time.sleep(_PAUSE)


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
