"""`wrap` and the recipes' DDP with compressed gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankup.parallel.build import replicate
from rankup.runtime.compress.codecs import Whole
from rankup.runtime.compress.ddp import CompressedExchange
from rankup.runtime.compress.names import parse
from rankup.runtime.compress.sums import bytes_sent
from rankup.runtime.context import CONTEXT, count
from rankup.runtime.model import Wrapped, wrap
from rankup.runtime.world import World
from tests.parallel.traffic import delivered
from tests.pool import RankPool

NAMES = ("bf16", "int8", "topk:0.2", "powersgd:3")
SEVERAL = 0.002  # MB of a bucket: each layer has its own
HEADERS = 2000  # of one collective, see test_sums.py


@contextmanager
def small_buckets() -> Iterator[None]:
    """DDP lays out many buckets, in the first backward and anew after it."""
    plain = DistributedDataParallel.__init__

    def init(self: Any, model: nn.Module, **kwargs: Any) -> None:
        plain(self, model, **kwargs, bucket_cap_mb=SEVERAL)

    with mock.patch.object(DistributedDataParallel, "__init__", init):
        yield


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 2)
    )


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    inputs = torch.randn(size, 6, generator=draw)
    return inputs, torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2:].sum(1)], 1)


def compressing(model: Wrapped) -> CompressedExchange:
    found = model._compressed
    assert found is not None
    return found


def forget() -> None:
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()


def flat(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _each(world: World, names: tuple[str, ...], function: Callable[..., Any], *args: Any) -> Any:
    """What `function(world, name, *args)` gives for each name; a call of the pool costs more."""
    return {name: function(world, name, *args) for name in names}


def _train(world: World, name: str, sizes: tuple[int, ...], counted: bool) -> dict[str, Any]:
    """Steps of uneven batches; the last rank may have none, and a NaN in their place."""
    forget()
    with small_buckets():
        model = wrap(network(), compress=name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(60):
        pairs = zip(*(part.split(list(sizes)) for part in batch(step, sum(sizes))), strict=True)
        inputs, targets = list(pairs)[world.rank]
        CONTEXT.samples = (sizes[world.rank], sum(sizes))
        if not len(inputs):
            inputs, targets = torch.full((1, 6), torch.nan), torch.zeros(1, 2)
        if counted:
            count(2 * sizes[world.rank])
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    inputs, targets = batch(1000, 500)
    with torch.no_grad():
        loss = float((model(inputs) - targets).square().mean())
    return {"weights": flat(model.parameters()), "loss": loss, "started": float(targets.var())}


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "counted"), [((9, 7, 0), True)], ids=str)
def test_uneven_batches_train_as_without(
    ranks: RankPool, sizes: tuple[int, ...], counted: bool
) -> None:
    """Int8 ends where the plain run does, PowerSGD near it."""
    by_rank = ranks.run(len(sizes), _each, ("none", "int8", "powersgd:3"), _train, sizes, counted)
    plain = by_rank[0]["none"]
    assert plain["loss"] < 0.8 * plain["started"], "there is something to learn"
    bounds = {"int8": 0.003, "powersgd:3": 0.05}
    for name, bound in bounds.items():
        found = [trained[name] for trained in by_rank]
        for other in found:
            assert torch.equal(found[0]["weights"], other["weights"]), f"{name}: equal on all ranks"
        assert found[0]["loss"] == pytest.approx(plain["loss"], rel=bound), name


def _owed(world: World, name: str, counted: bool) -> tuple[torch.Tensor, ...]:
    """All gradients exchanged, what this rank owes, and its share of all that was given."""
    forget()
    with small_buckets():
        model = wrap(network(), compress=name)
    received = given = torch.zeros(1)
    for step in range(12):
        inputs, targets = batch(10 * step + world.rank, 4 + world.rank + step % 3)
        sizes = [4 + rank + step % 3 for rank in range(world.world_size)]
        CONTEXT.samples = (sizes[world.rank], sum(sizes))
        if counted:
            count(100 * len(inputs) if step % 2 else len(inputs))
        bare = network()
        (bare(inputs) - targets).square().mean().backward()
        given = given + flat(p.grad for p in bare.parameters()) * sizes[world.rank] / sum(sizes)
        model.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        received = received + flat(p.grad for p in model.parameters())
    state = compressing(model).state()
    assert [state[name].shape for name, _ in model.named_parameters()] == [
        parameter.shape for parameter in model.parameters()
    ]
    return received, flat(state[name] for name, _ in model.named_parameters()), given


@pytest.mark.parametrize("counted", [True])
def test_gradients_and_what_is_owed_are_all_that_was_given(ranks: RankPool, counted: bool) -> None:
    """Through several buckets, laid out anew after the first step."""
    by_rank = ranks.run(2, _each, NAMES, _owed, counted)
    for name in NAMES:
        found = [of_rank[name] for of_rank in by_rank]
        # PowerSGD takes the mean, so that a rank owes for itself.
        share = 0.5 if name.startswith("powersgd") else 1.0
        owed = share * sum(owed for _, owed, _ in found)
        assert owed.abs().max() > 0, name
        given = sum(given for _, _, given in found)
        for received, _, _ in found:
            torch.testing.assert_close(
                received + owed, given, rtol=1e-4, atol=1e-4, msg=f"{name}: {{}}".format
            )


def _nan(world: World, name: str, at: int) -> list[bool]:
    """Of each step, whether all gradients are finite."""
    forget()
    with small_buckets():
        model = wrap(network(), compress=name)
    found = []
    for step in range(6):
        model.zero_grad()
        inputs, _ = batch(step, 4)
        bad = world.rank == 1 and step == at
        (model(inputs).square().mean() * (torch.nan if bad else 1.0)).backward()
        gradients = flat(p.grad for p in model.parameters())
        found.append(bool(gradients.isfinite().all()))
    return found


def test_a_nan_of_one_rank_reaches_all_and_does_not_stay(ranks: RankPool) -> None:
    wanted = dict.fromkeys(NAMES, [True] * 3 + [False] + [True] * 2)
    assert ranks.run(2, _each, NAMES, _nan, 3) == [wanted] * 2


def _zeros(world: World, name: str) -> bool:
    forget()
    model = wrap(network(), compress=name)
    for _ in range(5):
        model.zero_grad()
        (model(torch.zeros(1, 6)) * 0.0).sum().backward()
    return not flat(p.grad for p in model.parameters()).any()


def test_gradients_of_zeros_stay_so(ranks: RankPool) -> None:
    names = (*NAMES, "powersgd:1")
    assert ranks.run(2, _each, names, _zeros) == [dict.fromkeys(names, True)] * 2


def _resumed(world: World, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the last step, of a run that went on and of one that was started again."""
    forget()
    runs = []
    kept: dict[str, torch.Tensor] = {}
    for resumed in (False, True):
        model = wrap(network(), compress=name)
        exchange = compressing(model)
        for step in range(6):
            if step == 4:
                if resumed:  # as the recipes do: buckets are settled by a backward that is not used
                    exchange.load(kept)
                else:
                    kept = exchange.state()
            inputs, targets = batch(step * (not resumed or step >= 4), 3 + world.rank)
            model.zero_grad()
            (model(inputs) - targets).square().mean().backward()
        runs.append(flat(p.grad for p in model.parameters()))
    return runs[0], runs[1]


