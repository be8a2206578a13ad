"""The fork server: imports torch once, and forks the ranks of one run after the other from here."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....sandbox.inside import devices
from ....sandbox.inside.spec import STATE
from ..protocol import (
    JOURNALS,
    SHORT,
    TRIES,
    Journal,
    Outcome,
    Plan,
    RankEnd,
    Run,
    journal_path,
    load,
    passes,
    read_journal,
    write_outcome,
)
from .rank import DataSets, run_rank

_PRELOADED = ("numpy", "torch", "torch.utils.data", "torch.distributed", "torch.optim")
# What DistributedDataParallel imports when it is made, for seconds, and what ports call.
_LIKELY = ("torch._dynamo", "rankup.runtime.shard", "rankup.runtime.model", "rankup.runtime.save")
_KEPT = 16 << 10  # bytes of a rank's last words on stderr
_MOST_STDERR = 8 << 20
_PATIENCE = 20.0  # seconds for the others to end by themselves once a rank has failed
_GRACE = 5.0  # and then after SIGTERM
_LOOK = 0.05
_LOG = ".stderr"  # behind the name of a journal
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"} if os.path.exists("/sys/class/net/lo") else {}


def main() -> int:
    """Make the runs of the plan in the folder that the environment names; always 0."""
    plan = load(os.path.join(os.environ[STATE], JOURNALS))
    os.nice(plan.nice)
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
            if run is not base and not self._run(replace(run, **tried)):
                # The script does not bear this size itself: its ports meet the first one.
                mine = [
                    replace(one, samples=SHORT, against=base.name) for one in mine if not one.alike
                ]
            for port in mine:
                self._run(replace(port, **tried))

    def _first(self, run: Run) -> Mapping[str, Any] | None:
        """Run the original in the first way in which it comes to its end; None: in no way."""
        path, fresh = journal_path(self._plan.state, run.name, 0), f"{run.folder}.fresh"
        shutil.copytree(run.folder, fresh, symlinks=True)
        first: Outcome | None = None
        for tried in TRIES:
            if first is not None:
                shutil.rmtree(run.folder)
                shutil.copytree(fresh, run.folder, symlinks=True)
            outcome = self._outcome(replace(run, **tried))
            if not outcome.failed:
                write_outcome(self._plan.state, outcome)
                return tried
            ends = read_journal(path).of("end")
            if first is None:  # what the first try fails of is what the user knows
                first = outcome
                os.replace(path, f"{path}.first")
            # A package is missing, or the arguments are wrong: another try ends no otherwise.
            if outcome.why == "time" or any(e.get("missing") or e.get("code") == 2 for e in ends):
                break
        assert first is not None
        os.replace(f"{path}.first", path)
        write_outcome(self._plan.state, first)
        return None

    def _run(self, run: Run) -> bool:
        outcome = self._outcome(run)
        write_outcome(self._plan.state, outcome)
        return not outcome.failed

    def _outcome(self, run: Run) -> Outcome:
        """Start all ranks of a run at once, and wait for their ends."""
        port = devices.free_port()
        ranks: list[_Rank] = []
        try:
            ranks.extend(self._fork(run, rank, port) for rank in range(run.ranks))
            return _watched(ranks, run, self._plan.seconds)
        finally:
            _end(ranks)

    def _fork(self, run: Run, rank: int, port: int) -> _Rank:
        journal = journal_path(self._plan.state, run.name, rank)
        # Both files are there before the rank is.
        Path(journal).write_bytes(b"")
        with open(journal + _LOG, "wb") as log:
            pid = os.fork()
            if pid == 0:
                if run.world:
                    os.environ.update(devices.torchrun_variables(rank, run.world, port))
                    os.environ.update(_LOOPBACK)
                run_rank(self._plan, run, rank, self._known, log.fileno())
        with suppress(OSError):
            os.setpgid(pid, pid)
        return _Rank(pid, journal)


@dataclass
class _Rank:
    """A rank's process; its stderr lies beside its journal."""

    pid: int
    journal: str
    code: int | None = None

    def look(self) -> None:
        """See whether it has ended, and keep its stderr short."""
        if os.path.getsize(self.journal + _LOG) > _MOST_STDERR:
            os.truncate(self.journal + _LOG, 0)
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None

    def ended(self) -> RankEnd:
        """Return how it has ended, so far."""
        last = Path(self.journal + _LOG).read_bytes()[-_KEPT:].decode("utf-8", "replace")
        finished = any(end["code"] == 0 for end in read_journal(self.journal).of("end"))
        return RankEnd(self.code, finished, last)


def _watched(ranks: list[_Rank], run: Run, seconds: float) -> Outcome:
    """Wait for all; stop at those that outlive their time or a failed one."""
    began = time.monotonic()
    failed: float | None = None
    asked = False
    why = "exit"
    while any(one.code is None for one in ranks):
        time.sleep(_LOOK)
        for one in ranks:
            one.look()
        now = time.monotonic()
        if failed is None and any(one.code for one in ranks):
            failed = now
        if now - began > seconds:
            why = "time"
            break
        if failed is not None and now - failed > _PATIENCE and not asked:
            asked = True
            for one in ranks:
                if one.code is None:
                    os.kill(one.pid, signal.SIGTERM)
        if failed is not None and now - failed > _PATIENCE + _GRACE:
            why = "stuck"
            break
    return Outcome(run, why, time.monotonic() - began, tuple(one.ended() for one in ranks))


def _end(ranks: list[_Rank]) -> None:
    """End what is left, and what the ranks have started."""
    for one in ranks:
        with suppress(OSError):
            os.killpg(one.pid, signal.SIGKILL)
    for one in ranks:
        if one.code is None:
            os.waitpid(one.pid, 0)


def _data_sets(journal: Journal) -> DataSets:
    """The batch sizes of the original's data sets, and those that it trains on."""
    batches: dict[int, int] = {}
    for event in journal.of("batched"):
        if isinstance(event["size"], int):
            batches.setdefault(event["dataset"], event["size"])
    trained = frozenset(one.dataset for one in passes(journal) if one.used)
    return DataSets(batches, trained)
