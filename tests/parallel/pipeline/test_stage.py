"""What is left of a model on one rank, and what stages share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.parallel.pipeline.cut import links
from rankup.parallel.pipeline.run import loss_of, model_args
from rankup.parallel.pipeline.stage import carve
from tests.parallel.pipeline.models import Chained, token_batches

CUTS = [range(0, 2), range(2, 4), range(4, 6)]


def test_sequential_and_list_children_are_not_renumbered() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    carve(model, links(model), [range(0, 1), range(1, 3)], [1])
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]


def test_a_module_of_two_stages_is_refused() -> None:
    class Twice(Chained):
        def chain(self) -> Any:
            steps = super().chain()
            return [*steps[:-1], (self.finish, ["norm", "head", "tokens"])]

    model = Twice()
    with pytest.raises(UserError, match="tie their weights"):
        carve(model, links(model), CUTS, [0])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: batch[0].sum(), "did not call the model"),
        (lambda model, batch: model(tokens=batch[0]), "tokens"),
    ],
)
def test_a_loss_that_cannot_be_cut_is_told_why(loss: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_args(loss, token_batches([2])[0])


def test_a_loss_that_calls_the_model_twice_is_refused() -> None:
    with pytest.raises(UserError, match="2 times"):
        loss_of(lambda model, batch: model(0) + model(1), torch.ones(()), ())
