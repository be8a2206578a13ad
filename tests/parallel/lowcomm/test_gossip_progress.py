"""When a worker counts as stuck, and what its pulse does then."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch.distributed as dist

from rankup.parallel.lowcomm.gossip.alive import Progress
from rankup.parallel.lowcomm.gossip.board import Board, Pulse


def test_stuck_is_ten_times_longer_than_usual() -> None:
    now = [0.0]
    progress = Progress(3, 1000, lambda: now[0])
    now[0] = 999
    assert not progress.stuck, "a first step may take long"
    progress.step(1)
    now[0] += 31
    assert progress.stuck
    progress.moved()
    assert not progress.stuck
    progress.step(8)
    now[0] += 79
    assert not progress.stuck
    with progress.unhurried():
        now[0] += 900
        assert not progress.stuck
    assert not progress.stuck
    now[0] += 81
    assert progress.stuck


@pytest.mark.slow
def test_who_is_stuck_gives_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKUP_PATIENCE", "2")  # a beat each half second
    board = Board(dist.HashStore(), 2)
    board.prepare()
    now, asked = [0.0], [0]

    def clock() -> float:
        asked[0] += 1  # once in each turn of the pulse
        return now[0]

    progress = Progress(2, 1000, clock)
    pulse = Pulse(board, 0, print, progress)
    progress.step(0.0)
    _until(lambda: pulse.surely_speaker)
    now[0] += 100
    _until(lambda: not pulse.surely_speaker)  # four beats are over that it has not given
    _until(pulse.was_away)
    before = board.status().beats[0]
    turns = asked[0]
    _until(lambda: asked[0] >= turns + 3)
    assert board.status().beats[0] == before
    assert not pulse.surely_speaker
    assert pulse.was_away()
    progress.moved()
    _until(lambda: board.status().beats[0] > before)
    _until(lambda: pulse.surely_speaker)
    pulse.close()


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not come to pass")
