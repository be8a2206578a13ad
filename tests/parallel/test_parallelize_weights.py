"""`parallelize`: the gradient is the exact mean over all ranks, however the script takes it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import rankup
from rankup.parallel.user.parallelize import parallelize
from rankup.runtime.context import CONTEXT
from rankup.runtime.keys import derive
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget, sgd

IGNORED = -100


class Coder(nn.Module):
    """Methods beside forward, a list of blocks, parameters on the model itself."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.Tanh())
            for _ in range(2)
        )
        self.head = nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.full((4,), 1.5))
        self.note = "mine"

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.encode(x) * self.scale
        return {"logits": self.head(hidden), "hidden": [hidden]}

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Calls the model itself, and has two parts."""
        out = self(x)
        return F.cross_entropy(out["logits"], y, ignore_index=IGNORED) + (
            out["hidden"][0].square().mean()
        )


def pair(strategy: str, **options: Any) -> tuple[Coder, Coder, torch.optim.Optimizer]:
    """One process's model, and the same one split."""
    forget()
    torch.manual_seed(derive(0, "construction"))
    bare = Coder(**options)
    model, optimizer = parallelize(lambda: Coder(**options), sgd, strategy)
    return bare, cast(Coder, model), optimizer


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_gradients(model: nn.Module, bare: nn.Module) -> None:
    wanted = dict(bare.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert wanted[name].grad is not None, name
        torch.testing.assert_close(
            full(parameter.grad), wanted[name].grad, rtol=1e-5, atol=1e-6, msg=name
        )


def batch(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=draw), torch.randint(5, (n,), generator=draw)


def deal(world: World, sizes: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    """This rank's part; NaN for a rank that got nothing."""
    CONTEXT.samples = (sizes[world.rank], sum(sizes))
    part = x.split(list(sizes))[world.rank]
    return part if len(part) else torch.full_like(x[:1], torch.nan)


def _uneven(world: World, strategy: str) -> None:
    bare, model, _ = pair(strategy)
    assert model.note == "mine"
    assert isinstance(model.state_dict()["head.bias"], torch.Tensor)
    for sizes in ((2, 2), (3, 1), (0, 2)):
        x, _ = batch(sum(sizes), sum(sizes))
        bare.zero_grad()
        model.zero_grad()
        # Two forwards in one loss, of which one gives two outputs.
        out = bare(x)
        (
            out["logits"].square().mean() + out["hidden"][0].mean() + bare(-x)["logits"].mean()
        ).backward()
        mine = deal(world, sizes, x)
        out = model(mine)
        (
            out["logits"].square().mean() + out["hidden"][0].mean() + model(-mine)["logits"].mean()
        ).backward()
        assert_gradients(model, bare)


def test_uneven_parts(ranks: RankPool) -> None:
    ranks.run(2, _uneven, "fsdp")


def _counted(world: World, strategy: str) -> None:
    bare, model, _ = pair(strategy)
    for step, valid in enumerate(((4, 1), (0, 3), (0, 0))):
        x, y = batch(8, step)
        for rank, number in enumerate(valid):
            y[4 * rank + number : 4 * rank + 4] = IGNORED
        mine = slice(4 * world.rank, 4 * world.rank + 4)
        CONTEXT.samples = (4, 8)
        bare.zero_grad()
        model.zero_grad()
        F.cross_entropy(bare(x)["logits"], y, ignore_index=IGNORED, reduction="sum").div(
            max(1, sum(valid))
        ).backward()
        rankup.count(valid[world.rank])
        F.cross_entropy(model(x[mine])["logits"], y[mine], ignore_index=IGNORED).backward()
        assert CONTEXT.units is None, "used up by the backward"
        assert_gradients(model, bare)


def test_units_given_to_count(ranks: RankPool) -> None:
    ranks.run(2, _counted, "fsdp")


def _two_models(world: World) -> None:
    forget()
    nets = [parallelize(lambda: nn.Linear(1, 1, bias=False), sgd, "fsdp").model for _ in range(2)]
    rankup.count(3 if world.rank else 1)
    x = torch.ones(1, 1)
    ((nets[0](x) + nets[1](x)) * (10.0 if world.rank else 2.0)).sum().backward()
    for net in nets:
        gradient = net.get_parameter("weight").grad
        assert gradient is not None
        assert float(full(gradient)) == pytest.approx((1 * 2.0 + 3 * 10.0) / 4)


def test_all_models_of_a_backward_have_the_units(ranks: RankPool) -> None:
    ranks.run(2, _two_models)


def _methods(world: World) -> None:
    bare, model, optimizer = pair("fsdp")
    x, y = batch(4, 0)
    mine = deal(world, (3, 1), x)
    targets = y.split([3, 1])[world.rank]
    asked = mine.clone().requires_grad_()
    # A gradient with respect to the inputs is this rank's own, and counts whole.
    [found] = torch.autograd.grad(model(asked)["logits"].sum(), asked)
    alone = mine.clone().requires_grad_()
    [wanted] = torch.autograd.grad(bare(alone)["logits"].sum(), alone)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    optimizer.zero_grad()
    means = [bare.loss(*part) for part in zip(x.split([3, 1]), y.split([3, 1]), strict=True)]
    (means[0] * 0.75 + means[1] * 0.25).backward()
    model.loss(mine, targets).backward()
    assert_gradients(model, bare)
    assert isinstance(model, FSDPModule)
    assert isinstance(model, Coder)
    # A frozen part that is trained later is weighed as well.
    for net in (model, bare):
        net.zero_grad()
        net.head.requires_grad_(False)
        net.head.requires_grad_(True)
    bare(x)["logits"].mean().backward()
    model(mine)["logits"].mean().backward()
    assert_gradients(model.head, bare.head)


def test_through_a_method_and_to_the_inputs(ranks: RankPool) -> None:
    ranks.run(2, _methods)


def _not_synchronised(world: World) -> None:
    bare, model, _ = pair("fsdp")
    for sizes in ((2, 2), (3, 1)):
        x, _ = batch(4, sizes[0])
        mine = deal(world, sizes, x)
        bare(x)["logits"].square().mean().backward()
        with model.no_sync():  # type: ignore[operator]
            model(mine)["logits"].square().mean().backward()
        bare(x)["hidden"][0].mean().backward()
        model(mine)["hidden"][0].mean().backward()
    assert_gradients(model.blocks, bare.blocks)
    assert_some_equal(model, bare)


def test_backwards_that_are_exchanged_later(ranks: RankPool) -> None:
    ranks.run(2, _not_synchronised)


def _recomputed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The logits of a model that is reached from a backward within another one alone."""
    x = x.clone().requires_grad_(True)
    return checkpoint(lambda x: model(x)["logits"], x, use_reentrant=True)


def _counted_once(world: World) -> None:
    bare, model, _ = pair("fsdp")
    for step, units in enumerate((1 + 2 * world.rank, None)):
        x, _ = batch(4, step)
        bare.zero_grad()
        model.zero_grad()
        if units is not None:
            rankup.count(units)
        _recomputed(model, deal(world, (2, 2), x)).square().mean().backward()
        assert CONTEXT.units is None
        for part, share in zip(x.split(2), (1, 3) if units else (2, 2), strict=True):
            (_recomputed(bare, part).square().mean() * share / 4).backward()
        assert_gradients(model, bare)


def test_units_are_used_up_by_a_checkpointed_backward(ranks: RankPool) -> None:
    ranks.run(2, _counted_once)


def _statistics(world: World, recomputed: bool) -> list[float]:
    _, model, _ = pair("fsdp", norm=True)
    x, _ = batch(6, 0)
    for sizes in ((3, 3), (0, 6)):
        mine = deal(world, sizes, x)
        if world.rank == 0 and not sizes[0]:
            mine = torch.ones(2, 4) * 1e6  # what it sees must not count
        logits = _recomputed(model, mine) if recomputed else model(mine)["logits"]
        logits.mean().backward()
    return cast(torch.Tensor, model.blocks[0][1].running_mean).tolist()


@pytest.mark.parametrize("recomputed", [False, True])
def test_running_statistics_are_the_mean_over_ranks_with_samples(
    ranks: RankPool, recomputed: bool
) -> None:
    first, second = ranks.run(2, _statistics, recomputed)
    assert first == second
    assert max(map(abs, first)) < 10


def _clipped(world: World, strategy: str) -> tuple[float, float]:
    bare, model, _ = pair(strategy)
    x, _ = batch(4, 0)
    bare(x)["logits"].square().sum().backward()
    model(deal(world, (2, 2), x))["logits"].square().sum().mul(2).backward()
    norm = model.clip_grad_norm_(0.1)  # type: ignore[operator]
    wanted = nn.utils.clip_grad_norm_(bare.parameters(), 0.1)
    assert_some_equal(model, bare)
    return float(norm), float(wanted)


def assert_some_equal(model: nn.Module, bare: nn.Module) -> None:
    found, wanted = model.get_parameter("scale").grad, bare.get_parameter("scale").grad
    assert found is not None
    torch.testing.assert_close(full(found), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_clipping_by_the_norm_over_all_ranks(ranks: RankPool, strategy: str) -> None:
    for norm, wanted in ranks.run(2, _clipped, strategy):
        assert norm == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [_uneven, _counted])
def test_replicas_as_well(ranks: RankPool, case: Any) -> None:
    ranks.run(2, case, "ddp")


def _half(world: World, counts: bool) -> float:
    """The mean relative error where rank 0 has the larger part, and gradients are in bfloat16."""
    forget()
    model, _ = parallelize(lambda: nn.Linear(20_000, 1, bias=False), sgd, "fsdp", precision="bf16")
    x = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(0)).bfloat16() + 1
    sizes = (5, 2)
    CONTEXT.samples = None if counts else (sizes[world.rank], sum(sizes))
    if counts:
        rankup.count(sizes[world.rank])
    (model(x.float()) * (world.rank == 0)).sum().backward()
    gradient = model.get_parameter("weight").grad
    assert gradient is not None
    return float((full(gradient).double() / (x.double() * 5 / 7)).mean()) - 1


@pytest.mark.parametrize("counts", [False, True])
def test_weights_are_not_rounded_to_bfloat16(ranks: RankPool, counts: bool) -> None:
    for error in ranks.run(2, _half, counts):
        assert abs(error) < 1e-4  # 10 / 7 in bfloat16 is off by 8e-4
