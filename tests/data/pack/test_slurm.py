"""`srun -n N rankup pack …`: the tasks of a step share the work."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rankup.data.pack import engine, lead, slurm, steps
from rankup.data.pack.request import Request, target
from rankup.data.pack.workers import Lost
from tests.slurm.cluster import Cluster

from .made import Running, held, made, request, run, same_samples, slow, small_units, tree


def _task(task: int, tasks: int, step: str = "7.0", seconds: float = 0.001) -> None:
    """Make this process a task of a step."""
    slow(seconds)()
    job, _, number = step.partition(".")
    os.environ.update(
        SLURM_JOB_ID=job,
        SLURM_STEP_ID=number,
        SLURM_PROCID=str(task),
        SLURM_STEP_NUM_TASKS=str(tasks),
    )
    slurm.BEAT, slurm._LOOK = 0.05, 0.02


def _step(
    asked: Request, folder: Path, tasks: int, seconds: float = 0.001, step: str = "7.0"
) -> list[Running]:
    # The others are there before the first, which must not matter.
    return [
        Running(asked, folder / f"log-{task}", lambda task=task: _task(task, tasks, step, seconds))
        for task in reversed(range(tasks))
    ][::-1]


def test_tasks_share_the_work(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 150)
    asked = request(source, tmp_path, "arrow", workers=2)
    ended = [one.wait() for one in _step(asked, tmp_path, 3)]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    # Only the first one speaks.
    assert "done: " in ended[0][1]
    assert [said for _, said in ended[1:]] == ["", ""]
    same_samples(Path(asked.out), source)
    alone = request(source, tmp_path / "alone", "arrow", workers=1)
    with small_units():
        assert run(alone) == 0
    assert made(Path(asked.out)) == made(Path(alone.out))
    left = set(os.listdir(tmp_path)) - {"source", "alone", "log-0", "log-1", "log-2"}
    assert left == {name for name in left if name.startswith("out") and "part" not in name}


def test_others_of_a_stream_just_end(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 30)
    asked = request(source, tmp_path, "squashfs")
    ended = [one.wait() for one in _step(asked, tmp_path, 2)]
    assert [code for code, _ in ended] == [0, 0], ended
    same_samples(Path(asked.out), source)


def test_a_refusal_ends_all_tasks(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 5)
    asked = request(source, tmp_path, "tar")
    assert run(asked) == 0
    (code, said), *others = [one.wait() for one in _step(asked, tmp_path, 3)]
    assert code == 2
    assert "it is not overwritten" in said
    assert others == [(2, ""), (2, "")]


def test_a_task_that_fails_ends_all(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 150)
    asked = request(source, tmp_path, "tar", workers=1)

    def before(task: int) -> None:
        _task(task, 2)
        unit = engine.Copier.unit

        def fails(self: engine.Copier, number: int, sync: bool) -> object:
            if number > 3:
                raise OSError(5, "Input/output error", "/the/disk")
            return unit(self, number, sync)

        if task == 1:
            engine.Copier.unit = fails  # type: ignore[assignment,method-assign]

    ended = _two(asked, tmp_path, before)
    assert [code for code, _ in ended] == [1, 1], ended
    assert "/the/disk" in ended[0][1]
    assert "task 1 on " in ended[0][1]
    # What is there can be gone on with, by another number of tasks.
    again = request(source, tmp_path, "tar", resume=True)
    ended = [one.wait() for one in _step(again, tmp_path, 3, step="7.1")]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    assert "going on: " in ended[0][1]
    same_samples(Path(asked.out), source)


def _two(asked: Request, folder: Path, before: Callable[[int], None]) -> list[tuple[int, str]]:
    """What two tasks say at their end, each after `before(task)`."""
    step = [
        Running(asked, folder / f"log-{task}", lambda task=task: before(task)) for task in range(2)
    ]
    return [one.wait() for one in step]


@pytest.mark.parametrize("victim", [0, 1])
def test_an_exception_that_nobody_expects_ends_all(tmp_path: Path, victim: int) -> None:
    source = tree(tmp_path / "source", 60)
    asked = request(source, tmp_path, "tar", workers=1)

    def before(task: int) -> None:
        _task(task, 2, seconds=0.1)
        if task == victim:

            def fails(*_: object, **__: object) -> None:
                raise MemoryError("it is full")

            steps.copied = fails

    ended = _two(asked, tmp_path, before)
    assert ended[victim][0] == 99, ended
    assert "MemoryError" in ended[victim][1]
    assert ended[1 - victim][0] == 1, ended
    if victim:  # else the first one has said it
        assert "task 1 on " in ended[0][1]
        assert "MemoryError: it is full" in ended[0][1]
    # The last one that leaves clears up.
    assert not [name for name in os.listdir(tmp_path) if ".step-" in name]


def test_others_that_have_left_are_not_waited_for(tmp_path: Path) -> None:
    """Not even where one had no space to say why."""
    source = tree(tmp_path / "source", 60)
    asked = request(source, tmp_path, "tar", workers=1)

    def before(task: int) -> None:
        _task(task, 2)
        if task == 1:
            steps.copied = lambda *_, **__: None

    (code, said), (other, _) = _two(asked, tmp_path, before)
    assert (code, other) == (1, 0)
    assert "the other tasks have ended, and " in said


def test_a_silent_task_is_noticed(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 60)
    asked = request(source, tmp_path, "tar", workers=1)

    def before(task: int) -> None:
        _task(task, 2)
        if task:
            held(tmp_path / "gate")()
        else:
            lead.Others = partial(slurm.Others, silent=0.5)

    first, second = (
        Running(asked, tmp_path / f"log-{task}", lambda task=task: before(task))
        for task in range(2)
    )
    while not (tmp_path / "out.part" / "begun.json").exists() and not first.ended():
        time.sleep(0.005)
    second.kill()
    code, said = first.wait()
    assert code == 1
    assert "task 1 of 2 has given no sign of life" in said
    assert not Path(asked.out).exists()


def test_a_signal_ends_all_tasks(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 150)
    asked = request(source, tmp_path, "tar", workers=1)
    step = _step(asked, tmp_path, 2, seconds=0.2)
    while not (tmp_path / "out.part" / "begun.json").exists():
        assert not step[0].ended(), step[0].wait()
    os.kill(step[0].pid, signal.SIGTERM)
    ended = [one.wait() for one in step]
    assert [code for code, _ in ended] == [143, 143], ended
    assert "--resume" in ended[0][1]


def test_a_step_is_known_by_what_srun_sets(tmp_path: Path) -> None:
    goal = target(str(tmp_path / "out.h5"), None)
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert slurm.team(batch, goal) is None
    step = {**batch, "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    found = slurm.team(step, goal)
    assert found is not None
    assert (found.task, found.tasks, found.folder.name) == (0, 4, ".out.h5.step-7.1.0")
    # The same job in its next life.
    again = slurm.team({**step, "SLURM_RESTART_COUNT": "1"}, goal)
    assert again is not None
    assert again.folder != found.folder
    assert slurm.team({**step, "SLURM_STEP_NUM_TASKS": "1"}, goal) is None
    assert slurm.team({**step, "SLURM_PROCID": "x"}, goal) is None


def test_a_task_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = slurm.Others(slurm.Team(0, 2, tmp_path), silent=50.0)
    for now in (100.0, 140.0):
        monkeypatch.setattr("time.monotonic", lambda now=now: now)
        others.check()
    monkeypatch.setattr("time.monotonic", lambda: 151.0)
    with pytest.raises(Lost, match="task 1 of 2"):
        others.check()


@pytest.mark.slow
def test_srun(tmp_path: Path, slurm: Cluster) -> None:
    """On a real Slurm: two nodes, two tasks."""
    source = tree(tmp_path / "source", 200, largest=300_000)
    out = tmp_path / "out.h5"
    command = [sys.executable, "-m", "rankup", "pack", str(source), str(out), "--json"]
    text = slurm.command("srun", "-N2", "-n2", "-t1", *command, cwd=tmp_path)
    assert json.loads(text)["tasks"] == 2
    same_samples(out, source)
    assert not [name for name in os.listdir(tmp_path) if ".step-" in name or ".part" in name]
