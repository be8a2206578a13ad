"""Initial weights: drawn per parameter, from seed and name alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from rankup.parallel.build import build
from rankup.parallel.choices import Choices
from rankup.parallel.initial import initialize
from rankup.parallel.layout import Layout
from rankup.parallel.mesh import Mesh
from rankup.runtime.world import World
from tests.pool import RankPool


def _layers(order: Sequence[str]) -> nn.Module:
    """The same named layers, constructed and registered in the order given."""
    make = {
        "conv": lambda: nn.Conv2d(3, 5, 3),
        "linear": lambda: nn.Linear(7, 4),
        "norm": lambda: nn.BatchNorm1d(4),
        "embedding": lambda: nn.Embedding(11, 6, padding_idx=2),
        "lstm": lambda: nn.LSTM(4, 3, num_layers=2),
    }
    return nn.ModuleDict({name: make[name]() for name in order})


NAMES = ["conv", "linear", "norm", "embedding", "lstm"]


def _initialized(model: nn.Module, seed: int = 0) -> dict[str, torch.Tensor]:
    initialize(model, seed)
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_order_of_construction_does_not_matter() -> None:
    torch.manual_seed(1)
    one = _initialized(_layers(NAMES))
    torch.manual_seed(2)
    two = _initialized(_layers(NAMES[::-1]))
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def test_a_further_layer_does_not_change_the_others() -> None:
    few, many = _initialized(_layers(NAMES[:3])), _initialized(_layers(NAMES))
    assert [name for name in few if not torch.equal(few[name], many[name])] == []


def test_values_are_distributed_as_the_module_wants_them() -> None:
    state = _initialized(nn.Linear(400, 300))
    bound = 400**-0.5
    assert float(state["weight"].abs().max()) <= bound
    assert float(state["weight"].std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    norm = _initialized(nn.BatchNorm1d(4))
    assert norm["weight"].tolist() == [1.0] * 4
    assert norm["running_var"].tolist() == [1.0] * 4
    embedding = _initialized(nn.Embedding(11, 6, padding_idx=2))
    assert embedding["weight"][2].tolist() == [0.0] * 6


class Tied(nn.Module):
    """The output map shares the embedding's matrix."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 5)
        self.head = nn.Linear(5, 9)
        if tied:
            self.head.weight = self.embedding.weight


def test_tied_parameters_keep_the_draw_of_their_first_name() -> None:
    model = Tied(tied=True)
    tied, free = _initialized(model), _initialized(Tied(tied=False))
    assert model.head.weight is model.embedding.weight
    assert torch.equal(tied["embedding.weight"], free["embedding.weight"])
    assert torch.equal(tied["head.weight"], free["embedding.weight"])
    assert torch.equal(tied["head.bias"], free["head.bias"])


class Own(nn.Module):
    """A parameter of the model's own, without `reset_parameters`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.5))
        self.linear = nn.Linear(3, 3)


def test_what_cannot_be_drawn_anew_stays() -> None:
    model = Own()
    initialize(model, 0)
    assert model.scale.tolist() == [2.5] * 3


def test_the_random_state_stays_and_gradients_are_wanted_as_before() -> None:
    model = _layers(NAMES)
    model["conv"].requires_grad_(False)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    initialize(model, 0)
    assert torch.equal(torch.get_rng_state(), before)
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    assert not wanted["conv.weight"]
    assert wanted["linear.weight"]
    assert all(p.is_leaf for p in model.parameters())


class Scaled(nn.Module):
    """Draws with the help of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))
        self.register_buffer("largest", torch.full((), 3.0))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.uniform_(0, 1).mul_(self.get_buffer("largest"))


class Late(nn.Module):
    """A parameter stands first in a module that cannot draw it, and then in one that can."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.ParameterList([nn.Parameter(torch.zeros(4, 4))])
        self.linear = nn.Linear(4, 4)
        self.linear.weight = self.kept[0]


class Further(nn.Linear):
    """Two further parameters that the inherited `reset_parameters` leaves, all or in part."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.further = nn.Parameter(torch.full((4,), 0.5))
        self.part = nn.Parameter(torch.rand(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "part"):
            nn.init.normal_(self.part[:2])


class All(nn.Module):
    """One of each."""

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Counting(4, 4), Counting(4, 4)])
        self.tied = Tied(tied=True)
        if not plain:
            self.own, self.late, self.scaled, self.norm = Own(), Late(), Scaled(), nn.BatchNorm1d(4)
            self.further = Further()


class Counting(nn.Linear):
    """Notes the draws of real values."""

    drawn = 0

    def reset_parameters(self) -> None:
        super().reset_parameters()
        Counting.drawn += not self.weight.is_meta


Values = dict[str, torch.Tensor]


def _in_layers(name: str) -> bool:
    return name.startswith("layers.")


def _values(
    world: World, layout: Layout, plain: bool = False, given: bool = False
) -> tuple[Values, int]:
    """The values that are together there, and how often this rank has drawn those of a layer."""
    Counting.drawn = 0
    later = {"given": _in_layers} if given else {}
    built = build(lambda: All(plain), Mesh(layout, world), 3, Choices(), **later)
    tensors = (*built.model.named_parameters(), *built.model.named_buffers())
    whole = {name: getattr(t, "full_tensor", lambda t=t: t)() for name, t in tensors}
    return {name: value.detach().clone() for name, value in whole.items()}, Counting.drawn


@pytest.mark.parametrize("plain", [True, False])
def test_shards_are_of_the_values_of_one_process(ranks: RankPool, plain: bool) -> None:
    [(alone, _)] = ranks.run(1, _values, Layout(), plain)
    if not plain:
        assert alone["further.further"].tolist() == [0.5] * 4
    for found, _ in ranks.run(2, _values, Layout(dp_shard=2), plain):
        assert found.keys() == alone.keys()
        assert [name for name in alone if not torch.equal(found[name], alone[name])] == []


def test_each_rank_draws_its_share(ranks: RankPool) -> None:
    """Two layers of a weight and a bias each; a draw of one parameter draws all of its module."""
    found = ranks.run(2, _values, Layout(dp_shard=2), True)
    assert [drawn for _, drawn in found] == [2, 2]
    for values, drawn in ranks.run(2, _values, Layout(dp_shard=2), True, True):
        assert drawn == 0, "what gets its values from files is not drawn"
        rest = [name for name in values if not _in_layers(name)]
        assert rest
        assert [name for name in rest if not torch.equal(values[name], found[0][0][name])] == []


class Busy(nn.Linear):
    """A user's module, of which a method is called as one of ours could be."""

    def compute_buffers(self, sizes: list[int]) -> list[torch.Tensor]:
        return [torch.empty(size) for size in sizes]


def _busy(world: World) -> tuple[int, ...]:
    built = build(lambda: Busy(4, 4), Mesh(Layout(dp_shard=2), world), 0, Choices())
    return tuple(built.model.weight.shape)  # type: ignore[union-attr, arg-type]


def test_methods_of_users_are_not_called(ranks: RankPool) -> None:
    assert ranks.run(2, _busy) == [(4, 4)] * 2
