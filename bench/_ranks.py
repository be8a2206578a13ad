"""Rank processes that stay alive and take turns, timed by the records of their `metrics.jsonl`.

Contestants take turns in slices of about half a second, in a new random order each round, so that
whatever else happens on the machine affects all of them alike. A slice is timed by the records that
were written in it: from the `time` of its first counted step to that of its last one, over the
number of steps between them. No contestant is timed or counted by a call of its own.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from common import BENCH, Effort, claim, median, paired, ratios, spread, table

# Optimizer steps at a slice's edges that are not counted: the one at which the contestant stands
# still, whose rest falls into the next slice, one to warm up, and the last, recorded a step late.
UNCOUNTED = 4
_WARM = 2  # records of a slice before its first counted one
_ANSWER_SECONDS = 1200  # the first slice may compile
_RUN_SECONDS = 900.0


@dataclass(frozen=True)
class Slice:
    """One contestant's turn.

    Attributes:
        seconds: per step, from the records.
        steps: that were counted.
        ranks: bytes sent per step and held, for each rank (`_rank.Held`).
    """

    seconds: float
    steps: int
    ranks: list[dict[str, Any]]


class Team:
    """Ranks of `_rank.py`, of one thread each, that run one contestant's slice at a time.

    Args:
        world_size: number of ranks; a single rank is a plain process without launcher variables.
        directory: folder of the text (`write_text`).
        options: of the language-model recipe.
        contestants: names in `_loops.LOOPS`.
        device: `cpu` or `cuda`.
        keep: keep freed memory, as the ranks of `rankup run` do on the CPU.
    """

    def __init__(
        self,
        world_size: int,
        directory: Path,
        options: Mapping[str, Any],
        contestants: Sequence[str],
        device: str = "cpu",
        keep: bool = False,
    ) -> None:
        self._runs = Path(tempfile.mkdtemp(prefix="runs-", dir=directory))
        spec = {"directory": str(directory), "runs": str(self._runs), "options": dict(options)}
        spec["keep"] = keep
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the ranks live
        environments = rank_environments(world_size, device)
        spec["contestants"] = list(contestants)
        self._ranks = start_ranks("_rank.py", spec, self._log, environments)
        self._turn = ("", 0, 0.0)

    def start(self, contestant: str, steps: int) -> None:
        """Begin a slice of `steps` counted steps on all ranks."""
        self._turn = (contestant, steps + UNCOUNTED, time.time())
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{contestant}\t{steps + UNCOUNTED}\n")
            rank.stdin.flush()

    def finish(self) -> Slice:
        """Wait for the slice that `start` began."""
        contestant, steps, began = self._turn
        answers = [json.loads(answer_of(rank, self._log, contestant)) for rank in self._ranks]
        times = recorded(self._runs / contestant / "metrics.jsonl", began)
        if not steps - UNCOUNTED < len(times) <= steps:
            raise SystemExit(
                f"bench: {contestant} was let run {steps} optimizer steps, and its metrics.jsonl "
                f"records {len(times)}: the bench is wrong"
            )
        counted = times[_WARM:]
        seconds = (counted[-1] - counted[0]) / (len(counted) - 1)
        return Slice(seconds, len(counted) - 1, answers)

    def slice(self, contestant: str, steps: int) -> Slice:
        self.start(contestant, steps)
        return self.finish()

    def records(self, contestant: str) -> list[dict[str, Any]]:
        """Return all that a contestant has recorded so far."""
        text = (self._runs / contestant / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()
        self._log.close()


def recorded(metrics: Path, since: float) -> list[float]:
    """Return the times of the steps in a `metrics.jsonl` that ended after `since`.

    Raises:
        SystemExit: step numbers or times do not rise one by one.
    """
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in steps if "step" in line and line["time"] > since]
    numbers = [line["step"] for line in steps]
    times = [line["time"] for line in steps]
    if numbers and (numbers != [*range(numbers[0], numbers[-1] + 1)] or times != sorted(times)):
        raise SystemExit(f"bench: steps are missing or out of order in the records of {metrics}")
    return times


def interleave(
    teams: Mapping[str, Team], effort: Effort, least: int, longer: float = 1.0
) -> dict[str, list[Slice]]:
    """Let contestants take turns, each on its team; return one slice per contestant and round.

    Args:
        teams: by contestant.
        least: steps of a slice, at least.
        longer: how many times as long as usual a slice takes.
    """
    for name, team in teams.items():  # builds everything
        first = team.slice(name, least)
    steps = max(least, round(longer * effort.slice_seconds / first.seconds))
    found: dict[str, list[Slice]] = {name: [] for name in teams}
    for number in range(effort.rounds):
        for name in random.Random(number).sample(list(teams), len(teams)):
            found[name].append(teams[name].slice(name, steps))
    return found


def show_rates(seconds: Mapping[str, Sequence[float]], peer: str, what: str) -> None:
    """Print steps per second of each contestant, and its paired ratio to the peer."""
    print(what)
    rows = []
    for name, values in seconds.items():
        pairs = ratios(seconds[peer], values)
        rows.append([name, f"{1 / median(values):.2f}", f"{median(pairs):.3f}", spread(pairs)])
    table(["", "steps/s", f"to {peer}", "quartiles"], rows)


def claimed(
    name: str,
    seconds: Mapping[str, Sequence[float]],
    ours: str,
    peer: str,
    note: str,
    amount: float = 1.0,
    unit: str = "steps/s",
) -> str:
    """Return the claim line of rates against the same loop by hand.

    Rounds are paired, since a busy moment hits both alike: `ours` is the peer's median rate times
    the median of the rounds' ratios.

    Args:
        seconds: per step, one value per round.
        amount: of `unit` in a step.
    """
    ratio, rate = median(ratios(seconds[peer], seconds[ours])), amount / median(seconds[peer])
    said = f"; ours is the peer's median times that of {len(seconds[peer])} paired ratios, "
    note += said + paired(seconds[peer], seconds[ours])
    return claim(name, ratio * rate, rate, unit, note, same_loop=True)


def start_ranks(
    program: str, spec: Mapping[str, Any], log: IO[str], environments: Sequence[dict[str, str]]
) -> list[subprocess.Popen[str]]:
    """Start a program of this folder as ranks, with `spec` as JSON for its last argument.

    Args:
        log: gets what they write to stderr.
        environments: of each rank.
    """
    return [
        subprocess.Popen(
            [sys.executable, "-u", BENCH / program, "--rank", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
        for environment in environments
    ]


def run_ranks(program: str, world_size: int, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a program as ranks to its end; return the JSON lines that rank 0 printed."""
    with tempfile.TemporaryFile("w+") as log:
        ranks = start_ranks(program, spec, log, rank_environments(world_size))
        try:
            printed, _ = ranks[0].communicate(timeout=_RUN_SECONDS)
            codes = [rank.wait(timeout=60) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            log.seek(0)
            raise SystemExit(f"{log.read()[-6000:]}\nbench: {program} failed, exit codes {codes}")
    return [json.loads(line) for line in printed.splitlines()]


def answer_of(
    process: subprocess.Popen[str], log: IO[str], name: str, seconds: float = _ANSWER_SECONDS
) -> str:
    """Return the next line that a process prints; without one, end the bench with its log."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    answer = process.stdout.readline() if ready else ""
    if not answer:
        log.seek(0)
        what = "failed" if ready else f"gave no answer within {seconds:.0f} s"
        raise SystemExit(f"{log.read()[-6000:]}\nbench: {name} {what}")
    return answer


def rank_environments(world_size: int, device: str = "cpu") -> list[dict[str, str]]:
    """Return what torchrun sets for each rank; for a single one, what a shell sets."""
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    slurm = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    base = {name: v for name, v in os.environ.items() if name not in (*launcher, *slurm)}
    if device == "cpu":
        base |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        # Contestants are threads, and are to have the memory of a program's main one.
        base |= {"MALLOC_ARENA_MAX": "1"}
    if world_size == 1:
        return [base]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = str(world_size)
    base |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "TORCHELASTIC_RUN_ID": "bench"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
    return [{**base, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def write_text(directory: Path, options: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Tokenise exactly `samples` training samples into `directory`; return options naming them.

    The text is English that comes with Python, repeated where it is too short. A whole number of
    global batches leaves no contestant a short last one.
    """
    from pydoc_data.topics import topics

    from rankup.recipes.options import LanguageModelOptions

    directory.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    options = dict(options)
    as_bytes = options["vocab"] == "byte"
    units: list[Any] = list(text.encode()) if as_bytes else text.split()
    for split, number in (("train", samples), ("valid", 4), ("test", 4)):
        size = number * options["seq_len"] + 1
        taken = (units * (1 + size // len(units)))[:size]
        path = directory / f"{split}.txt"
        path.write_bytes(bytes(taken) if as_bytes else " ".join(taken).encode())
        options[split] = str(path)
    LanguageModelOptions(**options).prepare(directory)
    return options
