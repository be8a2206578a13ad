"""Hugging Face models through `parallelize`; built from a configuration, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rankup
from rankup.runtime.context import CONTEXT
from rankup.runtime.keys import derive
from rankup.runtime.save import full_state
from rankup.runtime.shard import part
from rankup.runtime.world import World
from tests.pool import RankPool

from .user_loops import forget

transformers = pytest.importorskip("transformers")

IGNORED = -100


def llama() -> nn.Module:
    model: nn.Module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=13, hidden_size=16, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=True,
        )
    )  # fmt: skip
    return model


def gpt2() -> nn.Module:
    model: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=13, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    return model


def t5() -> nn.Module:
    model: nn.Module = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=13, d_model=16, d_kv=8, d_ff=20, num_layers=2, num_heads=2,
            dropout_rate=0.0, decoder_start_token_id=0,
        )
    )  # fmt: skip
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2, "t5": t5}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def batch_of(seed: int, n: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 13, (n, 8), generator=draw)
    labels = tokens.clone()
    for row in range(n):
        labels[row, 3 + row :] = IGNORED
    return {"input_ids": tokens, "labels": labels}


def targets(name: str, batch: dict[str, torch.Tensor]) -> int:
    """A causal model predicts the next token, so that the first label counts for nothing."""
    labels = batch["labels"]
    return int((labels[:, 0 if name == "t5" else 1 :] != IGNORED).sum())


def _train(world: World, name: str, asked: dict[str, Any]) -> None:
    forget()
    torch.manual_seed(derive(0, "construction"))
    bare = MODELS[name]()
    slow = sgd(bare)
    model, optimizer = rankup.parallelize(MODELS[name], sgd, **asked)
    assert model.config.vocab_size == 13
    place = CONTEXT.place()
    for step, size in enumerate((4, 3, 1)):
        batch = batch_of(step, size)
        wanted = bare(**batch).loss
        wanted.backward()
        slow.step()
        slow.zero_grad()
        rows = part(size, place.rank, place.size)
        CONTEXT.samples = (len(rows), size)
        mine = {key: value[rows.start : rows.stop or 1] for key, value in batch.items()}
        if not rows:
            mine = {key: value[:1] for key, value in batch.items()}
        units = targets(name, mine)
        rankup.count(units)
        loss = model(**mine).loss
        loss.backward()
        counted = units if rows else 0
        assert rankup.mean(float(loss.detach()) * counted, counted) == pytest.approx(
            float(wanted.detach()), rel=1e-5
        )
        optimizer.step()
        optimizer.zero_grad()
    state = full_state(model)
    for key, value in bare.state_dict().items() if world.is_root else ():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-6, msg=key)
    with torch.no_grad():
        batch = batch_of(7, 2)
        torch.testing.assert_close(
            model(**batch).logits, bare(**batch).logits, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "name", "asked"),
    [
        (2, "gpt2", {"strategy": "ddp"}),
        (2, "t5", {"strategy": "fsdp"}),
        (4, "llama", {"tp": 2, "shard": 2}),
    ],
    ids=["gpt2 ddp", "t5 fsdp", "llama tp x shard"],
)
def test_trains_as_in_one_process(
    ranks: RankPool, count: int, name: str, asked: dict[str, Any]
) -> None:
    ranks.run(count, _train, name, asked)
