"""Runs of `lowcomm.py`: start the workers, wait for their end, read what they left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _ranks import rank_environments, start_ranks

WORKERS = 4
_SECONDS = 3600.0


@dataclass(frozen=True)
class Setting:
    """What is slow.

    Attributes:
        seconds: that each worker sleeps in each micro-batch it trains on; as many as workers.
        bandwidth: of each worker's line, bytes/s; 0 leaves the network as it is.
        count_bytes: ask TCP how much was sent, at each micro-batch.
    """

    seconds: tuple[float, ...] = (0.0,) * WORKERS
    bandwidth: float = 0.0
    count_bytes: bool = False


@dataclass(frozen=True)
class Run:
    """What a run left.

    Attributes:
        lines: of `metrics.jsonl`, the last one by itself as `final`.
        stamps: for each worker, when each of its micro-batches was done (seconds since 1970), and
            bytes that it had sent by then.
    """

    lines: list[dict[str, Any]]
    final: dict[str, Any]
    stamps: list[list[tuple[float, int]]]

    def micro_batches_per_second(self, warm: int) -> float:
        """Return the rate of all workers, once `warm` micro-batches are done."""
        moments = sorted(moment for stamps in self.stamps for moment, _ in stamps)
        return (len(moments) - warm) / (moments[-1] - moments[warm - 1])

    def tcp_bytes(self, first: int, last: int) -> float:
        """Return bytes sent between micro-batches `first` and `last`, the mean over workers."""
        return sum(stamps[last][1] - stamps[first][1] for stamps in self.stamps) / len(self.stamps)

    @property
    def bytes_per_step(self) -> float:
        """Bytes that a worker sends per step, as the run counts them."""
        return float(self.final["exchange"]["bytes_per_step"])


def run(text: Path, directory: Path, options: dict[str, Any], setting: Setting) -> Run:
    """Run the language model on as many workers as the setting has.

    Args:
        text: a folder with tokens, made by `LanguageModelOptions.prepare`.
        directory: of the run; made.
    """
    directory.mkdir(parents=True)
    places = {"text": str(text), "directory": str(directory), "parent": os.getpid()}
    spec = {**places, "options": options, **asdict(setting)}
    workers = len(setting.seconds)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        ranks = start_ranks("_lowcomm_rank.py", spec, log, rank_environments(workers))
        stack.callback(_end, ranks)
        codes = [rank.wait(timeout=_SECONDS) for rank in ranks]
        if any(codes):
            log.seek(0)
            raise SystemExit(f"{log.read()[-6000:]}\nbench: {options} failed, exit codes {codes}")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    stamps = [json.loads((directory / f"stamps-{n}.json").read_text()) for n in range(workers)]
    steps = [line for line in lines if "loss" in line and not line.get("final")]
    return Run(steps, lines[-1], stamps)


def _end(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        rank.kill()
        rank.wait()
