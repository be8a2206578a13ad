"""Adapters of low rank: the same run under every layout, and weights that transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # type: ignore[import-untyped]

from rankup.base.errors import UserError
from rankup.launch.weights import export
from rankup.recipes import find, llama_weights, lora
from rankup.recipes.language_model import model_of
from rankup.recipes.llama import LlamaShape
from rankup.recipes.models.llama import Llama
from rankup.runtime.world import World
from tests.gallery import run_by_pool
from tests.pool import RankPool
from tests.train.runs import final_model, losses

SHAPE = LlamaShape(4, 32, 4, 2, 56, vocab_size=256, longest=64)
# Two steps, then two more: plain SGD, as another order of additions must not matter.
WORDS = (
    *("--vocab", "byte", "--steps", "4", "--global-batch", "8", "--micro-batch", "2"),
    *("--seq-len", "16", "--lora", "4", "--lora-alpha", "8", "--lora-on", "query,value,output,up"),
    *("--optimizer", "sgd", "--lr", "0.5", "--checkpoint-every", "2", "--valid-every", "4"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama, and a text."""
    folder = tmp_path_factory.mktemp("lora") / "base"
    folder.mkdir()
    torch.manual_seed(0)
    model = Llama(SHAPE)
    for block in model.blocks.values():  # what is random attends to all alike, and learns little
        for part in (block.attention.query, block.attention.key):
            part.weight.data *= 20
    llama_weights.save(model.state_dict(), SHAPE, folder)
    (folder / "text.txt").write_text("the same run, only faster. " * 100)
    return folder


def _words(base: Path, *more: str) -> list[str]:
    return [*WORDS, "--init", str(base), "--train", str(base / "text.txt"), *more]


def _resumed(world: World, words: list[str], run: Path) -> None:
    find("language-model").run(words, run, resume=True)


def test_it_begins_with_the_model_as_it_was_and_trains_the_adapters_alone(base: Path) -> None:
    options = find("language-model").parse(_words(base))
    model = model_of(options, 256)
    held = {n: p.detach() for n, p in model.named_parameters() if not lora.is_adapter(n)}
    llama_weights.load(held, base)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in model.named_parameters() if lora.is_adapter(n)}
    assert len(trained) == 4 * 4 * 2
    plain = Llama(SHAPE)
    plain.load_state_dict(held)
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        assert torch.equal(model(tokens), plain(tokens))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
        adapted = model(tokens)
        plain.load_state_dict(lora.merged(model.state_dict(), options.lora_scale))
        assert (
            (adapted - plain(tokens)).abs().max()
            < 1e-5
            < (adapted - model_of(options, 256)(tokens)).abs().max()
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lora 4", "give these by --init"),
        ("--lora-on query,values", "did you mean value"),
        ("--lora-on head", "no linear map of a Llama's block"),
        ("--lora-alpha 0", "would leave the adapters out"),
    ],
)
def test_what_cannot_be_adapted_is_refused(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find("language-model").parse(words.split())


@pytest.fixture(scope="module")
def one(ranks: RankPool, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    run_by_pool(ranks, 1, "language-model", _words(base), run)
    return run


@pytest.mark.parametrize(
    ("count", "strategy"),
    [
        (2, "tp"),
        pytest.param(2, "fsdp", marks=pytest.mark.slow),
        pytest.param(2, "ddp", marks=pytest.mark.slow),
        pytest.param(2, "pp", marks=pytest.mark.slow),
        pytest.param(4, "3d", marks=pytest.mark.slow),
    ],
)
def test_the_same_run_under_every_layout(
    ranks: RankPool, base: Path, one: Path, tmp_path: Path, count: int, strategy: str
) -> None:
    run = tmp_path / "run"
    run_by_pool(ranks, count, "language-model", _words(base, "--strategy", strategy), run)
    assert losses(run) == pytest.approx(losses(one), rel=1e-5)
    ours, theirs = final_model(run), final_model(one)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert float((ours[name] - value).abs().max()) <= 1e-4 * float(value.abs().max()), name
    moved = {n for n, value in theirs.items() if lora.is_adapter(n) and value.abs().max() > 1e-5}
    assert len(moved) == 32, "all adapters have learned"
    # It goes on from the middle under another layout.
    checkpoints = run / "checkpoints"
    for part in sorted((checkpoints / "step-00000004").iterdir()):
        part.unlink()
    (checkpoints / "step-00000004").rmdir()
    ranks.run(1, _resumed, _words(base), run)
    assert losses(run) == pytest.approx(losses(one), rel=1e-5)


@pytest.mark.slow
def test_a_strategy_that_meets_seldom_leaves_what_is_frozen(
    ranks: RankPool, base: Path, tmp_path: Path
) -> None:
    words = _words(base, "--strategy", "diloco", "--freeze", "blocks.0.*")
    run_by_pool(ranks, 2, "language-model", words, tmp_path / "run")
    found = final_model(tmp_path / "run")
    start = model_of(find("language-model").parse(words), 256)
    held = {n: p.detach() for n, p in start.named_parameters() if not lora.is_adapter(n)}
    llama_weights.load(held, base)
    assert [name for name, value in held.items() if not torch.equal(found[name], value)] == []
    ups = {name: float(value.abs().max()) for name, value in found.items() if "lora_b" in name}
    assert all((size > 0) == ("blocks.0" not in name) for name, size in ups.items()), ups


def test_export_writes_merged_weights(base: Path, one: Path, tmp_path: Path) -> None:
    export(str(one), "hf", str(tmp_path / "out"))
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ours = model_of(find("language-model").parse(_words(base)), 256)
    ours.load_state_dict(final_model(one))
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=0, atol=1e-5)
    assert "lora" not in json.dumps(json.loads((tmp_path / "out" / "config.json").read_text()))
