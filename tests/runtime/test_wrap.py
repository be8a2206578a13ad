"""`wrap`: exact gradients from uneven parts, and a model that looks as it did."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.runtime.collectives import broadcast
from rankup.runtime.context import CONTEXT, count
from rankup.runtime.model import Wrapped, unwrap, wrap
from rankup.runtime.world import World
from tests.pool import RankPool


class Net(nn.Module):
    """Two layers, a method beside forward, a property and an attribute."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, 3)
        self.scale = 2.0

    @property
    def width(self) -> int:
        return self.first.out_features

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x))

    def decode(self, z: torch.Tensor) -> dict[str, Any]:
        return {"out": [self.second(z) * self.scale], "note": "text"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decode(self.encode(x))["out"][0]
        return out


def _start(width: int = 5) -> Net:
    """The same model on every rank, in a process that has forgotten earlier tests."""
    CONTEXT.samples = CONTEXT.units = None
    CONTEXT.models.clear()
    torch.manual_seed(0)
    return Net(width)


def _mine(world: World, sizes: tuple[int, ...], data: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch dealt as `sizes`; NaN for a rank that got nothing."""
    CONTEXT.samples = (sizes[world.rank], sum(sizes))
    part = data.split(list(sizes))[world.rank]
    return part if len(part) else torch.full_like(data[:1], torch.nan)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def _uneven(world: World, sizes: tuple[int, ...], width: int) -> list[torch.Tensor]:
    model = _start(width)
    bare = copy.deepcopy(model)
    wrapped = wrap(model)
    for round_ in range(3):  # DDP lays out its buckets anew after the first
        data = torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(round_))
        for net, part in ((bare, data), (wrapped, _mine(world, sizes, data))):
            net.zero_grad()
            net(part).square().mean().backward()
        _close(_gradients(wrapped), _gradients(bare))
    return _gradients(wrapped)


def _each_uneven(world: World, dealt: list[tuple[int, ...]]) -> list[list[torch.Tensor]]:
    return [_uneven(world, sizes, 5) for sizes in dealt]


@pytest.mark.parametrize(
    "dealt",
    [[(3,)], [(4, 4), (5, 2), (0, 3), (1, 0)], [(2, 1, 4), (3, 0, 1), (0, 0, 2)]],
    ids=lambda dealt: f"{len(dealt[0])} ranks",
)
def test_gradient_is_the_mean_over_all_samples(
    ranks: RankPool, dealt: list[tuple[int, ...]]
) -> None:
    by_rank = ranks.run(len(dealt[0]), _each_uneven, dealt)
    for sizes, first, *others in zip(dealt, *by_rank, strict=True):
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)), sizes


def test_gradient_in_several_buckets(ranks: RankPool) -> None:
    ranks.run(2, _uneven, (3, 1), 200_000)


def _looks(world: World) -> None:
    model = _start()
    names = list(model.state_dict())
    wrapped: Any = wrap(model)
    assert isinstance(wrapped, Wrapped)
    assert isinstance(wrapped, Net)
    assert type(wrapped).__name__ == wrapped.__class__.__name__ == "Net"
    assert unwrap(wrapped) is model
    assert wrapped.scale == 2.0
    assert wrapped.width == 5
    assert wrapped.first is model.first
    assert list(wrapped.state_dict()) == names
    assert wrap(wrapped) is wrapped
    assert list(wrapped.children()) == [model.first, model.second]
    assert [name for name, _ in wrapped.named_children()] == ["first", "second"]
    assert repr(wrapped) == repr(model)
    assert wrapped.double() is wrapped
    assert model.first.weight.dtype == torch.float64
    wrapped.float()
    seen: list[nn.Module] = []
    wrapped.apply(seen.append)
    assert seen == [model.first, model.second, model]
    assert [name for name, _ in wrapped.named_parameters()] == names
    assert all(a is b for a, b in zip(wrapped.parameters(), model.parameters(), strict=True))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = wrapped.nothing_of_this_name
    wrapped.scale, wrapped.note = 3.0, "new"
    assert (model.scale, model.__dict__["note"]) == (3.0, "new")
    assert wrapped.note == "new"
    wrapped.eval()
    assert not model.training
    assert not wrapped.training
    wrapped.train()
    assert model.training


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_wrapped_model_looks_like_the_users(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, _looks)


def _named_modules(world: World) -> list[str]:
    return [name for name, _ in wrap(_start()).named_modules()]


def test_module_names_are_the_users(ranks: RankPool) -> None:
    assert ranks.run(1, _named_modules) == [["", "first", "second"]]


def _state(world: World) -> None:
    wrapped = wrap(_start())
    state = {name: value + 1 for name, value in wrapped.state_dict().items()}
    bare = Net()
    bare.load_state_dict(wrapped.state_dict(), strict=True)
    for prefix in ("", "module.", "_orig_mod.", "module._orig_mod."):
        prefixed = {prefix + name: value + len(prefix) for name, value in state.items()}
        wrapped.load_state_dict(prefixed, strict=True)
        for name, value in wrapped.state_dict().items():
            assert torch.equal(value, state[name] + len(prefix)), (prefix, name)
    with pytest.raises(RuntimeError, match=r"first\.weight"):
        wrapped.load_state_dict({"second.weight": state["second.weight"]}, strict=True)


def test_state_dict_fits_the_bare_model(ranks: RankPool) -> None:
    ranks.run(2, _state)


class Inner(nn.Module):
    """A model whose one child has the name that DDP gives its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


def _own_state(world: World) -> None:
    wrapped = wrap(Inner())
    state = copy.deepcopy(wrapped.state_dict())
    assert list(state) == ["module.weight", "module.bias"]
    wrapped.load_state_dict(state, strict=True)


def test_a_child_called_module_keeps_its_name(ranks: RankPool) -> None:
    ranks.run(1, _own_state)


def _through_methods(world: World, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    model = _start()
    bare = copy.deepcopy(model)
    wrapped: Any = wrap(model)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (bare, wrapped)]
    for step in range(5):
        data = torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(step))
        parts = (data, _mine(world, sizes, data))
        for net, optimizer, part in zip((bare, wrapped), optimizers, parts, strict=True):
            optimizer.zero_grad()
            net.decode(net.encode(part))["out"][0].square().mean().backward()
            optimizer.step()
    _close(list(wrapped.parameters()), list(bare.parameters()))
    with torch.no_grad():
        assert torch.equal(wrapped.encode(data), model.encode(data))
        assert torch.equal(wrapped(data), model(data))
    return [p.detach() for p in wrapped.parameters()]


@pytest.mark.parametrize("sizes", [(2, 0, 1)])
def test_training_through_methods_stays_in_step(ranks: RankPool, sizes: tuple[int, ...]) -> None:
    found = ranks.run(len(sizes), _through_methods, sizes)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def _through(world: World, way: str) -> list[torch.Tensor] | str:
    """Train on each rank's own data through a part of the model; weights or the error."""
    wrapped: Any = wrap(_start())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    forward = {
        "children": lambda x: wrapped.second(wrapped.first(x)),
        "one method": lambda x: wrapped.encode(x),
    }
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + world.rank)
        optimizer.zero_grad()
        try:
            output = forward[way](torch.randn(3, 4, generator=generator))
            output.square().mean().backward()
        except RuntimeError as error:
            return str(error)
        optimizer.step()
    return [p.detach() for p in wrapped.parameters()]


