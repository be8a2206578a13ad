"""A model as one vector: what is in it, and that nothing is lost on the way."""

from __future__ import annotations

import torch
from torch import nn

from rankup.parallel.lowcomm.flat import Flat


def test_it_holds_parameters_and_floating_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    flat = Flat(model)
    assert (flat.trained, flat.size) == (4 + 2 + 2, 4 + 2 + 2 + 2 + 2)
    start = flat.gather()
    flat.add(torch.full((flat.size,), -3.0))
    assert torch.equal(model[1].running_mean, torch.full((2,), -3.0))
    assert torch.equal(model[1].running_var, torch.zeros(2)), "no variance below zero"
    flat.scatter(start)
    assert torch.equal(flat.gather(), start)


def test_gradients_go_and_come() -> None:
    model = nn.Linear(3, 2)
    flat = Flat(model)
    assert torch.equal(flat.gradients(), torch.zeros(8))
    flat.give_gradients(torch.arange(8.0))
    assert torch.equal(model.weight.grad, torch.arange(6.0).view(2, 3))
    assert torch.equal(flat.gradients(), torch.arange(8.0))


def test_named_parts_are_views_that_join_again() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    flat = Flat(model, {"1.weight": "elsewhere"})
    values = torch.arange(float(flat.trained))
    named = flat.named(values)
    assert list(named) == ["0.weight", "0.bias", "elsewhere", "1.bias"]
    named["0.bias"].zero_()
    assert values[6:8].tolist() == [0, 0]
    assert torch.equal(flat.joined(named), values)


def test_bfloat16_parameters_are_exchanged_in_float32() -> None:
    model = nn.Linear(3, 2).bfloat16()
    flat = Flat(model)
    values = flat.gather()
    assert values.dtype == torch.float32
    flat.scatter(values + 1)
    assert torch.equal(flat.gather(), (values + 1).bfloat16().float())
