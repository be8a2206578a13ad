"""What is left of a model on one rank, and what stages share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rankup.base.errors import UserError
from rankup.parallel.pipeline.cut import links
from rankup.parallel.pipeline.ends import loss_of, model_args
from rankup.parallel.pipeline.stage import carve
from rankup.parallel.pipeline.ties import Tie, copies, find_ties
from tests.parallel.pipeline.models import Chained, cut, token_batches, token_loss

CUTS = [range(0, 2), range(2, 4), range(4, 6)]


def test_what_remains_keeps_its_names() -> None:
    names = []
    for held in range(3):
        model = Chained(blocks=4)
        carve(model, links(model), CUTS, [held])
        names.append([name for name, _ in model.named_parameters()])
    assert names[0] == ["tokens.weight", "blocks.0.linear.weight", "blocks.0.linear.bias"]
    assert [name.split(".")[1] for name in names[1]] == ["1", "1", "2", "2"]
    assert names[2][-3:] == ["norm.weight", "norm.bias", "head.weight"]
    assert sorted(name for part in names for name in part) == sorted(
        name for name, _ in Chained().named_parameters()
    )


def test_stages_in_a_row_are_the_model() -> None:
    torch.manual_seed(1)
    whole = Chained(blocks=4)
    tokens = torch.randint(11, (2, 5))
    values: Any = (tokens,)
    for held in range(3):
        model = Chained(blocks=4)
        model.load_state_dict(whole.state_dict())
        (stage,) = carve(model, links(model), CUTS, [held])
        out = stage(*values)
        values = out if isinstance(out, tuple) else (out,)
    torch.testing.assert_close(values[0], whole(tokens))


def test_a_stage_sees_the_parameters_of_the_model() -> None:
    model = Chained(blocks=4)
    stages = carve(model, links(model), CUTS, [0, 2])
    seen = {id(p) for stage in stages for p in stage.parameters()}
    assert seen == {id(p) for p in model.parameters()}
    assert [(s.is_first, s.is_last) for s in stages] == [(True, False), (False, True)]


def test_sequential_and_list_children_are_not_renumbered() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    carve(model, links(model), [range(0, 1), range(1, 3)], [1])
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]


def test_ties_are_found_and_the_later_stage_has_the_copy() -> None:
    model = Chained(blocks=4, tied=True)
    ties = find_ties(model, links(model), CUTS)
    assert ties == [Tie((0, 2), ("tokens.weight", "head.weight"))]
    assert copies(ties, [0]) == {}
    assert copies(ties, [2]) == {"head.weight": "tokens.weight"}


def test_a_tie_within_one_stage_is_left_alone() -> None:
    model = Chained(blocks=4, tied=True)
    assert find_ties(model, links(model), [range(0, 6)]) == []


def test_stages_on_one_rank_part_with_a_shared_parameter() -> None:
    with torch.device("meta"):
        model = Chained(blocks=2, tied=True)
    cut(model, 2, 0, "ZBVZeroBubble")
    names = [name for name, _ in model.named_parameters()]
    assert {"tokens.weight", "head.weight"} <= set(names)


def test_a_module_of_two_stages_is_refused() -> None:
    class Twice(Chained):
        def chain(self) -> Any:
            steps = super().chain()
            return [*steps[:-1], (self.finish, ["norm", "head", "tokens"])]

    model = Twice()
    with pytest.raises(UserError, match="tie their weights"):
        carve(model, links(model), CUTS, [0])


def test_the_first_stage_gets_what_the_loss_calls_the_model_with() -> None:
    (batch,) = token_batches([2])
    assert model_args(token_loss, batch) == (batch[0],)


def test_the_last_stage_answers_for_the_model() -> None:
    (batch,) = token_batches([2])
    model = Chained()
    torch.testing.assert_close(
        loss_of(token_loss, model(batch[0]), batch), token_loss(model, batch)
    )


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
