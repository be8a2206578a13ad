"""Hugging Face models by their own plan; built from a configuration, nothing is downloaded."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from rankup.base.errors import UserError
from rankup.parallel.tensor.plan import check, plan_of
from rankup.runtime.world import World
from tests.pool import RankPool

from .same import assert_same, text

transformers = pytest.importorskip("transformers")


def llama(**changes: Any) -> nn.Module:
    sizes = {
        "vocab_size": 13, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
        "bos_token_id": 1, "eos_token_id": 2, **changes,
    }  # fmt: skip
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return model


def their_loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=batch[0], labels=batch[0], use_cache=False).loss
    return loss


def trains(world: World) -> None:
    build = partial(llama, tie_word_embeddings=True)
    # Their norms compute in float32.
    model = assert_same(
        world, build, text, tp=2, loss=their_loss, sharded=True, steps=1, within=2e-6
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.slow
def test_a_llama_by_its_own_plan(ranks: RankPool) -> None:
    ranks.run(2, trains)


def test_its_plan_in_styles() -> None:
    with torch.device("meta"):
        model = llama()
    plan = plan_of(model)
    assert isinstance(plan["model.layers.*.self_attn.q_proj"], ColwiseParallel)
    assert isinstance(plan["model.layers.*.mlp.down_proj"], RowwiseParallel)
    head = plan["lm_head"]
    assert isinstance(head, ColwiseParallel)
    assert head.output_layouts == (Replicate(),)
    check(model, plan, 2)
    with pytest.raises(UserError, match=r"2 heads of 'model\.layers\.0\.self_attn\.k_proj'"):
        check(model, plan, 4)


def test_an_unknown_word_of_theirs_is_named() -> None:
    with torch.device("meta"):
        model = llama()
    model._tp_plan = {"model.layers.*.mlp.up_proj": "packed_colwise"}
    with pytest.raises(UserError, match=r"'packed_colwise' of 'model.layers.\*.mlp.up_proj'"):
        plan_of(model)


def test_a_t5_brings_no_plan() -> None:
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1)
        )
    with pytest.raises(UserError, match="T5ForConditionalGeneration brings no tensor plan"):
        plan_of(model)
