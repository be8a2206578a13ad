"""`srun -n N rankup pack …`: the tasks of a step share the work."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.data.pack import write
from rankup.data.pack.source import Request, Step
from tests.slurm.cluster import Cluster

from .made import Running, made, request, run, same_samples, slow, small_units, tree


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
    assert left == {"out"}
    # It is there as it was asked for; and one that comes late has nothing to do.
    again = _step(replace(asked, resume=True), tmp_path, 2, step="7.1")
    assert [one.wait()[0] for one in again] == [0, 0]


def test_others_of_a_stream_just_end(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 30)
    asked = request(source, tmp_path, "squashfs")
    ended = [one.wait() for one in _step(asked, tmp_path, 2)]
    assert [code for code, _ in ended] == [0, 0], ended
    same_samples(Path(asked.out), source)


def test_a_task_that_fails_says_why_and_others_go_on_with_what_is_there(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 150)
    asked = request(source, tmp_path, "tar", workers=1)

    def before(task: int) -> None:
        _task(task, 2)
        unit = write.Copier.unit

        def fails(self: write.Copier, number: int, sync: bool) -> object:
            if number > 3:
                raise OSError(5, "Input/output error", "/the/disk")
            return unit(self, number, sync)

        if task == 1:
            write.Copier.unit = fails  # type: ignore[assignment,method-assign]

    first, second = (
        Running(asked, tmp_path / f"log-{task}", lambda task=task: before(task))
        for task in range(2)
    )
    code, said = second.wait()
    assert code == 1
    assert "/the/disk" in said
    assert not first.ended()  # the first one waits for it; srun ends it with --kill-on-bad-exit
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait()[0] == 143
    again = request(source, tmp_path, "tar", resume=True)
    ended = [one.wait() for one in _step(again, tmp_path, 3, step="7.1")]
    assert [code for code, _ in ended] == [0, 0, 0], ended
    assert "going on: " in ended[0][1]
    same_samples(Path(asked.out), source)


def test_a_signal_ends_a_task_that_waits_for_the_first(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 5)
    asked = request(source, tmp_path, "tar", workers=1)
    # What an earlier step has left is not what it waits for.
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "begun.json").write_text('{"step": "6.0"}')
    waiting = Running(asked, tmp_path / "log", lambda: _task(1, 2))
    while not _has_handler(waiting.pid, signal.SIGTERM):
        assert not waiting.ended()
    os.kill(waiting.pid, signal.SIGTERM)
    assert waiting.wait()[0] == 143


def _has_handler(pid: int, number: int) -> bool:
    [caught] = [
        line.split()[1]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigCgt")
    ]
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_step_is_known_by_what_srun_sets() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    assert Step.of(batch) == Step()
    step = {**batch, "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    found = Step.of(step)
    assert (found.task, found.tasks) == (0, 4)
    # The same job when it has started again, on machines that count that and on others.
    for again in ("SLURM_RESTART_COUNT", "SLURM_JOB_START_TIME"):
        assert Step.of({**step, again: "1"}).name != found.name
    assert Step.of({**step, "SLURM_STEP_NUM_TASKS": "1"}) == Step()
    assert Step.of({**step, "SLURM_PROCID": "x"}) == Step()


@pytest.mark.slow
def test_srun(tmp_path: Path, slurm: Cluster) -> None:
    """On a real Slurm: two nodes, two tasks."""
    source = tree(tmp_path / "source", 200, largest=300_000)
    out = tmp_path / "out.h5"
    command = [sys.executable, "-m", "rankup", "pack", str(source), str(out), "--json"]
    words = ["-N2", "-n2", "-t1", "--kill-on-bad-exit=1"]
    text = slurm.command("srun", *words, *command, cwd=tmp_path)
    assert json.loads(text)["tasks"] == 2
    same_samples(out, source)
    assert not [name for name in os.listdir(tmp_path) if ".part" in name]


@pytest.mark.slow
def test_srun_ends_all_when_one_has_failed(tmp_path: Path, slurm: Cluster) -> None:
    """As the page says it; and what is there can be gone on with."""
    source = tree(tmp_path / "source", 50)
    out = tmp_path / "out.h5"
    pack = f"{sys.executable} -m rankup pack {source} {out}"
    fails = f'[ "$SLURM_PROCID" = 1 ] && exit 3; exec {pack}'
    ended = slurm.run(
        *("srun", "-N2", "-n2", "-t1", "--kill-on-bad-exit=1", "bash", "-c", fails), cwd=tmp_path
    )
    assert ended.returncode
    assert not out.exists()
    slurm.command("srun", "-N2", "-n2", "-t1", *pack.split(), "--resume", cwd=tmp_path)
    same_samples(out, source)
