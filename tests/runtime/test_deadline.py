"""The deadline: when it is, and that all ranks come to it together."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rankup.runtime import deadline as module
from rankup.runtime.deadline import GO_ON, Deadline, ask_for_next_attempt, seconds_left

_VARIABLES = ("RANKUP_END_TIME", "SLURM_JOB_END_TIME", "SLURM_JOB_ID", "RANKUP_RUN_DIR")


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of a job, and the handler as it was afterwards."""
    for name in (*_VARIABLES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


# --- alone: when


def test_outside_a_job_there_is_no_end() -> None:
    deadline = Deadline()
    assert deadline.end is None
    assert [deadline.reached() for _ in range(5)] == [False] * 5
    assert ask_for_next_attempt() is None


def test_the_job_scripts_end_comes_before_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "3000000000")
    assert Deadline().end == 3e9
    monkeypatch.setenv("RANKUP_END_TIME", "2000000000")
    assert Deadline().end == 2e9
    assert Deadline(end=1e9).end == 1e9


@pytest.mark.parametrize("value", ["tomorrow", "2030-01-01", "12:00", "nan"])
def test_an_end_that_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RANKUP_END_TIME", value)
    with pytest.raises(RuntimeError, match=r"RANKUP_END_TIME='.*' is not a time in seconds"):
        Deadline()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5:00", 300), ("0:07", 7), ("1:00:00", 3600), ("1-02:03:04", 93784), (" 10:00\n", 600),
     ("UNLIMITED", None), ("NOT_SET", None), ("INVALID", None), ("", None), ("5", None)],
)  # fmt: skip
def test_the_time_left_as_squeue_says_it(text: str, expected: float | None) -> None:
    assert seconds_left(text) == expected


