"""TARGET of `rankup plan`: what each kind means, and what is said of one that means nothing."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rankup import recipes
from rankup.base.errors import UserError
from rankup.parallel.initial import on_meta
from rankup.plan.estimate import estimate
from rankup.plan.layout import Layout
from rankup.plan.machine import machine
from rankup.plan.target import Sizes, find, guessed
from rankup.recipes.language_model import model_of
from rankup.train.start import freeze

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    **{"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
}
# config.json -> parameters that the model's card gives.
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "llama": (LLAMA, 8.03e9),
    "mistral": ({**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7.24e9),
    "qwen2": (
        {
            "model_type": "qwen2",
            **{"num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28},
            **{"num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064},
            "tie_word_embeddings": False,
        },
        7.62e9,
    ),
    "gpt2": (GPT2, 124.4e6),
    "gpt_neox": (
        {
            "model_type": "gpt_neox",
            **{"num_hidden_layers": 44, "hidden_size": 6144, "num_attention_heads": 64},
            **{"intermediate_size": 24576, "vocab_size": 50432, "max_position_embeddings": 2048},
        },
        20.6e9,
    ),
    "opt": (
        {
            "model_type": "opt",
            **{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32},
            **{"ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048},
        },
        6.66e9,
    ),
}


def _written(folder: Path, values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


@pytest.mark.parametrize("kind", MODELS)
def test_a_config_has_the_parameters_of_its_model(tmp_path: Path, kind: str) -> None:
    values, parameters = MODELS[kind]
    path = _written(tmp_path, values)
    for target in (path, tmp_path):
        assert find(str(target), (), Sizes()).shape.parameters() == pytest.approx(
            parameters, rel=0.01
        )


def test_sizes_by_flags_go_before_the_config(tmp_path: Path) -> None:
    found = find(str(_written(tmp_path, GPT2)), (), Sizes(layers=24, seq=512))
    assert (found.shape.layers, found.shape.seq, found.shape.positions) == (24, 512, 1024)
    assert find(str(tmp_path), (), Sizes()).shape.ffn == 4 * 768


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = _written(tmp_path, "\ufeff" + json.dumps({**GPT2, "tie_word_embeddings": None}))
    assert find(str(path), (), Sizes()).shape.tied


def test_a_long_context_is_not_taken_for_granted(tmp_path: Path) -> None:
    found = find(str(_written(tmp_path, LLAMA)), (), Sizes())
    assert found.shape.seq == 4096
    assert any("--seq 4096 is assumed, of 8,192" in note for note in found.notes)


def test_a_models_name_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = tmp_path / "hub" / "models--some--model"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    _written(folder / "snapshots" / "abc", GPT2)
    for target in ("some/model", "some/model@abc"):
        assert find(target, (), Sizes()).shape.hidden == 768


def test_a_model_that_is_nowhere_is_asked_for_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    with pytest.raises(UserError, match="rankup fetch --model some/model` brings it"):
        find("some/model", (), Sizes())


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder whose files the hub serves; nothing is cached."""
    folder = tmp_path / "hub" / "some" / "model" / "resolve" / "main"
    folder.mkdir(parents=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "hub"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_models_config_is_fetched(hub: Path) -> None:
    with pytest.raises(UserError, match="answers 404"):
        find("some/model", (), Sizes())
    _written(hub, {**GPT2, "_name_or_path": "other"})
    shape = find("some/model", (), Sizes()).shape
    assert (shape.name, shape.layers) == ("some/model", 12)
    _written(hub, json.dumps(GPT2) + " " * 2_000_000)
    with pytest.raises(UserError, match="answers over 1 MB"):
        find("some/model", (), Sizes())


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not JSON"),
    "no object": ("[]", "holds no object"),
    "no type": ({}, "has no model_type"),
    "another type": ({**LLAMA, "model_type": "lama"}, "did you mean llama"),
    "keys": (
        {**LLAMA, "hidden_size": None, "vocab_size": None},
        "lacks hidden_size, vocab_size, which",
    ),
    "heads": (
        {**LLAMA, "num_attention_heads": 30},
        "num_attention_heads 30 equal heads; nearest that fit: 8, 16, 32",
    ),
    "kv heads": ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads 5 equally; nearest"),
    "text": ({**LLAMA, "num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
    "negative": ({**LLAMA, "vocab_size": -1}, "vocab_size is -1; a whole number from 1 on"),
    "type is a list": ({**LLAMA, "model_type": ["llama"]}, r"has model_type \['llama'\]"),
    "type is an object": ({**LLAMA, "model_type": {"a": 1}}, "has model_type {'a': 1}"),
    "nested": ("[" * 100_000, "is not JSON"),
    "no head": ({**LLAMA, "head_dim": 0}, "head_dim is 0; a whole number from 1 on"),
    "heads and a head": (
        {**LLAMA, "head_dim": 9, "num_attention_heads": 0},
        "attention_heads is 0",
    ),
    "digits": ({**LLAMA, "hidden_size": 10**350}, "hidden_size is over 1,000,000, and no model"),
    "a prime": ({**LLAMA, "hidden_size": 999_983}, "nearest that fit: 1, 999983"),
    "positions": ({**GPT2, "n_positions": "many"}, "n_positions is 'many'"),
    "tied": ({**LLAMA, "tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; true or"),
    "zero": ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads is 0; a whole number"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_config_that_says_too_little(tmp_path: Path, name: str) -> None:
    values, said = BAD[name]
    with pytest.raises(UserError, match=said):
        find(str(_written(tmp_path, values)), (), Sizes())


@pytest.mark.parametrize(
    ("target", "args", "sizes", "said"),
    [
        (None, (), Sizes(), "nothing to plan: give a TARGET"),
        (None, (), Sizes(layers=2, heads=2, vocab=9), "give --hidden --seq to complete the shape"),
        (None, (), Sizes(2, 64, 3, vocab=9, seq=8), "nearest that fit: 1, 2, 4"),
        (None, (), Sizes(2, 64, 0, vocab=9, seq=8), "--heads is 0"),
        ("language-model", ("--heads", "3"), Sizes(), "--heads 3 equal heads; nearest"),
        (
            "language-model",
            (),
            Sizes(layers=3),
            "--layers is no option of language-model; its sizes are",
        ),
        ("image-classification", (), Sizes(), "is gone in 0.3: classify.py"),
        ("train.py", (), Sizes(), "train.py:build_model"),
        ("nowhere/config.json", (), Sizes(), "does not exist"),
        ("gpt2", ("--layers", "3"), Sizes(), "only a recipe has options of its own"),
        ("nowhere.py:build_model", (), Sizes(), "nowhere.py does not exist"),
        ("nowhere:build_model", (), Sizes(), "no module 'nowhere'"),
    ],
)
def test_what_means_nothing_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str | None,
    args: tuple[str, ...],
    sizes: Sizes,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    # It is said before torch is imported, which takes seconds.
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=said):
        find(target, args, sizes)


def test_a_recipe_is_its_options() -> None:
    words = ("--vocab", "byte", "--layers", "3", "--dim", "64", "--heads", "2", "--seq-len", "32")
    shape = find("language-model", words, Sizes()).shape
    assert (shape.layers, shape.hidden, shape.heads, shape.ffn) == (3, 64, 2, 256)
    assert (shape.seq, shape.positions, shape.vocab, shape.tied) == (32, 32, 256, False)


def test_a_recipe_may_be_a_llama() -> None:
    words = ("--model", "llama-8b", "--vocab", "byte", "--seq-len", "4096")
    shape = find("language-model", words, Sizes()).shape
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.ffn) == (32, 4096, 8, 14336)
    assert (shape.gated, shape.tied, shape.positions, shape.vocab) == (True, False, 0, 256)
    words = ("--model", "llama-1b", "--vocab", "byte", "--layers", "4")
    shape = find("language-model", words, Sizes()).shape
    assert (shape.layers, shape.hidden, shape.tied) == (4, 2048, True)


MODEL = """
import torch
from torch import nn

print("not of interest")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(96, 3)
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)

def build_model():
    return nn.ModuleDict({
        "embed": nn.Embedding(1000, 96),
        "blocks": nn.ModuleList(Block() for _ in range(5)),
        "head": nn.Linear(96, 1000, bias=False),
    })

def convolution():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
"""


def test_a_function_is_asked_for_its_shapes_in_a_child(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    found = find(f"{tmp_path}/mine.py:build_model", (), Sizes(heads=3))
    shape = found.shape
    assert (shape.layers, shape.hidden, shape.ffn, shape.vocab) == (5, 96, 384, 1000)
    assert (shape.kv_heads, shape.gated, shape.tied) == (3, False, False)
    assert any("--seq 4096 is assumed" in note for note in found.notes)
    assert found.words == (f"{tmp_path}/mine.py",)
    with pytest.raises(UserError, match="not known as a decoder-only transformer"):
        find(f"{tmp_path}/mine.py:convolution", (), Sizes())


BROKEN = {
    "of_size": "takes arguments (width), and is called without any",
    "reads_values": "does not work on meta tensors",
    "nothing": "returned int; a function that returns the model",
    "build_modle": "has no function 'build_modle'; did you mean build_model?",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_function_that_builds_no_model_is_said(tmp_path: Path, name: str) -> None:
    more = """
def of_size(width):
    return nn.Linear(width, width)

def reads_values():
    model = nn.Linear(2, 2)
    model.weight.sum().item()
    return model

def nothing():
    return 3
"""
    (tmp_path / "mine.py").write_text(MODEL + more)
    with pytest.raises(UserError, match=re.escape(BROKEN[name])):
        find(f"{tmp_path}/mine.py:{name}", (), Sizes())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_package_at_all", "cannot be imported: No module named"),
        ("raise SystemExit(3)", "ended the program while it was imported (3)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        find(f"{tmp_path}/mine.py:build_model", (), Sizes())


def _llama(fused: bool) -> list[tuple[str, list[int]]]:
    """Layers of hidden 256, with 2 of 4 key-value heads and a gate of 704."""
    block = {"q": [256, 256], "k": [128, 256], "v": [128, 256], "o": [256, 256]}
    block |= {"down": [256, 704], "norm": [256]}
    block |= {"gate_up": [1408, 256]} if fused else {"gate": [704, 256], "up": [704, 256]}
    layers = [(f"m.layers.{i}.{name}", dims) for i in range(3) for name, dims in block.items()]
    return [("m.embed", [5000, 256]), *layers, ("head", [5000, 256])]


@pytest.mark.parametrize("fused", [False, True])
def test_a_gate_and_shared_heads_are_seen_in_the_shapes(fused: bool) -> None:
    shape, notes = guessed(_llama(fused), "mine", Sizes())
    assert (shape.heads, shape.kv_heads, shape.gated, shape.ffn) == (4, 2, True, 704)
    assert (shape.tied, shape.positions) == (False, 0)
    assert any("--heads 4 is assumed" in note for note in notes)


@pytest.mark.parametrize(
    "words",
    [
        ["--layers", "3", "--dim", "96", "--heads", "6", "--seq-len", "40"],
        ["--model", "llama-160m"],
        ["--model", "llama-1b"],
        ["--model", "llama-160m", "--kv-heads", "2", "--ffn", "1000"],
    ],
)
def test_parameters_are_those_of_the_recipes_model(words: list[str]) -> None:
    args = ["--vocab", "byte", *words]
    shape = find("language-model", args, Sizes()).shape
    model = on_meta(lambda: model_of(recipes.find("language-model").parse(args), shape.vocab), 0)
    assert shape.parameters() == sum(one.numel() for one in model.parameters())
    layer = next(iter(model.get_submodule("blocks").children()))
    assert shape.layer_parameters == sum(one.numel() for one in layer.parameters())


@pytest.mark.parametrize(
    "words",
    [
        ["--lora", 8, "--lora-on", "query,down"],
        ["--freeze", "blocks.0.*,blocks.*.attention.*"],
        ["--freeze", "tokens.*,positions.*,blocks.[01].*"],
        ["--model", "llama-160m", "--freeze", "head.weight,*norm.weight"],
    ],
)
def test_what_is_trained_is_what_the_model_trains(words: list[Any], tmp_path: Path) -> None:
    """By memory, as many states as there are numbers to train; less work; the average beside."""
    args = ["--layers", 3, "--vocab", "byte"]
    if "--lora" in words:
        config = _written(tmp_path, {**LLAMA, "num_hidden_layers": 3})
        args = ["--vocab", "byte", "--init", config]
    model = ["--model", "llama-160m"] if "--model" in words else []
    plain = find("language-model", [*map(str, args), *model, "--ema", "0.9"], Sizes()).shape
    args = [*map(str, [*args, *words]), "--ema", "0.9"]
    shape = find("language-model", args, Sizes()).shape
    options = recipes.find("language-model").parse(args)

    def build() -> nn.Module:
        built = model_of(options, shape.vocab)
        freeze(built, options.freeze)
        return built

    parameters = on_meta(build, 0).parameters()
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    layout, gpu = Layout(1, micro_batch=8, global_batch=16), machine("A100-80GB")
    found = estimate(shape, layout, gpu)
    memory = dict(found.memory)
    assert memory["gradients"] == pytest.approx(4 * trained, rel=0.01)
    assert memory["optimizer"] == pytest.approx(8 * trained, rel=0.01)
    assert memory["average of the weights"] == memory["gradients"]
    assert found.seconds < estimate(plain, layout, gpu).seconds
    assert found.memory_total < estimate(plain, layout, gpu).memory_total


def test_a_mask_takes_time_and_memory_where_there_is_one() -> None:
    plain = find("language-model", ["--vocab", "byte", "--seq-len", "2048"], Sizes()).shape
    gpu = machine("A100-80GB")
    layouts = {
        0: Layout(1, micro_batch=4, global_batch=4),
        4: Layout(1, micro_batch=4, global_batch=4, precision="fp32"),
        1: Layout(2, cp=2, micro_batch=4, global_batch=4),
    }
    for size, layout in layouts.items():  # bytes of a number of the mask, on a rank
        one, other = (estimate(replace(plain, masked=it), layout, gpu) for it in (False, True))
        masks = size * 4 * 2048**2 * plain.layers  # in each layer
        more = dict(other.memory)["activations"] - dict(one.memory)["activations"]
        assert more == pytest.approx(masks)
        assert (other.seconds > one.seconds) == (size > 0)


_MUON = ["--optimizer", "muon"]


def test_muon_is_said_to_be_counted_as_adamw() -> None:
    words = ["--vocab", "byte"]
    plain, muon = (find("language-model", [*words, *more], Sizes()) for more in ([], _MUON))
    assert muon.shape == plain.shape
    assert [note for note in muon.notes if note not in plain.notes] == [
        "--optimizer muon is counted as adamw: with two states of each parameter, and without the "
        "time to orthogonalise matrices"
    ]
