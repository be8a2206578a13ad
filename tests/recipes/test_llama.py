"""The Llama-shaped model: logits of transformers', its weights in and out, and the same run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file

from rankup.base.errors import UserError
from rankup.parallel.copies import ring_bytes
from rankup.recipes import find, llama_weights
from rankup.recipes.llama import SIZES, shape_of
from rankup.recipes.models.llama import Llama

from ..conftest import RunRankup
from ..gallery import run_by_pool
from ..pool import RankPool
from ..train.runs import final_model, records

_SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _folder(path: Path, **more: Any) -> Path:
    """A random Llama as transformers saves it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**_SIZES, **more})
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= 12  # so that its loss is another one than of random values
    model.save_pretrained(path)
    return path


def _logits_of_theirs(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(tokens).logits
    return logits


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param({"tie_word_embeddings": True}, id="tied"),
        pytest.param({"rope_scaling": _LLAMA3}, id="llama3"),
        pytest.param({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, id="linear"),
        pytest.param({"num_key_value_heads": 4, "rms_norm_eps": 1e-3}, id="no-sharing"),
    ],
)
def test_logits_are_those_of_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    folder = _folder(tmp_path / "theirs", **more)
    shape = shape_of(str(folder))
    model = Llama(shape).eval()
    llama_weights.load({n: p.detach() for n, p in model.named_parameters()}, folder)
    tokens = torch.randint(0, 256, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = model(tokens)
    torch.testing.assert_close(ours, _logits_of_theirs(folder, tokens), rtol=0, atol=1e-5)
    again = tmp_path / "again"
    again.mkdir()
    llama_weights.save(model.state_dict(), shape, again)
    torch.testing.assert_close(ours, _logits_of_theirs(again, tokens), rtol=0, atol=1e-5)


def test_sizes_by_name_are_of_so_many_parameters() -> None:
    counts = {}
    for name, sizes in SIZES.items():
        with torch.device("meta"):
            model = Llama(shape_of(name).__class__(**{**vars(sizes), "vocab_size": 128_256}))
        counts[name] = sum(p.numel() for p in model.parameters())
    assert counts["llama-1b"] == 1_235_814_400  # Llama 3.2 1B
    assert counts["llama-3b"] == 3_212_749_824
    assert counts["llama-8b"] == 8_030_261_248


def test_another_model_than_the_weights_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "theirs")
    model = Llama(shape_of(str(folder)))
    held = {n: p.detach() for n, p in model.named_parameters()}
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks model\.norm\.weight"):
        llama_weights.load(held, folder)
    save_file({**weights, "model.norm.weight": torch.ones(7)}, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"norm\.weight is of shape \(7,\) there and \(32,\)"):
        llama_weights.load(held, folder)
    # Not in a job that has waited for it, either.
    words = ["--init", str(folder), "--vocab", "byte", "--seq-len", "32", "--lora", "2"]
    with pytest.raises(UserError, match=r"norm\.weight is of shape \(7,\) there and \(32,\)"):
        find("language-model").prepare(words, {}, tmp_path / "run")
    small = {name: value.to(torch.int8) for name, value in weights.items()}
    save_file({**small, "model.norm.weight": torch.ones(32)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="is quantised"):
        llama_weights.load(held, folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(UserError, match="cannot be read"):
        llama_weights.load(held, folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mistral"}, "model_type 'mistral'"),
        ({"attention_bias": True}, "asks for biases"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; a whole"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers is over 10,000, and no model has"),
        ({"hidden_size": 2**30}, "hidden_size is over 1,000,000, and no model has"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 cannot share num_key_value_heads 3"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; true or false"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; a whole"),
        ({"vocab_size": True}, "vocab_size is True; a whole"),
        ({"rms_norm_eps": "a"}, "rms_norm_eps is 'a'; a number over 0"),
        ({"rope_parameters": [1]}, "rotary positions are"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks factor"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"head_dim": 16}, "the width of a head"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "of type 'yarn'"),
    ],
)
def test_a_config_that_is_not_such_a_llama_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = _folder(tmp_path / "theirs") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=said):
        find("language-model").parse(["--model", str(path)])
    with pytest.raises(UserError, match=said):
        find("language-model").parse(["--init", str(path.parent), "--vocab", "byte"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "llama-2b"], "did you mean"),
        (["--kv-heads", "2"], "--kv-heads is of a Llama"),
        (["--layers", str(2**30)], "--layers is over 10,000, and no model has as many"),
        (["--model", "llama-160m", "--heads", "6", "--kv-heads", "4"], "cannot share --kv-heads"),
        (["--model", "llama-160m", "--prior"], "--prior is a bias"),
    ],
)
def test_options_that_contradict_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        find("language-model").parse(words)


