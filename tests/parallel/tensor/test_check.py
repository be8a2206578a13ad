"""What a plan is held against before anything is cut; one process, on meta tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from rankup.base.errors import UserError
from rankup.parallel.tensor.plan import check, plan_of
from rankup.parallel.tensor.styles import EmbeddingToSequence, PartOfDropout, Replicated

from .same import transformer


def refusal(model: nn.Module, plan: dict[str, ParallelStyle], tp: int = 2) -> str:
    with pytest.raises(UserError) as refused:
        check(model, plan, tp)
    return str(refused.value)


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def test_our_transformer_passes_and_its_plan_is_its_own() -> None:
    with torch.device("meta"):
        model = transformer(vocab_size=13)
    plan = plan_of(model)
    for tp in (1, 2, 4):
        check(model, plan, tp)


def test_a_pattern_that_names_nothing_names_the_nearest() -> None:
    model = transformer()
    plan = {"blocks.*.attention.querry": ColwiseParallel()}
    assert "blocks.*.attention.query" in refusal(model, plan)


def test_a_star_is_one_part_of_a_name() -> None:
    assert "names no module" in refusal(transformer(), {"*.query": ColwiseParallel()})


def test_a_word_of_0_2_is_told_what_it_is_now() -> None:
    with pytest.raises(UserError, match=r"'column' for '0' is no style; .* ColwiseParallel\(\)"):
        plan_of(stack(), {"0": "column"})  # type: ignore[dict-item]


def test_two_patterns_for_one_module() -> None:
    message = refusal(stack(), {"0": ColwiseParallel(), "*": Replicated()})
    assert "is named by '0' and by '*'" in message


def test_a_style_that_is_for_another_type() -> None:
    assert "nn.Embedding" in refusal(stack(), {"0": EmbeddingToSequence()})


@pytest.mark.parametrize(
    ("plan", "tp", "parts"),
    [
        ({"0": ColwiseParallel()}, 3, ("8 outputs", "'0'", "1, 2, 4, 8")),
        ({"2": RowwiseParallel()}, 3, ("8 inputs", "'2'")),
        ({"2": ColwiseParallel(output_layouts=Replicate())}, 4, ("3 outputs", "none")),
    ],
)
def test_sizes_that_do_not_come_out(
    plan: dict[str, ParallelStyle], tp: int, parts: tuple[str, ...]
) -> None:
    message = refusal(stack(), plan, tp)
    assert all(part in message for part in parts), message


def test_heads_of_the_transformer() -> None:
    model = transformer(heads=4)
    message = refusal(model, model.tensor_plan(), 3)
    assert "4 heads" in message
    assert "1, 2, 4" in message


def test_a_module_that_is_forgotten_where_the_sequence_is_cut() -> None:
    model = transformer()
    plan = {k: v for k, v in model.tensor_plan().items() if k != "norm"}
    assert "says nothing of norm" in refusal(model, plan)


def test_a_dropout_that_is_forgotten_where_the_sequence_is_cut() -> None:
    model = transformer(dropout=0.1)
    plan = {k: v for k, v in model.tensor_plan().items() if k != "dropout"}
    assert "says nothing of dropout" in refusal(model, plan)


def test_a_mask_of_another_kind_is_not_cut() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.AlphaDropout(0.1), nn.Linear(8, 3))
    plan = {"0": ColwiseParallel(), "1": PartOfDropout(-1), "2": RowwiseParallel()}
    assert refusal(model, plan) == (
        "tensor plan: '1' is PartOfDropout, which is for nn.Dropout; it is a AlphaDropout"
    )


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.up = nn.Linear(8, 8)


@pytest.mark.parametrize("name", ["attention", "attention.out_proj"])
def test_multihead_attention_is_refused(name: str) -> None:
    message = refusal(Packed(), {name: RowwiseParallel()})
    assert "in_proj_weight" in message
    assert "separate query, key and value" in message


def test_multihead_attention_may_stay_whole() -> None:
    check(Packed(), {"up": ColwiseParallel(output_layouts=Replicate())}, 2)


def test_a_recurrent_net_is_refused() -> None:
    assert "LSTM" in refusal(
        nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 4)), {"1": ColwiseParallel()}
    )