@pytest.mark.parametrize("way", ["children", "one method"])
def test_ranks_never_part_in_silence(ranks: RankPool, way: str) -> None:
    """What cannot be kept in step has to be an error."""
    one, other = ranks.run(2, _through, way)
    if isinstance(one, str) or isinstance(other, str):
        assert isinstance(one, str)
        assert isinstance(other, str)
    else:
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _copies(world: World) -> None:
    wrapped = wrap(_start())
    twin = copy.deepcopy(wrapped)
    assert type(twin) is Net
    assert list(twin.state_dict()) == list(wrapped.state_dict())
    with torch.no_grad():
        twin.first.weight.zero_()
    assert wrapped.first.weight.abs().sum() > 0


def test_a_deep_copy_is_the_bare_model(ranks: RankPool) -> None:
    ranks.run(2, _copies)


def _pickled(world: World, folder: Path) -> None:
    wrapped = wrap(_start())
    wrapped(torch.ones(2, 4)).mean().backward()
    path = folder / f"{world.rank}.pt"
    torch.save({"epoch": 3, "net": wrapped}, path)
    assert type(pickle.loads(pickle.dumps(wrapped))) is Net
    found = torch.load(path, weights_only=False)["net"]
    assert type(found) is Net
    assert torch.equal(found(torch.ones(2, 4)), wrapped(torch.ones(2, 4)))