def test_weights_take_the_tokens_of_their_folder(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "theirs")
    parse = find("language-model").parse
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        parse(["--init", str(folder)])
    assert parse(["--init", str(folder), "--vocab", "byte"]).llama == shape_of(str(folder))
    (folder / "tokenizer.json").write_text("{}")
    assert parse(["--init", str(folder)]).tokenizer == str(folder / "tokenizer.json")
    with pytest.raises(UserError, match="both name a model"):
        parse(["--init", str(folder), "--model", "llama-1b"])
    with pytest.raises(UserError, match="--init nothere: there is no"):
        parse(["--init", "nothere"])
    config = folder / "config.json"
    was = parse(["--model", str(folder)]).fixed
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 2.0'))
    assert parse(["--model", str(folder)]).fixed != was  # no run goes on as another model


def test_a_run_goes_on_without_the_folder_that_its_model_came_from(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "theirs", rope_scaling=_LLAMA3)
    (folder / "tokenizer.json").write_text("{}")
    parse = find("language-model").parse
    for words in (["--init", str(folder)], ["--model", str(folder / "config.json")]):
        began = parse(words)
        kept = json.loads(json.dumps(began.kept))
        parse(words, kept).refuse_changed()
        away = folder.rename(tmp_path / "away")
        gone = parse(words, kept)
        assert (gone.llama, gone.fixed) == (began.llama, began.fixed)
        gone.refuse_changed()
        with pytest.raises(UserError, match="there is no"):
            parse([*words[:1], str(tmp_path / "other")], kept)
        away.rename(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 2.0'))
    with pytest.raises(UserError, match=r"rope_theta was 10000\.0 and is now 2\.0"):
        parse(words, kept).refuse_changed()
    assert parse(words, kept).llama == began.llama


def test_copies_meet_without_the_tables_of_positions(tmp_path: Path, ranks: RankPool) -> None:
    """They are the same for all, so what is sent is what is trained."""
    text = tmp_path / "text.txt"
    text.write_text("the same run, only faster. " * 200)
    words = [
        "--vocab",
        "byte",
        "--steps",
        "4",
        "--global-batch",
        "8",
        "--micro-batch",
        "2",
        "--seq-len",
        "16",
        "--model",
    ]
    words += [str(_folder(tmp_path / "theirs") / "config.json"), "--train", str(text)]
    run = tmp_path / "run"
    words += ["--strategy", "local-sgd", "--sync-every", "2"]
    run_by_pool(ranks, 2, "language-model", words, run)
    trained = sum(value.numel() for value in final_model(run).values())
    assert records(run)[-1]["exchange"]["bytes_sent"] == 2 * ring_bytes(4 * trained, 2)


@pytest.mark.slow
def test_the_same_run_from_their_weights_under_any_layout_and_back(
    tmp_path: Path, ranks: RankPool, run_rankup: RunRankup, rankup_here: RunRankup
) -> None:
    folder = _folder(tmp_path / "theirs")
    text = tmp_path / "text.txt"
    text.write_text("the same run, only faster. " * 200)
    small = "--vocab byte --steps 3 --valid-every 3 --global-batch 8 --micro-batch 2 --seq-len 16"
    words = [*small.split(), "--optimizer", "sgd", "--lr", "0.1"]
    words += ["--init", str(folder), "--train", str(text)]

    def lines(strategy: str) -> list[dict[str, Any]]:
        text = (tmp_path / strategy / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    losses: dict[str, list[float]] = {}
    for count, strategy in ((1, "ddp"), (2, "fsdp"), (2, "tp"), (2, "pp"), (4, "3d")):
        own = [*words, "--strategy", strategy]
        run_by_pool(ranks, count, "language-model", own, tmp_path / strategy)
        losses[strategy] = [line["loss"] for line in lines(strategy) if "loss" in line]
    first = losses["ddp"][0]
    assert len(losses["ddp"]) == 3
    for found in losses.values():
        assert found == pytest.approx(losses["ddp"], rel=1e-5)
    # Strategies whose copies meet seldom begin with the same weights, and meet with them.
    seldom = [*words, "--lr", "1e-6", "--strategy"]
    own = [*seldom, "diloco", "--sync-every", "1", "--outer-lr", "1"]
    run_by_pool(ranks, 2, "language-model", own, tmp_path / "diloco")
    assert lines("diloco")[0]["loss"] == pytest.approx(first, rel=0.1)
    assert lines("diloco")[-1]["valid_loss"] == pytest.approx(first, rel=0.1)

    def export(strategy: str, out: str) -> str:
        words = ["export", tmp_path / strategy, "--to", "hf", "--out", tmp_path / out]
        done = rankup_here(words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The trained model, out of shards of four ranks.
    assert re.search(r"step 3, 39 tensors", export("3d", "out"))
    export("ddp", "one")
    tokens = torch.arange(60).reshape(2, 30)
    torch.testing.assert_close(
        _logits_of_theirs(tmp_path / "out", tokens),
        _logits_of_theirs(tmp_path / "one", tokens),
        rtol=0,
        atol=1e-5,
    )
    # All of them go on without the folder.
    shutil.rmtree(folder)
    resumed = run_rankup(
        ["run", "--local", "--resume", tmp_path / "ddp", "language-model", "--steps", "4"]
    )
    assert resumed.returncode == 0, resumed.stderr
    export("ddp", "gone-on")
    done = rankup_here(["generate", tmp_path / "ddp", "the same", "--max-tokens", "2"])
    assert done.returncode == 0, done.stderr
