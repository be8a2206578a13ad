"""Makes the recordings in `recorded/` anew: real runs of two ranks under the real sampler.

    PYTHONPATH=src python -m tests.monitor.record [NAME…]

Each takes five minutes, as less is too short to judge. What tells of the machine and its user
(host name, paths) is replaced; times and numbers stay as they were.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rankup.monitor.lines import FOLDER

from .gpus import played

HERE = Path(__file__).parent / "recorded"
SECONDS = 300.0  # after which a run saves and stops
_SILENT = 90.0  # seconds without a sampler, more than a missed sample or two
_KEPT = ("job.json", "metrics.jsonl", FOLDER)
_SUFFIXES = (".json", ".jsonl", ".csv")
# Steps of a second where each rank has a core: no more than fit into a small file.
_TRAIN = (
    *("language-model", "--vocab", "byte", "--seq-len", "128", "--dim", "256", "--layers", "4"),
    *("--global-batch", "64", "--micro-batch", "4", "--steps", "400"),
    *("--valid-every", "50", "--checkpoint-every", "100"),
)


@dataclass(frozen=True)
class Plan:
    """A recording: GPUs that play a script (none: the machine's), and what is done to the run."""

    busy: int = 0
    idle: int = 0
    meanwhile: Callable[[Path, dict[str, str]], None] | None = None
    torn: bool = False


def kill_the_sampler(run: Path, environment: dict[str, str]) -> None:
    """Kill it in the middle, start another one by hand after a while, and kill that one too."""
    _wait_for_samples(run, 60)
    _kill_samplers(run)
    time.sleep(_SILENT)
    command = [sys.executable, "-m", "rankup", "monitor", str(run), "--ranks", "2"]
    second = subprocess.Popen(command, env=environment)
    _wait_for_samples(run, 80)
    second.kill()
    second.wait()


def _wait_for_samples(run: Path, count: int) -> None:
    while sum(file.read_bytes().count(b"\n") for file in _tables(run)) < count:
        time.sleep(1.0)


def _tables(run: Path) -> list[Path]:
    """The table of the node, which has a row per sample; none before its sampler has begun."""
    return list((run / FOLDER).glob("*.host.csv"))


PLANS = {
    "healthy": Plan(),
    "sick": Plan(busy=2, idle=2),
    "torn": Plan(busy=2, meanwhile=kill_the_sampler, torn=True),
}


def record(name: str) -> None:
    """Run and keep one of `PLANS`.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    plan = PLANS[name]
    with tempfile.TemporaryDirectory() as folder:
        run, script = Path(folder) / name, Path(folder) / "gpus.json"
        command = [sys.executable, "-m", "rankup", "run", "--local", "--nproc", "2"]
        environment = {
            **os.environ,
            "RANKUP_MONITOR": "1",
            "RANKUP_END_TIME": str(time.time() + SECONDS),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        if plan.busy:
            gpus = [_gpu(n, n < plan.busy) for n in range(plan.busy + plan.idle)]
            environment |= played(script, *gpus)
        process = subprocess.Popen(
            [*command, "--out", str(run), *_TRAIN], env=environment, cwd=folder
        )
        try:
            if plan.meanwhile is not None:
                plan.meanwhile(run, environment)
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, command)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
        if plan.torn:
            _tear(run)
        _keep(run, HERE / name)


def _gpu(number: int, busy: bool) -> dict[str, Any]:
    """A GPU that starts with its ranks and computes from then on, or that nobody touches."""
    still = {"util": 0, "memory": 4.5e6, "power": 55, "temperature": 31, "clock": 210}
    values: dict[str, Any] = {**still, "throttle": 1, "processes": 0, "pcie_rx": 0, "pcie_tx": 0}
    counters = {"nvlink": 0.0}
    if busy:
        wave = (96, 98, 97, 94, 99, 97)
        begin = 10
        values = {
            "util": [0] * begin + list(wave) * 40,
            "memory": [4.5e6] * begin + [3.1e10],
            "power": [60] * begin + [4 * n - 60 for n in wave] * 40,
            "temperature": [35, 40, 44, 48, 51, 54, 56, 58, 60, 61, 62],
            "clock": [210] * begin + [1395],
            "throttle": [1] * begin + [0],
            "processes": [0] * begin + [1],
            "pcie_rx": [0] * begin + [2.1e8],
            "pcie_tx": [0] * begin + [1.4e8],
        }
        counters = {"nvlink": 1.9e10}
    return {
        **{"name": "NVIDIA A100-SXM4-40GB", "uuid": f"GPU-{number:08d}", "memory": 42949672960},
        **{"power_limit": 400, "clock_max": 1410, "values": values, "counters": counters},
    }


def _kill_samplers(run: Path) -> None:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(run) in words and any("rankup.monitor.collect" in word for word in words):
            process.kill()


def _tear(run: Path) -> None:
    """Cut the last line in the middle, as a node that dies while it writes leaves it."""
    (file,) = _tables(run)
    data = file.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(data[: last + (len(data) - last) // 2])


def _keep(run: Path, target: Path) -> None:
    """Copy what is kept, with other names for this machine, its folders and its user."""
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(run.rglob("*")):
        place = file.relative_to(run)
        if file.is_file() and place.parts[0] in _KEPT and file.suffix in _SUFFIXES:
            kept = target / _plain(str(place), run)
            kept.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
            kept.write_text(_plain(text, run), encoding="utf-8", errors="surrogateescape")


def _plain(text: str, run: Path) -> str:
    """Without the names of this machine."""
    text = text.replace(str(run), f"/p/scratch/course/runs/{run.name}")
    text = text.replace(str(run.parent), "/p/project/course")
    text = re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "node1", text)
    return text.replace(str(Path(sys.prefix)), "/p/project/course/env")


def main(words: Sequence[str] | None = None) -> None:
    """Make those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANS)}")
    for name in parser.parse_args(words).names or PLANS:
        record(name)


if __name__ == "__main__":
    main()
