"""The fork server: imports torch once, and forks the ranks of one run after the other from here."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from ....sandbox.inside.spec import STATE
from ..protocol import (
    SHORT,
    TRIES,
    Journal,
    Outcome,
    Plan,
    RankEnd,
    Run,
    Try,
    journal_path,
    load,
    read_journal,
    write_outcomes,
)
from .rank import FINISHED, STDERR, DataSets, Files, run_rank

_PRELOADED = ("numpy", "torch", "torch.utils.data", "torch.distributed", "torch.optim")
# What DistributedDataParallel imports when it is made, for seconds, and what ports call.
_LIKELY = ("torch._dynamo", "rankup.runtime.shard", "rankup.runtime.model", "rankup.runtime.save")
_KEPT = 16 << 10  # bytes of a rank's last words on stderr
_MOST_STDERR = 8 << 20
_PATIENCE = 20.0  # seconds for the others to end by themselves once a rank has failed
_GRACE = 5.0  # and then after SIGTERM
_LOOK = 0.05


def main() -> int:
    """Make the runs of the plan in the folder that the environment names; always 0."""
    plan = load(os.path.realpath(os.environ[STATE]))
    for name in _PRELOADED:
        __import__(name)
    for name in _LIKELY:
        with suppress(ImportError):
            __import__(name)
    _Runs(plan).make()
    return 0


class _Runs:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcomes: list[Outcome] = []
        self._known = DataSets({}, frozenset())

    def make(self) -> None:
        """Each original until it trains, then its ports, which compare what they save with its."""
        base, *others = [run for run in self._plan.runs if not run.world]
        ports = [run for run in self._plan.runs if run.world]
        tried = self._first(base)
        journal = read_journal(journal_path(self._plan.state, base.name, 0))
        if tried is None or not journal.of("step"):
            return  # nothing that a port could be compared with
        self._known = _data_sets(journal)
        for run in (base, *others):
            mine = [one for one in ports if one.against == run.name]
            if run is not base and not self._run(run, tried):
                # The script does not bear this size itself: its ports meet the first one.
                mine = [_like_base(one, base) for one in mine if not one.alike]
            for port in mine:
                self._run(port, tried)

    def _first(self, run: Run) -> Try | None:
        """Run the original in the first way in which it comes to its end; None: in no way."""
        best: Outcome | None = None
        kept = b""
        path = journal_path(self._plan.state, run.name, 0)
        for tried in TRIES:
            with suppress(FileNotFoundError):
                os.remove(path)
            outcome = self._outcome(run, tried)
            if all(one.finished for one in outcome.ranks):
                self._record(outcome)
                return tried
            if best is None:  # what the first try fails of is what the user knows
                best = outcome
                with suppress(FileNotFoundError), open(path, "rb") as file:
                    kept = file.read()
            ends = read_journal(path).of("end")
            # A package is missing, or the arguments are wrong: another try ends no otherwise.
            if outcome.why == "time" or any(e.get("missing") or e.get("code") == 2 for e in ends):
                break
        assert best is not None
        with open(path, "wb") as file:
            file.write(kept)
        self._record(best)
        return None

    def _run(self, run: Run, tried: Try) -> bool:
        outcome = self._outcome(run, tried)
        self._record(outcome)
        return all(one.finished for one in outcome.ranks)

    def _outcome(self, run: Run, tried: Try) -> Outcome:
        environment = _environment(run) if run.world else {}
        processes = Processes(self._plan, run, tried, self._known, environment)
        try:
            return processes.watch()
        finally:
            processes.end()

    def _record(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        write_outcomes(self._plan.state, self._outcomes)


def _like_base(run: Run, base: Run) -> Run:
    return dataclasses.replace(run, samples=SHORT, against=base.name)


@dataclass
class _Process:
    """A rank; `stem` is what its files are called by."""

    pid: int
    stem: str
    code: int | None = None
    gone: bool = False

    @property
    def finished(self) -> bool:
        """True once its script has come to its end."""
        return os.path.exists(self.stem + FINISHED)

    def look(self) -> None:
        """See whether it has ended, and keep its stderr short."""
        with suppress(OSError):
            if os.path.getsize(self.stem + STDERR) > _MOST_STDERR:
                os.truncate(self.stem + STDERR, 0)
        if not self.gone:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code, self.gone = os.waitstatus_to_exitcode(status), True

    def ended(self) -> RankEnd:
        """Return how it has ended, so far."""
        with open(self.stem + STDERR, "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - _KEPT))
            tail = file.read().decode("utf-8", "replace")
        return RankEnd(self.code, self.finished, tail)


class Processes:
    """The ranks of one run; all start at once.

    Args:
        environment: further variables of all ranks; empty: there is no launcher.
    """

    def __init__(
        self, plan: Plan, run: Run, tried: Try, known: DataSets, environment: dict[str, str]
    ) -> None:
        self._plan, self._run, self._tried = plan, run, tried
        self._ranks: list[_Process] = []
        for rank in range(run.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if environment else {}
            self._ranks.append(self._fork(rank, known, {**environment, **own}))

    def _fork(self, rank: int, known: DataSets, environment: dict[str, str]) -> _Process:
        stem = journal_path(self._plan.state, self._run.name, rank).removesuffix(".jsonl")
        with suppress(FileNotFoundError):
            os.remove(stem + FINISHED)
        # It is there before the rank is.
        stderr = os.open(stem + STDERR, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
        pid = os.fork()
        if pid == 0:
            os.environ.update(environment)
            run_rank(self._plan, self._run, self._tried, rank, known, Files(stem, stderr))
        os.close(stderr)
        with suppress(OSError):
            os.setpgid(pid, pid)
        return _Process(pid, stem)

    def watch(self) -> Outcome:
        """Wait for all; end those that outlive their time or a failed one."""
        began = time.monotonic()
        failed: float | None = None
        asked = False
        why = "exit"
        while True:
            self._look()
            now = time.monotonic()
            running = [m for m in self._ranks if not m.gone]
            if not running:
                break
            if failed is None and any(m.gone and m.code != 0 for m in self._ranks):
                failed = now
            if now - began > self._plan.seconds:
                why = "time"
                break
            if failed is not None and now - failed > _PATIENCE and not asked:
                asked = True
                for process in running:
                    with suppress(OSError):
                        os.kill(process.pid, signal.SIGTERM)
            if failed is not None and now - failed > _PATIENCE + _GRACE:
                why = "stuck"
                break
        took = time.monotonic() - began
        waited = time.monotonic() - failed if failed is not None else 0.0
        ends = tuple(one.ended() for one in self._ranks)
        return Outcome(self._run.name, why, took, ends, self._tried, waited, self._run)

    def end(self) -> None:
        """End what is left, and what the ranks have started."""
        for process in self._ranks:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._ranks:
            if not process.gone:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, 0)
                process.gone = True

    def _look(self) -> None:
        time.sleep(_LOOK)
        for process in self._ranks:
            process.look()


def _environment(run: Run) -> dict[str, str]:
    """torchrun's variables, but the rank's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "WORLD_SIZE": str(run.world),
        "LOCAL_WORLD_SIZE": str(run.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GROUP_RANK": "0",
        **({"GLOO_SOCKET_IFNAME": "lo"} if os.path.exists("/sys/class/net/lo") else {}),
    }


def _data_sets(journal: Journal) -> DataSets:
    """The batch sizes of the original's data sets, and those that it trains on."""
    batches: dict[int, int] = {}
    for event in journal.of("batched"):
        if isinstance(event["size"], int):
            batches.setdefault(event["dataset"], event["size"])
    trained = (event["dataset"] for event in journal.of("batch") if event["grad"])
    return DataSets(batches, frozenset(trained))


if __name__ == "__main__":
    sys.exit(main())
