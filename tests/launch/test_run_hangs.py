"""A run that hangs ends within its timeout; the last line says in what and because of whom."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from .live import live, script

NODE = platform.node()
HANGS = """
import datetime, os, signal, time, torch, rankup
from torch import nn

world = rankup.setup(datetime.timedelta(seconds=12))
model = rankup.wrap(nn.Linear(4, 1))

def load():
    if world.rank == 1:
        {how}

for number in range(3):
    if number == 2:
        load()
    model(torch.ones(2, 4)).sum().backward()
"""


def _hangs(tmp_path: Path, how: str) -> list[str]:
    path = script(tmp_path, HANGS.format(how=how))
    # Start-up and the end of the ranks included.
    with live(["run", "--nproc", "2", path], tmp_path) as run:
        assert run.wait(300) == 1
        run.nobody_left()
        return run.err.rstrip().splitlines()


@pytest.mark.slow
def test_a_rank_that_sleeps(tmp_path: Path) -> None:
    lines = _hangs(tmp_path, "time.sleep(600)")
    assert lines[-1].startswith("rankup: hang: all_reduce (float32 [5]), number ")
    assert "did not end within 12 s" in lines[-1]
    assert "; rank 0 waits in it at script.py:15; " in lines[-1]
    assert lines[-1].endswith(f"rank 1 on {NODE} did not arrive: it is at script.py:10 in load")
    assert f'> File "{tmp_path}/script.py", line 10, in load' in lines
    assert sum("hang: " in line for line in lines) == 1
    assert not [line for line in lines if "Traceback" in line or "worker.py" in line], lines


@pytest.mark.slow
def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    last = _hangs(tmp_path, "os.kill(os.getpid(), signal.SIGSTOP)")[-1]
    assert last.startswith("rankup: hang: all_reduce (float32 [5])")
    assert last.endswith("rank 1 did not answer: stopped, dead or stuck in native code")