def test_a_pickled_model_is_the_bare_model(ranks: RankPool, tmp_path: Path) -> None:
    """A helper in another file saves `{"net": model}`."""
    ranks.run(2, _pickled, tmp_path)


def _scripted(world: World) -> None:
    _start()
    wrapped = wrap(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    inputs = torch.ones(2, 4)
    wrapped(inputs).mean().backward()
    if world.is_root:  # as a script does at its end
        assert torch.equal(torch.jit.script(wrapped)(inputs), wrapped(inputs))


def test_a_wrapped_model_can_be_made_a_script(ranks: RankPool) -> None:
    ranks.run(2, _scripted)


def _frozen(world: World) -> None:
    model = _start().requires_grad_(False)
    with torch.no_grad():
        model.first.bias += world.rank
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert wrap(model) is model
    assert said.getvalue().count("no parameter of Net requires a gradient") == world.is_root
    assert torch.equal(model.first.bias, broadcast(model.first.bias))
    model.second.requires_grad_(True)
    wrapped = wrap(model)
    wrapped(torch.ones(2, 4)).mean().backward()
    assert len(_gradients(wrapped)) == 2


def test_a_frozen_model_is_left_bare(ranks: RankPool) -> None:
    ranks.run(2, _frozen)


def _reset(world: World, alike: bool) -> str:
    wrapped = wrap(_start())
    torch.manual_seed(1 if alike else world.rank)
    wrapped.apply(lambda part: part.reset_parameters() if isinstance(part, nn.Linear) else None)
    try:
        wrapped(torch.ones(2, 4)).mean().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_values_given_behind_wrap_have_to_agree(ranks: RankPool) -> None:
    assert ranks.run(2, _reset, True) == ["", ""]
    one, other = ranks.run(2, _reset, False)
    assert one == other
    assert "different values of 'first.weight' and 3 more" in one


def _half(world: World, counts: bool) -> float:
    """The mean relative error of gradients in bfloat16, of which rank 0 has the larger part."""
    _start()
    wrapped = wrap(nn.Linear(20_000, 1, bias=False).bfloat16())
    x = torch.rand(1, 20_000, generator=torch.Generator().manual_seed(0)).bfloat16() + 1
    sizes = (5, 2)
    CONTEXT.samples = None if counts else (sizes[world.rank], sum(sizes))
    if counts:
        count(sizes[world.rank])
    (wrapped(x) * (world.rank == 0)).sum().backward()
    [gradient] = _gradients(wrapped)
    assert gradient.dtype == torch.bfloat16
    return float((gradient.double() / (x.double() * 5 / 7)).mean()) - 1


@pytest.mark.parametrize("counts", [False, True])
def test_weights_are_not_rounded_to_the_type_of_the_gradient(ranks: RankPool, counts: bool) -> None:
    """Each product is, as the sum is; but not all of them to the same side."""
    for error in ranks.run(2, _half, counts):
        assert abs(error) < 1e-4  # 5 / 7 in bfloat16 is off by 8e-4
