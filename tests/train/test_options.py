"""The options of a run: what is wrong with them is said before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields

import pytest

from rankup.base.errors import UserError
from rankup.base.flags import help_text, parse
from rankup.parallel.layout import Layout
from rankup.recipes.options import LanguageModelOptions
from rankup.train.options import TrainOptions

FLAGS = [
    *("train", "valid", "test", "vocab", "seq-len", "layers", "dim", "heads", "dropout"),
    *("global-batch", "micro-batch", "steps", "epochs", "optimizer", "lr", "warmup", "seed"),
    *("precision", "compile", "clip", "checkpoint-every", "trace-samples"),
]
WORDS = [
    *("--global-batch", "12", "--micro-batch", "3", "--steps", "7"),
    *("--optimizer", "sgd", "--lr", "0.1", "--compile"),
]


def test_flags_of_the_issue_are_there() -> None:
    text = help_text(LanguageModelOptions, "x")
    for name in FLAGS:
        assert f"--{name} " in text or f"--{name}," in text, name


@pytest.fixture
def arithmetic() -> Iterator[None]:
    """What a test chooses is of this process: put back as it was."""
    import torch

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    torch.use_deterministic_algorithms(False)
    if workspace is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("arithmetic")
def test_how_products_are_computed_is_said_by_options_alone() -> None:
    """Torch lets convolutions use TF32; here float32 is float32 until something else is asked."""
    import torch

    from rankup.train.start import set_arithmetic

    set_arithmetic(TrainOptions())
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    set_arithmetic(TrainOptions(tf32=True, deterministic=True))
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]


def test_words_become_options() -> None:
    options = parse(
        LanguageModelOptions,
        WORDS,
        "x",
    )
    assert (options.global_batch, options.micro_batch, options.steps) == (12, 3, 7)
    assert (options.optimizer, options.lr, options.compile) == ("sgd", 0.1, True)
    assert options.train is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--globl-batch 4", "--global-batch"),
        ("--micro-batch 16 --global-batch 8", "--micro-batch 16 is larger than --global-batch 8"),
        ("--steps 3 --epochs 1", "give one"),
        ("--steps 0", "the least is 1"),
        ("--global-batch -2", "the least is 1"),
        ("--ema 1", "less than 1"),
        ("--ema 0.9 --strategy local-sgd", "copies of --strategy local-sgd differ"),
        ("--ema 0.9 --strategy diloco", "leave one away"),
        ("--decay 0", "neither a part of the run"),
        ("--decay 2.5", "nor a whole number of steps"),
        ("--schedule wsd --steps 5 --decay 9", "more than the run's --steps 5"),
        ("--lr nan", "finite"),
        ("--lr fast", "'fast' is not a number"),
        ("--steps 2.5", "'2.5' is not a whole number"),
        ("--optimizer adam", "adamw"),
        ("--precision fp8", "bf16"),
        ("--keep 1", "the least is 2"),
        ("--dim 10 --heads 4", "nearest that fit"),
        ("--dropout 1", "--dropout"),
        ("--vocab letter", "byte"),
        ("--strategy dilco", "diloco"),
        ("--compress int4", "known are none, bf16 and powersgd[:RANK]"),
        ("--compress topk:0.01", "--compress topk is gone in 0.3"),
        (
            "--compress int8",
            "with --strategy local-sgd and diloco, which talk seldom, leave it away",
        ),
        ("--pp-schedule Naive", "--pp-schedule Naive is gone in 0.3: give gpipe"),
        ("--compress powersgd:0", "the rank of its matrices"),
        ("--sync-every 0", "neither a number of steps nor `epoch`"),
        ("--sync-every often", "neither a number of steps nor `epoch`"),
        ("--outer-momentum 1", "give less than 1"),
        ("--momentum 1", "adamw's first beta"),
    ],
)
def test_bad_input_is_named(words: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(LanguageModelOptions, words.split(), "rankup run language-model")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--strategy fsdp --compress powersgd", "or give --compress bf16"),
        ("--strategy diloco --compress bf16", "whole and seldom"),
        ("--pp 2 --compress bf16", "--compress bf16 does not go with --pp 2"),
        ("--pp 2 --compress powersgd", "--compress powersgd:4 does not go with --pp 2"),
    ],
)
def test_what_does_not_go_together_is_named(words: str, said: str) -> None:
    options = parse(LanguageModelOptions, words.split(), "rankup run language-model")
    with pytest.raises(UserError) as caught:
        options.layout(4, 4)
    assert said in str(caught.value)


def test_an_option_of_another_strategy_is_said_to_do_nothing() -> None:
    words = "--sync-every 5 --outer-lr 1"
    options = parse(LanguageModelOptions, words.split(), "x")
    found = " ".join(options.notes(options.layout(2, 2)))
    for name in ("sync-every", "outer-lr"):
        assert f"--{name} does nothing without --strategy" in found


def test_what_makes_it_the_same_run() -> None:
    assert set(TrainOptions().identity) >= {"seed", "global_batch", "micro_batch"}


@pytest.mark.parametrize(
    ("world_size", "idle"), [(1, 0), (3, 0), (4, 1), (8, 5)], ids=lambda value: str(value)
)
def test_idle_ranks_are_those_without_a_micro_batch(world_size: int, idle: int) -> None:
    assert (
        TrainOptions(global_batch=10, micro_batch=4).idle_ranks(Layout(dp_replicate=world_size))
        == idle
    )


def test_every_option_has_a_line_of_help() -> None:
    flags = [f for f in fields(LanguageModelOptions) if f.metadata]
    assert len(flags) > 50
    assert [f.name for f in flags if not f.metadata["help"]] == []


def test_options_are_parsed_without_torch() -> None:
    code = (
        "import sys; from rankup.recipes import find; find('language-model').parse([]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
