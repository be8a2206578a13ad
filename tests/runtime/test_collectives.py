"""The collectives by their plain names, on 1 and 3 ranks."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rankup.runtime.collectives import (
    all_gather,
    all_gather_object,
    all_reduce,
    barrier,
    broadcast,
    mean,
    rank0_first,
    reduce_scatter,
)
from rankup.runtime.world import World
from tests.pool import RankPool

WORLD_SIZES = pytest.mark.parametrize("world_size", [1, 3])
OPS = ("sum", "mean", "min", "max")
Reducer = Callable[[list[float]], float]
EXPECTED: dict[str, Reducer] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
}


def _reductions(world: World) -> dict[str, tuple[list[float], float, bool]]:
    """Of the tensor (rank, 10 - rank) and the number rank + 0.5, with every operation."""
    found = {}
    for op in OPS:
        tensor = torch.tensor([float(world.rank), 10.0 - world.rank])
        result = all_reduce(tensor, op)
        found[op] = (result.tolist(), all_reduce(world.rank + 0.5, op), result is tensor)
    return found


@WORLD_SIZES
def test_all_reduce(ranks: RankPool, world_size: int) -> None:
    for found in ranks.run(world_size, _reductions):
        for op, reduce in EXPECTED.items():
            tensor, number, in_place = found[op]
            assert tensor == [
                reduce(list(range(world_size))),
                reduce([10 - rank for rank in range(world_size)]),
            ]
            assert number == reduce([rank + 0.5 for rank in range(world_size)])
            assert in_place


def _integers_and_views(world: World) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    integers = all_reduce(torch.tensor([2**40 + world.rank]))
    base = torch.arange(6.0).reshape(2, 3) + world.rank
    turned = all_reduce(base.t())
    return integers, turned, base


@WORLD_SIZES
def test_all_reduce_of_integers_and_of_a_transposed_view(ranks: RankPool, world_size: int) -> None:
    offset = sum(range(world_size))
    for integers, turned, base in ranks.run(world_size, _integers_and_views):
        assert integers.tolist() == [2**40 * world_size + offset]
        assert torch.equal(base, torch.arange(6.0).reshape(2, 3) * world_size + offset)
        assert torch.equal(turned, base.t()), "reduced in place"


def _means(world: World) -> tuple[float, float, str]:
    uneven = mean(torch.tensor(10.0 * world.rank), world.rank + 1)
    precise = mean(0.1, 1)
    try:
        mean(0.0, 0)
    except ZeroDivisionError as error:
        return uneven, precise, str(error)
    return uneven, precise, ""


@WORLD_SIZES
def test_mean_is_sum_over_count(ranks: RankPool, world_size: int) -> None:
    total, count = 10 * sum(range(world_size)), sum(range(1, world_size + 1))
    for uneven, precise, message in ranks.run(world_size, _means):
        assert uneven == pytest.approx(total / count, rel=1e-15)
        assert precise == pytest.approx(0.1, rel=1e-15), "not through float32"
        assert "over no samples" in message


def _broadcasts(world: World) -> tuple[Any, ...]:
    tensor = torch.full((2, 2), float(world.rank))
    same = broadcast(tensor) is tensor
    last = broadcast({"rank": world.rank, "text": "ü" * world.rank}, source=world.world_size - 1)
    return same, tensor, last


@WORLD_SIZES
def test_broadcast(ranks: RankPool, world_size: int) -> None:
    for same, tensor, last in ranks.run(world_size, _broadcasts):
        assert same
        assert torch.equal(tensor, torch.zeros(2, 2))
        assert last == {"rank": world_size - 1, "text": "ü" * (world_size - 1)}


def _broadcasts_of_an_evaluation(world: World) -> tuple[Any, ...]:
    with torch.inference_mode():
        loss = torch.tensor(float(world.rank))
    return broadcast(loss), broadcast((loss, {"rows": [loss]}, world.rank))


@WORLD_SIZES
def test_broadcast_of_what_an_evaluation_returns(ranks: RankPool, world_size: int) -> None:
    """Tensors that were made in inference mode, alone and in containers."""
    for loss, several in ranks.run(world_size, _broadcasts_of_an_evaluation):
        assert (loss.item(), several) == (0, (0, {"rows": [0]}, 0))


def _gathers(world: World) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[Any]]:
    table = torch.arange(6.0).reshape(2, 3) + 10 * world.rank
    scalar = all_gather(torch.tensor(world.rank))
    return all_gather(table), all_gather(table.t()), scalar, all_gather_object("x" * world.rank)


@WORLD_SIZES
def test_all_gather(ranks: RankPool, world_size: int) -> None:
    tables = [torch.arange(6.0).reshape(2, 3) + 10 * rank for rank in range(world_size)]
    for stacked, turned, scalars, objects in ranks.run(world_size, _gathers):
        assert torch.equal(stacked, torch.stack(tables))
        assert torch.equal(turned, torch.stack([table.t() for table in tables]))
        assert scalars.tolist() == list(range(world_size))
        assert objects == ["x" * rank for rank in range(world_size)]


def _scatters(world: World) -> dict[str, torch.Tensor]:
    rows = torch.arange(12.0).reshape(6, 2) * (world.rank + 1)
    found = {op: reduce_scatter(rows, op) for op in OPS}
    found["turned"] = reduce_scatter(rows.reshape(2, 6).t())
    found["input"] = rows
    return found


@WORLD_SIZES
def test_reduce_scatter(ranks: RankPool, world_size: int) -> None:
    rows, size = torch.arange(12.0).reshape(6, 2), 6 // world_size
    factors: list[float] = [rank + 1 for rank in range(world_size)]
    for rank, found in enumerate(ranks.run(world_size, _scatters)):
        mine = slice(rank * size, (rank + 1) * size)
        for op, reduce in EXPECTED.items():
            assert torch.allclose(found[op], rows[mine] * reduce(factors)), op
        assert torch.equal(found["turned"], rows.reshape(2, 6).t()[mine] * sum(factors))
        assert torch.equal(found["input"], rows * (rank + 1)), "the input is left alone"


def _wrong_uses(world: World) -> list[str]:
    wrong: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ValueError, partial(all_reduce, torch.zeros(1), "product")),
        (ValueError, partial(all_reduce, 1.0, "average")),
        (ValueError, partial(reduce_scatter, torch.zeros(6), "median")),
        (TypeError, partial(all_reduce, torch.tensor([1, 2]), "mean")),
    ]
    if world.world_size > 1:
        wrong.append((ValueError, partial(reduce_scatter, torch.zeros(world.world_size + 1))))
    messages = []
    for kind, call in wrong:
        with pytest.raises(kind) as caught:
            call()
        messages.append(str(caught.value))
    return messages


@pytest.mark.parametrize("world_size", [1, 3])
def test_wrong_uses_are_named(ranks: RankPool, world_size: int) -> None:
    for messages in ranks.run(world_size, _wrong_uses):
        assert [text for text in messages[:3] if "'sum', 'mean', 'min' or 'max'" not in text] == []
        assert "int64" in messages[3]
        assert all("4 does not divide" in text for text in messages[4:])


def _meet(world: World) -> tuple[float, float]:
    time.sleep(0.2 * world.rank)
    arrived = time.monotonic()
    barrier()
    return arrived, time.monotonic()


@WORLD_SIZES
def test_barrier(ranks: RankPool, world_size: int) -> None:
    times = ranks.run(world_size, _meet)
    assert max(arrived for arrived, _ in times) <= min(left for _, left in times)


def _prepare(result: str, folder: Path, rank: int) -> tuple[str, float, float]:
    began = time.monotonic()
    time.sleep(0.1)
    (folder / str(rank)).touch()
    return result, began, time.monotonic()


def _first_as_call(world: World, folder: Path, per_node: bool) -> Any:
    _two_ranks_per_node(world, per_node)
    return rank0_first(_prepare, "ready", folder, rank=world.rank, per_node=per_node)


def _first_as_manager(world: World, folder: Path, per_node: bool) -> Any:
    _two_ranks_per_node(world, per_node)
    with rank0_first(per_node=per_node):
        return _prepare("ready", folder, world.rank)


def _two_ranks_per_node(world: World, per_node: bool) -> None:
    if per_node:
        os.environ.update(LOCAL_RANK=str(world.rank % 2), LOCAL_WORLD_SIZE="2")


@pytest.mark.parametrize("function", [_first_as_call, _first_as_manager])
@pytest.mark.parametrize(("world_size", "per_node"), [(1, False), (3, False), (4, True)])
def test_rank0_first(
    ranks: RankPool, tmp_path: Path, function: Any, world_size: int, per_node: bool
) -> None:
    answers = ranks.run(world_size, function, tmp_path, per_node)
    assert [result for result, _, _ in answers] == ["ready"] * world_size
    assert len(list(tmp_path.iterdir())) == world_size
    leads = [rank % 2 == 0 if per_node else rank == 0 for rank in range(world_size)]
    leaders = [ended for (_, _, ended), first in zip(answers, leads, strict=True) if first]
    followers = [began for (_, began, _), first in zip(answers, leads, strict=True) if not first]
    assert not followers or max(leaders) <= min(followers)


def _loaded(folder: Path) -> int:
    """What a data set of another file does: it loads what a further call made, and waits for it."""
    if not folder.exists():
        with rank0_first():
            folder.mkdir()
        barrier()
    return len(list(folder.parent.iterdir()))


def _first_within_first(world: World, folder: Path) -> int:
    made = rank0_first(_loaded, folder / "made")
    barrier()  # which waits again
    return made


def test_a_call_within_rank0_first_waits_for_no_rank(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, _first_within_first, tmp_path) == [1, 1]


def _drawn_by_the_first(world: World) -> tuple[float, float]:
    with rank0_first():
        if world.rank == 0:  # as where a file is missing
            random.random()
            torch.rand(3)
    return random.random(), torch.rand(1).item()


def test_what_the_first_rank_draws_parts_no_rank(ranks: RankPool) -> None:
    assert len(set(ranks.run(3, _drawn_by_the_first))) == 1


def _fail(rank: int, failing: int) -> None:
    if rank == failing:
        raise FileNotFoundError("no such cache")


def _failing_leader(world: World, per_node: bool, failing: int, as_call: bool) -> tuple[str, str]:
    _two_ranks_per_node(world, per_node)
    entered = "no"
    try:
        if as_call:
            rank0_first(_fail, world.rank, failing, per_node=per_node)
        else:
            with rank0_first(per_node=per_node):
                entered = "yes"
                _fail(world.rank, failing)
    except (FileNotFoundError, RuntimeError) as error:
        barrier()  # the group still works
        return entered, f"{type(error).__name__}: {error}"
    return entered, ""


@pytest.mark.parametrize("as_call", [False, True])
@pytest.mark.parametrize(
    ("world_size", "per_node", "failing"), [(1, False, 0), (3, False, 0), (4, True, 2)]
)
def test_a_failing_leader_raises_on_every_rank(
    ranks: RankPool, world_size: int, per_node: bool, failing: int, as_call: bool
) -> None:
    answers = ranks.run(world_size, _failing_leader, per_node, failing, as_call)
    for rank, (entered, message) in enumerate(answers):
        if rank == failing:
            assert message == "FileNotFoundError: no such cache"
        else:
            assert message.startswith("RuntimeError")
            assert f"rank {failing}: FileNotFoundError: no such cache" in message
        leads = rank % 2 == 0 if per_node else rank == 0
        assert as_call or entered == ("yes" if leads else "no")


def test_without_a_group() -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert all_reduce(tensor, "mean") is tensor
    assert all_reduce(3, "max") == 3.0
    assert all_gather(tensor).shape == (1, 2)
    assert torch.equal(reduce_scatter(tensor), tensor)
    assert mean(6, 4) == 1.5
    assert broadcast("x") == "x"
    assert all_gather_object("x") == ["x"]
    assert rank0_first(int, "7") == 7
    barrier()
