"""`rankup report` about hours on a thousand GPUs, from the files of its 250 samplers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rankup.site import rundir
from tests.monitor import traces

from .handmade import make_run, record

NODES, LENGTH = 250, 2 * 3600.0
MEMORY = 2 * 2**30
PAGE = 6_000_000
PATIENCE = 1200.0  # seconds; on a machine with nothing else to do it is a twentieth of that


@dataclass(frozen=True)
class Used:
    """What a command took: s of CPU and of time, bytes of all its processes together.

    The memory is looked up while it runs: `ru_maxrss` would begin with what the process held
    that started it, here a test worker of gigabytes.
    """

    cpu: float
    seconds: float
    memory: int


def _report(run: Path, formats: str) -> Used:
    """Write a report in a process of its own, and watch that."""
    began, peak = time.monotonic(), 0
    command = [sys.executable, "-m", "rankup", "report", str(run), "--formats", formats]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            peak = max(peak, _memory(process.pid))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                assert process.returncode == 0
                return Used(usage.ru_utime + usage.ru_stime, time.monotonic() - began, peak)
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.2)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def _memory(pid: int) -> int:
    """Bytes that a process and its children hold; what they share counts several times."""
    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        family: Sequence[psutil.Process] = [process, *process.children(recursive=True)]
        for one in family:
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    """A run directory with two hours of 250 nodes of four GPUs, sampled every 10 s: 120 MB."""
    trace = traces.healthy(nodes=NODES, seconds=LENGTH, limit=LENGTH + 3600, step=1.4)
    bill = {"gpus": 4, "unit": "core-h", "per_node_hour": 48.0, "minutes": int(LENGTH // 60) + 60}
    asked = {"submitted": rundir.now(), "nodes": NODES, "nproc": 4, "job": "7", "bill": bill}
    run = make_run(tmp_path / "runs", attempts=[asked])
    record(run, job="7", start=trace.begin, nodes=f"jrc[0001-{NODES:04d}]")
    record(run, job="7", end=trace.begin + LENGTH, code=0)
    try:
        yield trace.write(run)
    finally:
        shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_hours_on_a_thousand_gpus(recorded: Path) -> None:
    used = _report(recorded, "html,text,pdf")
    print(used)
    assert 0 < used.memory <= MEMORY
    assert (recorded / "report.html").stat().st_size < PAGE
    assert (recorded / "report.pdf").read_bytes().startswith(b"%PDF")
    said = (recorded / "report.txt").read_text()
    assert said.startswith("Healthy: the GPUs worked"), said
    assert f"{NODES} nodes" in said
