"""`rankup.backward`: the loss is that of the whole batch, and ranks that come to differ end."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rankup
from rankup.runtime.context import CONTEXT
from rankup.runtime.hang.leaving import TRAINING
from rankup.runtime.hang.watch import Watch, stop_watching
from rankup.runtime.world import World, destroy_process_group
from tests.pool import RankPool

IGNORED = -100
Losses = list[float]
Found = tuple[Losses, list[torch.Tensor]]


def _fresh() -> nn.Module:
    CONTEXT.samples = CONTEXT.units = CONTEXT.last = CONTEXT.counted = None
    CONTEXT.models.clear()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def _loader(n: int, batch: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(n, 5, 3, generator=generator)
    targets = torch.randint(0, 4, (n, 5), generator=generator)
    for row in range(n):
        targets[row, 1 + row % 5 :] = IGNORED
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch, shuffle=True)


def _train(step: Callable[[nn.Module, torch.optim.Optimizer, Any, int], float], n: int) -> Found:
    """Two epochs of batches of 4, the last of which may have less samples than there are ranks."""
    model = rankup.wrap(_fresh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = rankup.shard(_loader(n, 4))
    losses = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            losses.append(step(model, optimizer, batch, number))
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def _mean(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, _: int) -> float:
    x, _y = batch
    optimizer.zero_grad()
    loss = model(x).square().mean()
    rankup.backward(loss)
    optimizer.step()
    return loss.item()


def _masked(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, _: int) -> float:
    x, y = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED)
    rankup.count(int((y != IGNORED).sum()))
    rankup.backward(loss)
    assert CONTEXT.units is None, "used up"
    optimizer.step()
    return loss.item()


def _sum(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, _: int) -> float:
    x, _y = batch
    optimizer.zero_grad()
    loss = model(x).square().sum() / 40
    rankup.backward(loss, summed=True)
    optimizer.step()
    return loss.item()


def _accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, n: int) -> float:
    x, _y = batch
    loss = model(x).square().mean()
    rankup.backward(loss, scale=1 / 2)
    if n % 2:
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def _scaled(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, _: int) -> float:
    x, _y = batch
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    rankup.backward(loss, scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def _several(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, _: int) -> float:
    x, _y = batch
    optimizer.zero_grad()
    losses = [model(x).square().mean(), 0.1 * model(-x).abs().mean()]
    for loss in losses:
        rankup.backward(loss)
    optimizer.step()
    return float(losses[0] + losses[1])


WAYS = [_mean, _masked, _sum, _accumulated, _scaled, _several]


def _all_ways(world: World, n: int) -> list[Found]:
    return [_train(step, n) for step in WAYS]


@pytest.mark.parametrize("n", [16, 13])
def test_losses_and_weights_are_those_of_one_process(ranks: RankPool, n: int) -> None:
    """In even parts, and with a last batch of one sample, of which other ranks have nothing."""
    alone = ranks.run(1, _all_ways, n)[0]
    for world_size in (2, 3):
        for rank in ranks.run(world_size, _all_ways, n):
            for way, (losses, weights), (expected, values) in zip(WAYS, rank, alone, strict=True):
                assert losses == pytest.approx(expected, rel=1e-5), way.__name__
                for mine, other in zip(weights, values, strict=True):
                    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def _plain(world: World) -> None:
    model, other = _fresh(), _fresh()
    x = torch.randn(5, 3)
    (loss := model(x).square().mean()).backward()
    whole = other(x).square().mean()
    rankup.backward(whole, retain_graph=True)
    assert whole.item() == loss.item()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def test_in_a_plain_process_it_is_a_backward(ranks: RankPool) -> None:
    ranks.run(1, _plain)


def _kept(world: World) -> tuple[Losses, str]:
    """Values that stay the rank's: its graph lives on, or the tensor is another one's part."""
    model = rankup.wrap(_fresh())
    x = torch.full((2, 3), 1.0 + world.rank)
    said = io.StringIO()
    values = []
    with contextlib.redirect_stderr(said):
        for _ in range(2):
            loss = model(x).square().mean()
            before = loss.item()
            rankup.backward(loss, retain_graph=True)
            values.append(loss.item() - before)
            loss.backward()
            terms = torch.stack([model(x).square().mean(), model(x).abs().mean()])
            before, view = terms[0].item(), terms[0]
            rankup.backward(view)
            values.append(terms[0].item() - before)
    return values, said.getvalue()


def test_a_value_that_stays_the_ranks_is_said_once(ranks: RankPool) -> None:
    found = ranks.run(2, _kept)
    assert [values for values, _ in found] == [[0.0] * 4] * 2
    said, silent = (text for _, text in found)
    assert silent == ""
    lines = said.splitlines()
    assert len(lines) == 2
    assert "under retain_graph or create_graph" in lines[0]
    assert "a view of another tensor" in lines[1]


def _counted_sum(world: World) -> None:
    model = rankup.wrap(_fresh())
    rankup.count(3)
    with pytest.raises(ValueError, match="leave one of them out"):
        rankup.backward(model(torch.ones(1, 3)).sum(), summed=True)


def test_a_sum_with_a_count_is_refused(ranks: RankPool) -> None:
    ranks.run(2, _counted_sum)


def _parted(world: World, act: Callable[[Any, Any, World, int], None]) -> tuple[int, str]:
    """The step in which a rank ended, and by what."""
    model = rankup.wrap(_fresh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1 + world.rank)
    for step in range(8):
        try:
            rankup.backward(model(torch.ones(2, 3)).square().mean())
        except RuntimeError as error:
            return step, str(error)
        own.step()  # of no wrapped model: each rank may do as it likes
        if world.rank == 0:
            own.step()
        act(optimizer, step, world, step)
    return -1, ""


def _rate_falls(optimizer: Any, step: int, world: World, _: int) -> None:
    optimizer.step()
    if step == 3 and world.rank == 1:
        optimizer.param_groups[0]["lr"] = 0.01


def _leaves_out(optimizer: Any, step: int, world: World, _: int) -> None:
    if step != 3 or world.rank != 1:
        optimizer.step()


def _nothing_differs(optimizer: Any, step: int, world: World, _: int) -> None:
    optimizer.step()


def test_ranks_whose_learning_rates_came_to_differ_end(ranks: RankPool) -> None:
    found = ranks.run(3, _parted, _rate_falls)
    # It is set behind step 3 and step 4 is taken with it, so that it is in the all-reduce of
    # step 5, which is read where step 6 begins.
    assert [step for step, _ in found] == [6, 6, 6]
    for _, text in found:
        assert "since backward 6, at optimizer step 5, the ranks differ" in text
        assert "the learning rate (0.1 on rank 0, 2; 0.01 on rank 1)" in text
        assert "scheduler.step(rankup.broadcast(metric))" in text


def test_ranks_that_took_other_numbers_of_steps_end(ranks: RankPool) -> None:
    for step, text in ranks.run(2, _parted, _leaves_out):
        assert step == 5
        assert "the number of optimizer steps (4 on rank 0; 3 on rank 1)" in text


def test_an_optimizer_of_no_wrapped_model_is_nobodys_business(ranks: RankPool) -> None:
    assert ranks.run(2, _parted, _nothing_differs) == [(-1, "")] * 2


def _made_anew(world: World) -> int:
    """A new optimizer in each step, in a circle, as a scheduler makes it; one rank collects."""
    model = rankup.wrap(_fresh())
    if world.rank:
        gc.disable()
    try:
        for step in range(6):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + step))
            optimizer.circle = optimizer  # type: ignore[attr-defined]
            rankup.backward(model(torch.ones(2, 3)).square().mean())
            optimizer.step()
            if not world.rank:
                gc.collect()
    finally:
        gc.enable()
    return step


def test_when_python_collects_an_optimizer_is_each_ranks_own(ranks: RankPool) -> None:
    assert ranks.run(2, _made_anew) == [5, 5]


def _one_leaves(world: World) -> str:
    stop_watching()  # that of setup() may be quicker than gloo, and ends the process
    model = rankup.wrap(_fresh())
    for number, (x, _) in enumerate(rankup.shard(_loader(16, 4))):
        if number == 2 and world.rank == 1:
            break
        try:
            rankup.backward(model(x).square().mean())
        except RuntimeError as error:
            return str(error)
    if world.rank == 1:
        destroy_process_group()
    return ""


def test_a_rank_that_leaves_is_named_to_the_others(ranks: RankPool) -> None:
    text, nothing = ranks.run(2, _one_leaves)
    assert nothing == ""
    assert "rank 0 is in its backward 3" in text
    assert "rank 1 left after its backward 2" in text
    assert "test_backward.py, line" in text
    assert "if rankup.broadcast(stop): break" in text


def _watched(world: World) -> list[str]:
    """Where the backend tells nobody that a peer has gone, the watch of a rank does."""
    stop_watching()  # that of setup() would end the process
    model = rankup.wrap(_fresh())
    store = dist.distributed_c10d._get_default_store()
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        store.set("test/told", text)

    rankup.backward(model(torch.ones(2, 3)).mean())
    if world.rank == 1:
        TRAINING.leave(store, world.rank)
        store.wait(["test/told"], timedelta(seconds=100))
    else:
        watch = Watch(store, timedelta(seconds=100), tell=tell)
        watch.start()
    rankup.backward(model(torch.ones(2, 3)).mean())
    return told


def test_the_watch_names_a_rank_that_left(ranks: RankPool) -> None:
    [text], nothing = ranks.run(2, _watched)
    assert nothing == []
    assert "rank 0 is in its backward 2" in text
    assert "rank 1 left after its backward 1" in text
