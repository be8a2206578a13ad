"""Ranks and their workers, found among processes of a tree of /proc."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rankup.monitor.collect.ranks import PAGE, TICKS, Ranks, Table

from .trees import process

MEMORY = 256 * PAGE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def _started(run: Path, rank: int, name: str = "RANK") -> dict[str, str]:
    return {"RANKUP_RUN_DIR": str(run), name: str(rank), "PATH": "/bin"}


def _ranks(root: Path, run: Path) -> Ranks:
    return Ranks(str(run), Table(str(root), os.getuid()))


def test_a_rank_and_its_workers(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    environ = _started(run, 3)
    process(tmp_path, 10, environ={"RANKUP_RUN_DIR": str(run)}, command="torchrun", cpu=500)
    process(tmp_path, 11, 10, environ=environ, cpu=1000, io=(100, 10))
    process(tmp_path, 12, 11, environ=environ, cpu=50, io=(1000, 0))
    process(tmp_path, 13, 11, environ=environ, cpu=0, io=(0, 0))
    tracker = "python -c from multiprocessing.resource_tracker import main"
    process(tmp_path, 14, 11, environ=environ, command=tracker)
    assert found.read(None) == [[3, None, MEMORY, 2, None, None, None]]
    process(tmp_path, 11, 10, environ=environ, cpu=1000 + 2 * TICKS, io=(100, 30))
    process(tmp_path, 12, 11, environ=environ, cpu=50 + TICKS, io=(5000, 0))
    assert found.read(2.0) == [[3, 100.0, MEMORY, 2, 50.0, 2000, 10]]


def test_ranks_are_in_order_and_those_of_other_runs_are_not_ours(tmp_path: Path, run: Path) -> None:
    other = tmp_path / "other"
    process(tmp_path, 20, environ=_started(run, 1))
    process(tmp_path, 21, environ=_started(run, 0))
    process(tmp_path, 22, environ=_started(other, 0))
    process(tmp_path, 23, environ={"RANK": "0"})
    process(tmp_path, 24, environ=_started(run, 5), state="Z")
    assert [row[0] for row in _ranks(tmp_path, run).read(None)] == [0, 1]


def test_a_rank_behind_a_shell_is_the_program(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    process(tmp_path, 30, name="bash", environ=_started(run, 0))
    process(tmp_path, 31, 30, name="python) (x", environ=_started(run, 0))
    found.read(None)
    process(tmp_path, 31, 30, name="python) (x", environ=_started(run, 0), cpu=TICKS)
    assert found.read(1.0)[0][:4] == [0, 100.0, MEMORY, 0]


def test_the_bytes_of_a_worker_that_ended_are_not_counted_twice(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    environ = _started(run, 0)
    process(tmp_path, 40, environ=environ, io=(100, 0))
    process(tmp_path, 41, 40, environ=environ, io=(9000, 0))
    found.read(None)
    # The rank has waited for the worker, which had read another thousand: both are the rank's now.
    shutil.rmtree(tmp_path / "proc/41")
    process(tmp_path, 40, environ=environ, io=(100 + 10_000, 0))
    assert found.read(1.0)[0][5] == 1000
    # One that ended unwaited for takes its bytes along.
    process(tmp_path, 42, 40, environ=environ, io=(7000, 0))
    found.read(1.0)
    shutil.rmtree(tmp_path / "proc/42")
    process(tmp_path, 40, environ=environ, io=(100 + 10_500, 0))
    assert found.read(1.0)[0][5] == 500


def test_a_process_caught_before_its_exec_is_looked_at_again(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    process(tmp_path, 50, environ={"RANKUP_RUN_DIR": str(run)})  # torchrun's still
    assert found.read(None) == []
    process(tmp_path, 50, environ=_started(run, 2))
    assert [row[0] for row in found.read(1.0)] == [2]


def test_a_shell_that_becomes_the_rank_after_a_while_is_one(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    process(tmp_path, 55, name="bash", environ={"RANKUP_RUN_DIR": str(run)})
    process(tmp_path, 56, environ={})
    for _ in range(10):
        assert found.read(1.0) == []
    process(tmp_path, 55, name="python", environ=_started(run, 1))
    assert [row[0] for row in found.read(1.0)] == [1]


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path, run: Path) -> None:
    found = _ranks(tmp_path, run)
    process(tmp_path, 60, environ=_started(run, 2), cpu=900)
    for _ in range(5):
        found.read(1.0)
    process(tmp_path, 60, environ={}, start=5000)
    assert found.read(1.0) == []


def test_the_kernels_own_and_processes_of_others_are_left_out(tmp_path: Path, run: Path) -> None:
    process(tmp_path, 2, 0, name="kthreadd")
    process(tmp_path, 70, 2, name="kworker")
    process(tmp_path, 71, environ=_started(run, 0))
    (tmp_path / "proc/loadavg").write_text("1")
    assert set(Table(str(tmp_path), os.getuid()).read()) == {71}
    assert set(Table(str(tmp_path), os.getuid() + 1).read()) == set()