def test_what_is_owed_is_handed_on(ranks: RankPool) -> None:
    for found in ranks.run(2, _each, NAMES[:3], _resumed):
        for name, (went_on, resumed) in found.items():
            assert torch.equal(went_on, resumed), name


def _refused(world: World) -> None:
    exchange = compressing(wrap(network(), compress="int8"))
    with pytest.raises(ValueError, match=r"0\.weight has the shape \(2,\).* \(40, 6\)"):
        exchange.load({"0.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="no such parameter"):
        exchange.load({"nothing": torch.zeros(2)})


def test_the_state_of_another_model_is_refused(ranks: RankPool) -> None:
    ranks.run(2, _refused)


def _wire(world: World, name: str) -> tuple[int, int, int, int]:
    """Bytes on the wire of a step, those computed, its memory, and the model's numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 300))
    replica, exchange = replicate(model, world, parse(name))
    assert exchange is not None
    before = wire = 0
    for step in range(5):
        if step == 4:
            wire, before = delivered(), exchange.spent.bytes_sent
        replica(torch.ones(2, 300) * (step + world.rank)).square().mean().backward()
    assert exchange.spent.waited > 0
    sent = exchange.spent.bytes_sent - before
    numbers = sum(p.numel() for p in model.parameters())
    return delivered() - wire, sent, exchange.extra_bytes, numbers


@pytest.mark.slow
def test_bytes_on_the_wire_are_those_computed(ranks: RankPool) -> None:
    for found in ranks.run(2, _each, ("int8", "topk:0.2", "powersgd:4"), _wire):
        for name, (wire, sent, memory, numbers) in found.items():
            assert sent <= wire <= 1.002 * sent + 8 * HEADERS, name
            assert sent < bytes_sent(Whole(), numbers, 2) * 0.51, name
            assert memory >= 4 * numbers, name
            kind, _, rank = name.partition(":")
            if kind == "powersgd":  # two thin matrices
                assert sent == bytes_sent(Whole(), 2 * int(rank) * (300 + 400) + 700, 2), name


def _mean(world: World, name: str) -> tuple[float, torch.Tensor]:
    """How far a compressed mean is from DDP's own."""
    found = []
    for kind in ("none", name):
        replica, exchange = replicate(network(), world, parse(kind))
        assert (exchange is None) == (kind == "none" or world.world_size == 1)
        inputs, targets = batch(world.rank, 5)
        (replica(inputs) - targets).square().mean().backward()
        found.append(flat(p.grad for p in replica.parameters()))
    return float((found[1] - found[0]).abs().max() / found[0].abs().max()), found[1]


@pytest.mark.parametrize("world_size", [3])
def test_the_mean_is_that_of_ddp(ranks: RankPool, world_size: int) -> None:
    names = ("bf16", "int8", "powersgd:3")
    by_rank = ranks.run(world_size, _each, names, _mean)
    for name in names:
        found = [of_rank[name] for of_rank in by_rank]
        for error, gradient in found:
            assert error < 2 / 127, name
            assert torch.equal(gradient, found[0][1]), name


def _statistics(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    forget()
    found = []
    for name in ("none", "int8"):
        model = wrap(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), compress=name)
        with torch.no_grad():
            model.module[0].weight.fill_(0.5)
            model.module[0].bias.zero_()
        for step in range(3):
            model(batch(step + world.rank, 6)[0]).square().sum().backward()
        found.append(model.module[1].running_mean.clone())
    return found[0], found[1]


def test_running_statistics_are_not_compressed(ranks: RankPool) -> None:
    for plain, compressed in ranks.run(2, _statistics):
        assert torch.equal(plain, compressed)


def test_an_unknown_compression_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"'gzip' is no compression; known are none, bf16, int8"):
        wrap(nn.Linear(1, 1), compress="gzip")


def _nothing_counts(world: World) -> None:
    """A backward without units anywhere: what was there is there, or owed."""
    forget()
    model = wrap(nn.Linear(4, 4, bias=False), compress="topk:0.1")

    def there_or_owed() -> torch.Tensor:
        owed = compressing(model).state()["weight"]
        dist.all_reduce(owed)
        assert model.weight.grad is not None
        return model.weight.grad + owed

    count(1)
    (model(torch.arange(4.0)) * (1 + world.rank)).sum().backward()
    before = there_or_owed()
    for _ in range(30):
        count(0)
        (model(torch.ones(4)) * torch.nan).sum().backward()
    torch.testing.assert_close(there_or_owed(), before)


def test_a_backward_without_units_loses_nothing(ranks: RankPool) -> None:
    ranks.run(2, _nothing_counts)
