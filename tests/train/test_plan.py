"""Which samples belong to which step, micro-batch and rank: pure functions of the place."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.runtime.order import Order
from rankup.train.plan import Place, Plan, Step, micro_batches

PLANS = st.builds(
    Plan,
    n=st.integers(1, 120),
    global_batch=st.integers(1, 40),
    micro_batch=st.integers(1, 12),
    seed=st.integers(0, 3),
)


def _steps(plan: Plan, epochs: int, place: Place | None = None) -> list[Step]:
    return list(plan.steps(place or Place(), epochs * plan.steps_per_epoch))


@given(PLANS)
def test_an_epoch_is_its_order_cut_into_global_batches(plan: Plan) -> None:
    steps = _steps(plan, 2)
    for epoch in range(2):
        mine = [step for step in steps if step.after.epoch == epoch]
        assert len(mine) == plan.steps_per_epoch
        assert torch.equal(
            torch.cat([step.samples for step in mine]),
            Order(plan.n, plan.seed, epoch)(torch.arange(plan.n)),
        )
        sizes = [len(step.samples) for step in mine]
        assert sizes[:-1] == [plan.global_batch] * (len(mine) - 1)
        assert 1 <= sizes[-1] <= plan.global_batch


@given(PLANS)
def test_a_step_knows_its_number_and_the_place_after_it(plan: Plan) -> None:
    consumed = 0
    for number, step in enumerate(_steps(plan, 2), 1):
        consumed += len(step.samples)
        epoch = (number - 1) // plan.steps_per_epoch
        assert step.number == step.after.step == number
        assert step.after == Place(number, epoch, consumed - epoch * plan.n)


@given(PLANS, st.data())
def test_the_steps_after_a_place_are_those_of_the_whole_run(
    plan: Plan, data: st.DataObject
) -> None:
    steps = _steps(plan, 3)
    done = data.draw(st.integers(1, len(steps)))
    rest = _steps(plan, 3, steps[done - 1].after)
    assert [step.after for step in rest] == [step.after for step in steps[done:]]
    for ours, theirs in zip(rest, steps[done:], strict=True):
        assert torch.equal(ours.samples, theirs.samples)
        assert ours.micro_batches == theirs.micro_batches


@given(st.integers(0, 200), st.integers(1, 30))
def test_micro_batches_cut_by_position_and_the_last_may_be_short(size: int, micro: int) -> None:
    cuts = micro_batches(size, micro)
    assert [position for cut in cuts for position in cut] == list(range(size))
    assert all(len(cut) == micro for cut in cuts[:-1])
    assert all(1 <= len(cut) <= micro for cut in cuts)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 9))
def test_every_micro_batch_is_of_one_rank(size: int, micro: int, world_size: int) -> None:
    step = Step(1, torch.arange(size), micro_batches(size, micro), Place(1, 0, size))
    parts = [step.part(rank, world_size) for rank in range(world_size)]
    assert [index for part in parts for index in part] == list(range(len(step.micro_batches)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    # Where a forward is a collective all ranks go through it equally often.
    rounds = [step.weighted(rank, world_size, together=True) for rank in range(world_size)]
    assert len({*map(len, rounds)}) == 1
    assert [[index for index, weight in own if weight] for own in rounds] == [*map(list, parts)]
    for rank in range(world_size):
        assert len(step.weighted(rank, world_size, together=False)) == max(1, len(parts[rank]))


def test_the_order_is_drawn_in_blocks_without_seams() -> None:
    plan = Plan(200_017, 1000, 100, seed=4)
    samples = torch.cat([step.samples for step in _steps(plan, 1)])
    assert torch.equal(samples, Order(plan.n, 4, 0)(torch.arange(plan.n)))


def test_a_global_batch_larger_than_a_block_or_the_data() -> None:
    for n, batch in [(140_005, 70_003), (10, 24)]:
        plan = Plan(n, batch, batch, seed=0)
        assert sum(len(step.samples) for step in _steps(plan, 1)) == n
