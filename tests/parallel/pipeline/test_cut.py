"""Where a model is cut: links, costs, and the best contiguous cut."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rankup.base.errors import UserError
from rankup.parallel.choices import stages_per_rank
from rankup.parallel.pipeline.cut import balance, costs, cut, links
from rankup.parallel.pipeline.run import padded, placement
from tests.parallel.pipeline.models import Chained

COSTS = st.lists(st.integers(0, 20), min_size=1, max_size=8)


@given(COSTS, st.data())
def test_no_other_cut_has_a_cheaper_largest_stage(cost: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(cost)))
    cuts = balance(cost, stages)
    assert len(cuts) == stages
    assert all(cuts)
    assert [i for cut in cuts for i in cut] == list(range(len(cost)))
    least = min(
        max(sum(cost[a:b]) for a, b in pairwise((0, *inner, len(cost))))
        for inner in combinations(range(1, len(cost)), stages - 1)
    )
    assert max(sum(cost[i] for i in cut) for cut in cuts) == least


def test_more_stages_than_links_is_an_error_with_the_most_there_can_be() -> None:
    with pytest.raises(UserError, match="1 to 3"):
        balance([1.0, 1.0, 1.0], 4)


class Chainless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


def test_each_stage_has_something_to_train() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    for frozen in (0, 2):
        model[frozen].requires_grad_(False)
    found = links(model)
    assert cut(found, model, [1.0] * 4, 2) == [range(3), range(3, 4)]
    with pytest.raises(UserError, match=r"only 2 of the model's 4 links .*, or freeze less"):
        cut(found, model, [1.0] * 4, 3)


def test_a_model_that_cannot_be_cut_is_told_what_to_write() -> None:
    with pytest.raises(UserError, match=r"def chain\(self\)"):
        links(Chainless())


def test_a_parameter_that_no_link_names_is_named() -> None:
    class Forgetful(Chained):
        def chain(self) -> Any:
            return super().chain()[:-1]

    with pytest.raises(UserError, match=r"norm\.weight"):
        links(Forgetful())


def test_a_parameter_of_the_model_itself_is_refused() -> None:
    class Direct(Chained):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(UserError, match=r"scale.*submodule"):
        links(Direct())


def test_a_module_that_is_not_there_is_named() -> None:
    class Wrong(Chained):
        def chain(self) -> Any:
            return [*super().chain(), (self.finish, ["tail"])]

    with pytest.raises(UserError, match="'tail'"):
        links(Wrong())


def test_costs_are_parameters_and_counted_forward() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 50), nn.Linear(50, 4))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    parameters, flops = [400, 250, 204], [0, 2400, 2400]
    expected = [
        (p / sum(parameters) + f / sum(flops)) / 2 for p, f in zip(parameters, flops, strict=True)
    ]
    assert costs(links(model), model, (tokens,)) == pytest.approx(expected)
    only = costs(links(model), model, None)
    assert only == pytest.approx([p / sum(parameters) / 2 for p in parameters])


def test_a_forward_that_needs_values_is_balanced_by_parameters_and_says_so() -> None:
    class Reads(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * x.sum().item()

    with torch.device("meta"):
        model = nn.Sequential(Reads(2, 2), nn.Linear(2, 6))
    with pytest.warns(UserWarning, match="parameters alone"):
        found = costs(links(model), model, (torch.zeros(1, 2),))
    assert found == pytest.approx([6 / 24 / 2, 18 / 24 / 2])


def test_who_holds_which_stage() -> None:
    assert placement("1f1b", 3) == (0, 1, 2)
    assert placement("interleaved", 2) == (0, 1, 0, 1)
    assert stages_per_rank("gpipe") == 1


def test_chunks_are_padded_where_the_schedule_wants_rounds() -> None:
    assert [padded("interleaved", n, 4) for n in (1, 3, 4, 7, 8, 9, 11)] == [1, 3, 4, 7, 8, 10, 12]
    assert [padded("1f1b", n, 4) for n in (1, 9)] == [1, 9]


def test_an_unknown_schedule_is_an_error_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match="interleaved"):
        placement("interleave", 2)
