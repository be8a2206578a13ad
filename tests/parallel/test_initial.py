"""Initial weights: drawn per parameter, from seed and name alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from rankup.parallel.initial import initialize


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
