"""`wrap` bears what one GPU bears: parameters that a backward does not reach, and any backward."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rankup.runtime.context import CONTEXT
from rankup.runtime.model import wrap
from rankup.runtime.world import World
from tests.pool import RankPool

Step = Callable[[Any, torch.Tensor, int], None]


class Branches(nn.Module):
    """A trunk, two branches of which a sample takes one by its sign, and a part for nothing."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, width)
        self.left = nn.Linear(width, 3)
        self.right = nn.Linear(width, 3)
        self.unused = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches(torch.tanh(self.trunk(x)), x[:, 0])

    def branches(self, z: torch.Tensor, sign: torch.Tensor) -> torch.Tensor:
        out = z.new_zeros(len(z), 3)
        for branch, mask in ((self.left, sign > 0), (self.right, sign <= 0)):
            if mask.any():
                out[mask] = branch(z[mask])
        return out


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def _plain(model: Any, x: torch.Tensor, step: int) -> None:
    _loss(model(x)).backward()


def _frozen_encoder(model: Any, x: torch.Tensor, step: int) -> None:
    with torch.no_grad():
        z = model.trunk(x)
    _loss(model.branches(z, x[:, 0])).backward()


def _two_backwards(model: Any, x: torch.Tensor, step: int) -> None:
    out = model(x)
    _loss(out).backward(retain_graph=True)
    out.mean().backward()


def _two_forwards(model: Any, x: torch.Tensor, step: int) -> None:
    first, second = model(x), model(2 * x)
    _loss(first).backward()
    _loss(second).backward()


def _penalty(model: Any, x: torch.Tensor, step: int) -> None:
    _loss(model(x)).backward()
    model.trunk.weight.square().sum().backward()


def _gradient_penalty(model: Any, x: torch.Tensor, step: int) -> None:
    x = x.clone().requires_grad_(True)
    out = model(x)
    [gradient] = torch.autograd.grad(out.sum(), x, create_graph=True)
    (_loss(out) + gradient.square().sum(1).mean()).backward()


def _accumulates(model: Any, x: torch.Tensor, step: int) -> None:
    wrapped = hasattr(model, "no_sync")
    with model.no_sync() if wrapped else contextlib.nullcontext():
        _loss(model(x)).backward()
    _loss(model(3 * x)).backward()


def _checkpointed(model: Any, x: torch.Tensor, step: int) -> None:
    z = checkpoint(model.trunk, x.clone().requires_grad_(True), use_reentrant=True)
    z = checkpoint(model.left, z, use_reentrant=True)
    _loss(nn.functional.linear(z, model.right.weight.T)).backward()


def _wholly_checkpointed(model: Any, x: torch.Tensor, step: int) -> None:
    """No parameter is reached but from a backward within another, and some are not reached."""
    x = x.clone().requires_grad_(True)
    _loss(checkpoint(model.trunk, x, use_reentrant=True)).backward()


def _parts_looked_at(model: Any, x: torch.Tensor, step: int) -> None:
    """As a script that logs norms of weights and gradients of a part, also between backwards."""
    assert model.unused.weight.norm() > 0
    out = model(x)
    assert model.left.weight.norm() > 0
    _loss(out).backward()
    assert model.trunk.weight.grad.norm() > 0
    model.left.weight.square().sum().backward()
    assert model.left.weight.grad.norm() > 0


def _frozen_later(model: Any, x: torch.Tensor, step: int) -> None:
    model.trunk.requires_grad_(step > 1)
    _loss(model(x)).backward()


STEPS: dict[str, Step] = {
    "a branch that no rank takes": _plain,
    "an encoder under no_grad": _frozen_encoder,
    "two backwards of one forward": _two_backwards,
    "two forwards before their backwards": _two_forwards,
    "a penalty on the weights by itself": _penalty,
    "a penalty on the gradient": _gradient_penalty,
    "accumulation": _accumulates,
    "reentrant checkpoints": _checkpointed,
    "nothing but a reentrant checkpoint": _wholly_checkpointed,
    "parts looked at": _parts_looked_at,
    "parameters frozen behind wrap": _frozen_later,
}
SIGNS = {"each": (1, -1, 1, -1), "by rank": (1, 1, -1, -1), "left": (1, 1, 1, 1)}


def _as_one_process(world: World, name: str, signs: tuple[int, ...], keep: bool) -> None:
    """Train with weight decay and momentum, wrapped on parts and bare on the whole batch."""
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()
    torch.manual_seed(0)
    bare = Branches()
    nets = (bare, wrap(copy.deepcopy(bare)))
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1) for net in nets]
    start = copy.deepcopy(bare.unused.weight)
    for step in range(4):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        x[:, 0] = x[:, 0].abs() * torch.tensor(signs)
        for net, part, optimizer in zip(nets, (x, x.chunk(2)[world.rank]), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=not keep)
            CONTEXT.samples = (2, 4) if net is not bare else None
            STEPS[name](net, part, step)
            optimizer.step()
        for (key, one), other in zip(bare.named_parameters(), nets[1].parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), key
            if one.grad is not None:
                torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-6, msg=key)
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=key)
    assert torch.equal(bare.unused.weight, start)


