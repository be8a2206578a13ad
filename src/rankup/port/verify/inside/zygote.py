"""Imports torch once and forks all ranks of all runs from here, one run after the other."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict

from ..plan import OUTCOMES, TRIES, Outcome, Plan, Run, Try, journal, load
from .crew import Crew

_STATE = "RANKUP_FETCH"  # the variable by which the parent finds all processes of a tree
_PRELOADED = ("numpy", "torch", "torch.utils.data", "torch.distributed", "torch.optim")
# What DistributedDataParallel imports when it is made, for seconds, and what ports call.
_LIKELY = ("torch._dynamo", "rankup.runtime.shard", "rankup.runtime.model", "rankup.runtime.save")


def main() -> int:
    """Make the runs of the plan in the folder that the environment names; always 0."""
    plan = load(os.path.realpath(os.environ[_STATE]))
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

    def make(self) -> None:
        """The original until it trains, then the others, then what they saved is loaded."""
        original, *others = self._plan.runs
        crew, tried = self._original(original)
        if crew is None:
            return
        try:
            path = journal(self._plan.state, original.name, 0)
            if not {"step", "batch"} <= _kinds(path):
                return  # nothing that a port could be compared with
            batches = _batches(path)
            done = [run for run in others if self._run(run, tried, batches)]
            crew.ask([(run.name, run.folder) for run in done if not run.kill_at])
        finally:
            crew.end()

    def _original(self, run: Run) -> tuple[Crew | None, Try]:
        """The crew of the original, still there, unless it does not train in any way."""
        best: Outcome | None = None
        kept = b""
        path = journal(self._plan.state, run.name, 0)
        for tried in TRIES:
            with suppress(FileNotFoundError):
                os.remove(path)
            crew = Crew(self._plan, run, tried, {}, _environment(run))
            outcome = crew.watch(host=True)
            if all(one.finished for one in outcome.ranks):
                self._tell(outcome)
                return crew, tried
            crew.end()
            if best is None:  # what the first try says is what the user knows
                best = outcome
                with suppress(FileNotFoundError), open(path, "rb") as file:
                    kept = file.read()
            if outcome.why == "time" or not _may_help(path):
                break
        assert best is not None
        with open(path, "wb") as file:
            file.write(kept)
        self._tell(best)
        return None, TRIES[0]

    def _run(self, run: Run, tried: Try, batches: dict[int, int]) -> bool:
        crew = Crew(self._plan, run, tried, batches, _environment(run))
        outcome = crew.watch()
        crew.end()
        self._tell(outcome)
        return all(one.finished for one in outcome.ranks)

    def _tell(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        path = os.path.join(self._plan.state, OUTCOMES)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump([asdict(one) for one in self._outcomes], file)
        os.replace(f"{path}.new", path)


def _environment(run: Run) -> dict[str, str]:
    """torchrun's variables, but the rank's own."""
    if not run.world:
        return {}
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


def _kinds(path: str) -> set[str]:
    with open(path, encoding="utf-8") as file:
        return {json.loads(line)["event"] for line in file}


def _batches(path: str) -> dict[int, int]:
    """Batch sizes of the original's data sets."""
    found: dict[int, int] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            if event["event"] == "batched" and isinstance(event["size"], int):
                found.setdefault(event["dataset"], event["size"])
    return found


def _may_help(path: str) -> bool:
    """Whether another try may end otherwise: not where a package is missing."""
    with suppress(OSError), open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            if event["event"] == "end" and (event.get("missing") or event.get("code") == 2):
                return False
    return True


if __name__ == "__main__":
    sys.exit(main())
