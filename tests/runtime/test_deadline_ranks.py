"""The deadline over ranks: all stop at the same step, and leave together."""

from __future__ import annotations

import io
import os
import signal
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch.distributed as dist

from rankup.runtime.deadline import Deadline
from rankup.runtime.world import World, destroy_process_group
from tests.pool import RankPool


def _one_is_told(world: World, rank: int, at: int, number: signal.Signals) -> list[bool]:
    """The answers of ten steps, in one of which one rank gets the signal."""
    deadline, answers = Deadline(), []
    for step in range(10):
        if (world.rank, step) == (rank, at):
            os.kill(os.getpid(), number)
        answers.append(deadline.reached())
    destroy_process_group()
    return answers


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(
    ranks: RankPool, number: signal.Signals
) -> None:
    expected = [False] * 5 + [True] * 5  # asked in step 4, answered one step later
    assert ranks.run(3, _one_is_told, 2, 4, number) == [expected] * 3


def _clocks_differ(world: World) -> int:
    steps = 0
    deadline = Deadline(margin=0, end=time.time() + 0.5 + 3600 * world.rank)
    while not deadline.reached():
        steps += 1
    return steps


def test_the_first_clock_stops_all_at_the_same_step(ranks: RankPool) -> None:
    assert len({*ranks.run(3, _clocks_differ)}) == 1


def _leaves(world: World, folder: Path) -> tuple[object, bool, str]:
    """Exit code, whether the marker was there while a rank was still saving, what was printed."""
    os.environ["RANKUP_RUN_DIR"] = str(folder)
    deadline, early = Deadline(end=0), False
    while not deadline.reached():
        pass
    if world.rank == world.world_size - 1:
        time.sleep(0.5)  # it saves for longer than the others
        early = (folder / "requeue").exists()
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            deadline.leave()
    except SystemExit as left:
        return left.code, early, output.getvalue()


def test_all_leave_well_and_the_marker_comes_behind_the_last(
    ranks: RankPool, tmp_path: Path
) -> None:
    found = ranks.run(3, _leaves, tmp_path)
    assert [code for code, _, _ in found] == [0, 0, 0]
    assert not found[-1][1]
    assert [bool(output) for _, _, output in found] == [True, False, False]
    assert [path.name for path in tmp_path.iterdir()] == ["requeue"]


def _ended(world: World, folder: Path) -> tuple[object, str]:
    """Exit code and what was printed, where somebody ends the run."""
    os.environ["RANKUP_RUN_DIR"] = str(folder)
    deadline = Deadline()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    while not deadline.reached():
        pass
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            deadline.leave()
    except SystemExit as left:
        return left.code, output.getvalue()


def test_a_run_that_is_ended_saves_and_asks_for_no_next_attempt(
    ranks: RankPool, tmp_path: Path
) -> None:
    found = ranks.run(2, _ended, tmp_path)
    assert found == [(0, "stopped as the run was ended, after a checkpoint\n"), (0, "")]
    assert [*tmp_path.iterdir()] == []


def _ends_with_a_vote_pending(world: World) -> None:
    """The last vote is in flight when the loop is through; then other collectives follow."""
    deadline = Deadline()
    for _ in range(3):
        assert not deadline.reached()
    total = [None] * world.world_size
    dist.all_gather_object(total, world.rank)
    assert total == list(range(world.world_size))
    destroy_process_group()


def test_a_pending_vote_hangs_nobody_at_the_end(ranks: RankPool) -> None:
    ranks.run(3, _ends_with_a_vote_pending)


def _asks_slurm(world: World, folder: Path) -> float | None:
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    os.environ["SLURM_JOB_ID"] = "42"
    return Deadline().end


def test_one_rank_asks_slurm_for_all(ranks: RankPool, tmp_path: Path) -> None:
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\necho asked >>"{tmp_path}/asked"\necho 10:00\n')
    program.chmod(0o755)
    found = ranks.run(3, _asks_slurm, tmp_path)
    assert len(set(found)) == 1
    assert 300 < found[0] - time.time() <= 600
    assert (tmp_path / "asked").read_text() == "asked\n"