@pytest.mark.parametrize("signs", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("name", STEPS)
def test_as_one_process(ranks: RankPool, name: str, signs: tuple[int, ...]) -> None:
    for keep in (False, True):
        ranks.run(2, _as_one_process, name, signs, keep)


def _wide(world: World) -> None:
    """Rank 1 of 3 alone takes the right branch; each part is a bucket or more."""
    CONTEXT.samples = CONTEXT.units = None
    torch.manual_seed(0)
    bare = Branches(150_000)
    wrapped = wrap(copy.deepcopy(bare))
    for step in range(3):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        x[:, 0] = x[:, 0].abs() * torch.tensor([1, 1, -1, -1, 1, 1])
        for net, part in ((bare, x), (wrapped, x.chunk(3)[world.rank])):
            net.zero_grad()
            _loss(net(part)).backward()
        for (key, one), other in zip(bare.named_parameters(), wrapped.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), key
            if one.grad is not None:
                torch.testing.assert_close(other.grad, one.grad, rtol=1e-3, atol=1e-4)


def test_branches_by_rank_in_several_buckets(ranks: RankPool) -> None:
    ranks.run(3, _wide)


def _in_two_checkpoints(world: World) -> str:
    """A parameter gets its gradient in two backwards within one, before others have theirs."""
    CONTEXT.samples = CONTEXT.units = None
    wrapped = wrap(Branches(4))
    x = torch.ones(2, 4, requires_grad=True)
    for _ in range(2):
        x = checkpoint(wrapped.trunk, x, use_reentrant=True)
    try:
        x.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_what_cannot_be_exchanged_is_refused_by_name(ranks: RankPool) -> None:
    for message in ranks.run(2, _in_two_checkpoints):
        assert "without gradient: left.weight" in message
        assert "use_reentrant=False" in message
        assert "go on from a checkpoint" in message


class Fails(torch.autograd.Function):
    """Does nothing, but for its backward, which fails if told to."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.fails:
            raise ArithmeticError("as a script's own code may")
        return gradient, None


def _alone_behind_failures(world: World, zeroes: bool) -> None:
    """Backwards that fail halfway and are caught, with and without what they left in gradients."""
    CONTEXT.samples = CONTEXT.units = None
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    wrapped = wrap(copy.deepcopy(bare))
    for step, fails in enumerate((False, True, True, False, True, False)):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        for net in (bare, wrapped.module):
            loss = _loss(net[2](Fails.apply(net[0](x).tanh(), fails)))
            if zeroes:
                net.zero_grad()
            with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
                loss.backward()
        for one, other in zip(bare.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)


@pytest.mark.parametrize("zeroes", [False, True])
def test_one_process_goes_on_behind_a_backward_that_failed(ranks: RankPool, zeroes: bool) -> None:
    """As the same script does without `wrap`."""
    ranks.run(1, _alone_behind_failures, zeroes)


def _thawed(world: World) -> None:
    torch.manual_seed(0)
    CONTEXT.samples = CONTEXT.units = None
    bare = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    bare[0].requires_grad_(False)
    wrapped = wrap(copy.deepcopy(bare))
    wrapped.eval()
    for step in range(4):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        for net, part in ((bare, x), (wrapped, x.chunk(2)[world.rank])):
            if step == 2:
                net.requires_grad_(True)
            net.zero_grad()
            _loss(net(part)).backward()
        for one, other in zip(bare.parameters(), wrapped.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                torch.testing.assert_close(other.grad, one.grad)
    assert not wrapped.training


def test_parameters_may_be_unfrozen_behind_wrap(ranks: RankPool) -> None:
    ranks.run(2, _thawed)


def _converted(world: World) -> str:
    torch.manual_seed(0)
    CONTEXT.samples = CONTEXT.units = None
    bare = nn.Linear(4, 2)
    wrapped = wrap(copy.deepcopy(bare))
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    for kind in (torch.float32, torch.float64):
        for net, part in ((bare, x), (wrapped, x.chunk(2)[world.rank])):
            net.to(kind).zero_grad()
            _loss(net(part.to(kind))).backward()
        for one, other in zip(bare.parameters(), wrapped.parameters(), strict=True):
            torch.testing.assert_close(other.grad, one.grad)
    wrapped = wrap(nn.Linear(4, 2))
    wrapped.module.double()
    try:
        wrapped(x.double()).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_model_may_be_converted_behind_wrap_but_not_past_it(ranks: RankPool) -> None:
    """So it moves to its GPU in a trainer that is given it wrapped."""
    for message in ranks.run(2, _converted):
        assert "convert or move the model before wrap" in message


def _sends(world: World) -> dict[str, int]:
    """Number of collectives in the third backward of a model that is used as a whole."""
    CONTEXT.samples = CONTEXT.units = None
    wrapped = wrap(nn.Linear(4, 4))
    for _ in range(2):
        wrapped(torch.ones(1, 4)).mean().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        wrapped(torch.ones(1, 4)).mean().backward()
    names = [event.name for event in profile.events() if event.name.startswith("c10d::")]
    return {name: names.count(name) for name in names}


def test_a_model_that_is_used_as_a_whole_sends_nothing_more(ranks: RankPool) -> None:
    assert ranks.run(2, _sends) == [{"c10d::allreduce_": 1}] * 2
