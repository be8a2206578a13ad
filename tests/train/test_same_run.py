"""Invariant 1, same run: what the number of ranks changes is how long a run takes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rankup.recipes.options import LanguageModelOptions
from rankup.train.options import TrainOptions
from tests.conftest import TextFiles
from tests.pool import RankPool

from .runs import assert_same_run, losses, train_images, train_text

SGD = TrainOptions(24, 4, 15, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, seed=7)
# 70 = 2 * 24 + 22, 22 = 5 * 4 + 2: the last batch of an epoch and its last micro-batch are short.
SHORT: dict[str, Any] = {"n": 70}
EVEN: dict[str, Any] = {"n": 72}


def _same_on(
    ranks: RankPool,
    root: Path,
    options: TrainOptions,
    shape: dict[str, Any],
    world_sizes: tuple[int, ...],
) -> None:
    ranks.run(1, train_images, root / "1", options, shape)
    assert len(losses(root / "1")) == options.steps
    for world_size in world_sizes:
        ranks.run(world_size, train_images, root / str(world_size), options, shape)
        assert_same_run(root / str(world_size), root / "1")


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "world_sizes"),
    [(24, 4, (3,)), (24, 5, (2,)), (10, 4, (4,))],
    ids=["6 micro-batches", "5 of which one is short", "3, fewer than ranks"],
)
def test_losses_weights_and_statistics_of_the_convolutional_net(
    ranks: RankPool,
    tmp_path: Path,
    global_batch: int,
    micro_batch: int,
    world_sizes: tuple[int, ...],
) -> None:
    options = replace(SGD, global_batch=global_batch, micro_batch=micro_batch)
    _same_on(ranks, tmp_path, options, SHORT, world_sizes)


@pytest.mark.slow
def test_fifty_steps(ranks: RankPool, tmp_path: Path) -> None:
    _same_on(ranks, tmp_path, replace(SGD, steps=50), SHORT, (2, 3, 4))


def test_clipping_is_of_the_global_gradient(ranks: RankPool, tmp_path: Path) -> None:
    tight = replace(SGD, clip=0.05)
    _same_on(ranks, tmp_path / "tight", tight, SHORT, (3,))
    ranks.run(1, train_images, tmp_path / "off", replace(SGD, clip=0.0), SHORT)
    assert losses(tmp_path / "tight" / "1")[1:] != losses(tmp_path / "off")[1:]


def test_the_run_depends_on_seed_and_micro_batch(ranks: RankPool, tmp_path: Path) -> None:
    """Or the comparisons above would compare nothing."""
    for name, options in {
        "base": SGD,
        "seed": replace(SGD, seed=8),
        "micro-batch": replace(SGD, micro_batch=6),
    }.items():
        ranks.run(1, train_images, tmp_path / name, replace(options, steps=3), SHORT)
    found = {tuple(losses(path)) for path in tmp_path.iterdir()}
    assert len(found) == 3


def _language_model(root: Path, text: TextFiles, **changes: Any) -> LanguageModelOptions:
    options = LanguageModelOptions(
        train=str(text.train), valid=str(text.valid), test=str(text.test),
        seq_len=11, layers=1, dim=16, heads=2, dropout=0.1, vocab="word",
    )  # fmt: skip
    shared = {one.name: getattr(SGD, one.name) for one in fields(SGD)}
    options = replace(options, **shared)
    options = replace(options, **changes)
    options.prepare(root)
    return options


@pytest.mark.parametrize("world_sizes", [(2, 3)])
def test_the_language_model(
    ranks: RankPool, tmp_path: Path, small_text: TextFiles, world_sizes: tuple[int, ...]
) -> None:
    # 4000 words are 364 windows of 11, the last of them short: 16 steps of 24 are an epoch.
    options = _language_model(tmp_path, small_text, steps=18, valid_every=9)
    for world_size in (1, *world_sizes):
        run = tmp_path / str(world_size)
        ranks.run(world_size, train_text, run, options, tmp_path / "tokens")
        assert_same_run(run, tmp_path / "1")


@pytest.mark.slow
@pytest.mark.parametrize("even", [False, True], ids=["short last batch, clipping", "even"])
@pytest.mark.parametrize(("global_batch", "micro_batch"), [(24, 5), (10, 4), (7, 1)])
def test_full_matrix_of_the_convolutional_net(
    ranks: RankPool,
    tmp_path: Path,
    global_batch: int,
    micro_batch: int,
    even: bool,
) -> None:
    """Over two epochs and a part of the third; fifty steps of one batch are above."""
    shape, clip = (EVEN, 0.0) if even else (SHORT, 1.0)
    steps = 2 * -(-shape["n"] // global_batch) + 4
    options = replace(
        SGD, global_batch=global_batch, micro_batch=micro_batch, clip=clip, steps=steps
    )
    _same_on(ranks, tmp_path, options, shape, (2, 3, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "vocab"),
    [(24, 4, "byte"), (24, 5, "word"), (10, 4, "byte")],
)
def test_full_matrix_of_the_language_model(
    ranks: RankPool,
    tmp_path: Path,
    small_text: TextFiles,
    global_batch: int,
    micro_batch: int,
    vocab: str,
) -> None:
    options = _language_model(
        tmp_path,
        small_text,
        global_batch=global_batch,
        micro_batch=micro_batch,
        vocab=vocab,
        steps=40,  # two epochs of words and more
        valid_every=20,
    )
    for world_size in (1, 2, 3, 4):
        run = tmp_path / str(world_size)
        ranks.run(world_size, train_text, run, options, tmp_path / "tokens")
        assert_same_run(run, tmp_path / "1")
