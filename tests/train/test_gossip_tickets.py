"""Each share of each step is handed out once, to whoever comes, also over a stop."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from rankup.parallel.lowcomm.gossip.board import Board
from rankup.runtime.order import Window
from rankup.train.gossip.tickets import Tickets
from rankup.train.plan import Place, Plan


def _board(workers: int) -> Board:
    board = Board(dist.HashStore(), workers)
    board.prepare()
    return board


@pytest.mark.parametrize("last", [1, 7, 12])
def test_random_access_is_the_sequence(last: int) -> None:
    plan = Plan(n=50, global_batch=8, micro_batch=3, seed=1)
    window = Window(plan.n, plan.seed)
    for step in plan.steps(Place(), last):
        found = plan.at(step.number, window)
        assert torch.equal(found.samples, step.samples)
        assert (found.micro_batches, found.after) == (step.micro_batches, step.after)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_every_sample_of_an_epoch_is_drawn_once(workers: int) -> None:
    plan = Plan(n=50, global_batch=8, micro_batch=3, seed=1)
    tickets = Tickets(_board(workers), plan, 0, plan.steps_per_epoch)
    drawn = list[int]()
    while (ticket := tickets.draw()) is not None:
        drawn += ticket.step.samples.tolist()
    assert sorted(drawn) == list(range(50))
    assert tickets.place() == Place(7, 0, 50)


def test_a_stop_ends_with_a_whole_step_and_the_next_attempt_goes_on_behind_it() -> None:
    plan = Plan(n=48, global_batch=8, micro_batch=2, seed=1)
    board = _board(3)
    tickets = Tickets(board, plan, 0, 6)
    for _ in range(4):
        tickets.draw()
    assert tickets.place().step == 2
    board.close()
    rest = [tickets.draw() for _ in range(3)]
    assert [ticket and ticket.number for ticket in rest] == [4, 5, None]
    place = tickets.place()
    assert place == Place(2, 0, 16)
    other = Tickets(_board(2), plan, place.step, 6)
    numbers = list[int]()
    while (ticket := other.draw()) is not None:
        numbers.append(ticket.step.number)
    assert numbers == [3, 3, 4, 4, 5, 5, 6, 6]
