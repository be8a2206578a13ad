"""Ranks that hang: the verdict comes in time, and none comes where nothing hangs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from rankup.runtime.hang.watch import Watch, stop_watching
from rankup.runtime.world import World
from tests.pool import RankPool

TIMEOUT = 12.0  # enough for every rank to answer on a busy machine


def _watched(act: Callable[[], object]) -> tuple[list[str], str]:
    """What a watch says while `act` runs, and what `act` raised."""
    stop_watching()  # the one of setup() would end the process
    store = dist.distributed_c10d._get_default_store()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT))
    said: list[str] = []
    watch = Watch(store, timedelta(seconds=TIMEOUT), tell=said.append)
    dist.barrier()
    watch.start()
    error = ""
    try:
        act()
    except RuntimeError as raised:
        error = str(raised)
    watch.halt()
    return said, error


def _said(ranks: RankPool, size: int, program: Callable[[World], tuple[list[str], str]]) -> str:
    """What the one rank says that speaks for all."""
    [said] = [text for texts, _ in ranks.run(size, program) for text in texts]
    return said


def _slow_but_sound(world: World) -> tuple[list[str], str]:
    """Rank 1 validates for most of the time that a collective is given."""

    def act() -> None:
        for _ in range(20):
            dist.all_reduce(torch.ones(3))
        if world.rank == 1:
            time.sleep(0.6 * TIMEOUT)
        dist.all_reduce(torch.ones(3))

    return _watched(act)


@pytest.mark.slow
def test_a_rank_that_is_late_is_no_hang(ranks: RankPool) -> None:
    assert ranks.run(2, _slow_but_sound) == [([], ""), ([], "")]


def _different(world: World) -> tuple[list[str], str]:
    def act() -> None:
        if world.rank == 1:
            dist.broadcast(torch.ones(4), 0)
            time.sleep(TIMEOUT + 1)
        else:
            dist.all_reduce(torch.ones(3))

    return _watched(act)


@pytest.mark.slow
def test_different_operations(ranks: RankPool) -> None:
    said = _said(ranks, 2, _different)
    assert "broadcast (float32 [4])" in said
    assert "all_reduce (float32 [3])" in said


def _in_a_part(world: World) -> tuple[list[str], str]:
    """Ranks 0 and 1 have a group of their own, in which 1 is missing; 2 waits for all."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT), group_desc="mesh_tp")

    def act() -> None:
        if world.rank == 1:
            time.sleep(TIMEOUT + 1)
        if world.rank == 0:
            dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(1))

    return _watched(act)


@pytest.mark.slow
def test_a_group_of_some_ranks(ranks: RankPool) -> None:
    said = _said(ranks, 3, _in_a_part)
    last = said.splitlines()[-1]
    assert "of group tp (ranks 0-1)" in last or "all ranks" in last
    assert "rank 1 on " in last
    assert "did not arrive: it is at test_watch.py:" in last


def _ends_with_the_group(world: World) -> tuple[bool, bool]:
    def watching() -> bool:
        return any(isinstance(thread, Watch) for thread in threading.enumerate())

    before = watching()
    stop_watching()
    return before, watching()


def test_setup_watches_and_the_watch_ends(ranks: RankPool) -> None:
    assert ranks.run(2, _ends_with_the_group) == [(True, False)] * 2


def _meets_the_time_limit(world: World) -> list[str]:
    stop_watching()
    store = dist.distributed_c10d._get_default_store()
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        store.set("test/told", "1")

    os.environ["RANKUP_END_TIME"] = str(time.time())
    watch = Watch(store, timedelta(minutes=5), tell=tell, still=1.0)
    del os.environ["RANKUP_END_TIME"]
    dist.barrier()
    watch.start()
    while world.rank == 1 and not store.check(["test/told"]):
        time.sleep(0.05)
    dist.barrier()  # the run goes on: nobody was ended
    watch.halt()
    store.delete_key("test/told")
    return said


def test_at_the_time_limit_is_said_what_ranks_wait_in(ranks: RankPool) -> None:
    [said] = [text for texts in ranks.run(2, _meets_the_time_limit) for text in texts]
    first, *_, last = said.splitlines()
    assert first == "at the job's time limit nothing moved:"
    assert " has not ended; " in last  # it had minutes left of its own
    assert "rank 1 on " in last
    assert "test_watch.py:" in last