def _fake_squeue(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "squeue"
    program.write_text(f'#!/bin/sh\necho "$*" >"{folder}/asked"\n{text}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "42")


def test_in_a_job_without_variables_squeue_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_squeue(tmp_path, "echo 10:00", monkeypatch)
    end = Deadline().end
    assert end is not None
    assert 300 < end - time.time() <= 600
    assert (tmp_path / "asked").read_text() == "--noheader --jobs=42 --format=%L\n"


@pytest.mark.parametrize("text", ["echo UNLIMITED", "echo broken >&2; exit 1", "true"])
def test_where_squeue_knows_nothing_there_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    _fake_squeue(tmp_path, text, monkeypatch)
    assert Deadline().end is None


def test_several_ranks_have_to_set_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call rankup.setup\(\) before Deadline\(\)"):
        Deadline()


# --- alone: the margin


class Clock:
    """Both clocks of the deadline, which stand still until they are told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e9
        monkeypatch.setattr(module.time, "time", lambda: self.now)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with monkeypatch.context() as patch:
        yield Clock(patch)


@pytest.mark.parametrize(
    ("given", "reserve", "unmeasured"),
    [(0, 5, 0), (60, 5, 6), (600, 30, 60), (1200, 60, 120), (3600, 60, 300), (86400, 60, 300)],
)
def test_the_margin_before_anything_is_measured(
    clock: Clock, given: float, reserve: float, unmeasured: float
) -> None:
    assert Deadline(end=clock.now + given).margin == pytest.approx(reserve + unmeasured)


def test_the_margin_is_twice_the_longest_save_and_step(clock: Clock) -> None:
    deadline = Deadline(end=clock.now + 1000)

    def step(seconds: float) -> None:
        clock.now += seconds
        deadline.tick()

    for seconds in (30, 20):  # the first ones are slow for other reasons
        step(seconds)
    assert deadline.margin == 50 + 100
    for seconds in (2, 3, 1):
        step(seconds)
    assert deadline.margin == 50 + 100 + 2 * 3
    for seconds in (7, 9, 8):
        with deadline.saving():
            clock.now += seconds
        step(1)
    assert deadline.margin == 50 + 2 * 9 + 2 * 3, "a save is no part of a step"


@pytest.mark.parametrize("place", ["begin", "end"])
def test_a_step_with_a_save_in_it_counts_without_it(clock: Clock, place: str) -> None:
    deadline = Deadline(end=clock.now + 1000)
    for number, seconds in enumerate((1, 1, 4, 2)):
        clock.now += seconds if place == "end" else 0
        if number >= 2:
            with deadline.saving():
                clock.now += 5
            with deadline.saving():  # and another one
                clock.now += 10
        clock.now += 0 if place == "end" else seconds
        deadline.tick()
    assert deadline.margin == 50 + 2 * 10 + 2 * 4


def test_a_step_behind_a_save_is_measured(clock: Clock) -> None:
    deadline = Deadline(end=clock.now + 1000)
    for _ in range(3):
        deadline.tick()
        with deadline.saving():
            clock.now += 10
    deadline.tick()
    clock.now += 6
    deadline.tick()
    assert deadline.margin == 50 + 2 * 10 + 2 * 6


@pytest.mark.parametrize(("margin", "given"), [(100, 100), (101, 100), (5, 0), (0, 0), (5, -50)])
def test_a_margin_that_is_all_the_time_there_is_is_refused(
    clock: Clock, margin: float, given: float
) -> None:
    with pytest.raises(RuntimeError, match=rf"Deadline\(margin={margin}\): only {max(0, given)} s"):
        Deadline(margin=margin, end=clock.now + given)


def test_a_margin_that_leaves_time_is_taken(clock: Clock) -> None:
    assert not Deadline(margin=99, end=clock.now + 100).wish
    assert Deadline(margin=1e9).margin == 1e9, "there is no end to come too near to"
    assert Deadline(end=clock.now - 50).wish == GO_ON, "without a margin it stops at once"


def test_a_save_that_fails_is_measured(clock: Clock) -> None:
    deadline = Deadline(end=clock.now + 1000)
    with suppress(OSError), deadline.saving():
        clock.now += 11
        raise OSError("no space left")
    assert deadline.margin == 50 + 22


def test_it_is_reached_at_the_margin_and_said_one_step_later(clock: Clock) -> None:
    deadline = Deadline(margin=10, end=clock.now + 100)
    assert deadline.margin == 10
    clock.now += 89.9
    assert not deadline.wish
    assert not deadline.reached()
    clock.now += 0.2
    assert deadline.wish == GO_ON
    assert [deadline.reached() for _ in range(3)] == [False, True, True]


# --- alone: the signal


def test_a_signal_brings_the_end_forward() -> None:
    deadline = Deadline()
    assert not deadline.reached()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert deadline.wish == GO_ON
    assert [deadline.reached() for _ in range(2)] == [False, True]


def test_another_signal_can_be_named() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        deadline = Deadline(signals=(signal.SIGUSR2,))
        os.kill(os.getpid(), signal.SIGUSR2)
        assert deadline.wish == GO_ON
    finally:
        signal.signal(signal.SIGUSR2, before)


def _signalled_child(deadline: Deadline) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(int(deadline.wish))


def test_a_forked_child_does_not_react() -> None:
    deadline = Deadline()
    child = multiprocessing.get_context("fork").Process(target=_signalled_child, args=(deadline,))
    child.start()
    child.join(20)
    assert child.exitcode == 0, "neither killed by the signal nor wishing to stop"
    assert deadline.wish == 0


def test_leaving_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKUP_RUN_DIR", str(tmp_path))
    deadline = Deadline(end=0)
    assert [deadline.reached() for _ in range(2)] == [False, True]
    with pytest.raises(SystemExit) as left:
        deadline.leave()
    assert left.value.code == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "requeue"]
    assert json.loads((tmp_path / "requeue").read_text())["time"] == pytest.approx(
        time.time(), abs=60
    )


def test_without_a_run_directory_the_marker_is_named_after_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    assert ask_for_next_attempt() == Path("requeue.42")
    assert [path.name for path in tmp_path.iterdir()] == ["requeue.42"]


def test_the_second_signal_that_ends_a_run_ends_the_process() -> None:
    """That of the same second is the first one's, handed on."""
    program = (
        "import os, signal, time\n"
        "clock = [100.0]\n"
        "time.monotonic = lambda: clock[0]\n"
        "from rankup.runtime.deadline import END, Deadline\n"
        "deadline = Deadline()\n"
        "for clock[0] in (100.0, 100.1, 100.2, 103.0):\n"
        "    os.kill(os.getpid(), signal.SIGTERM if clock[0] > 100.0 else signal.SIGUSR1)\n"
        "    print(clock[0], deadline.wish == END, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == "100.0 False\n100.1 True\n100.2 True\n"
