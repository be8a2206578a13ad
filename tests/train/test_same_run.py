"""Invariant 1, same run: what the number of ranks changes is how long a run takes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rankup.recipes.options import LanguageModelOptions
from rankup.train.options import TrainOptions
from tests.conftest import TextFiles
from tests.gallery import FEW, STEPS, Gallery
from tests.pool import RankPool

from .runs import assert_same_run, losses, records, train_images, train_text

SGD = TrainOptions(24, 4, 15, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, seed=7)
# 70 = 2 * 24 + 22, 22 = 5 * 4 + 2: the last batch of an epoch and its last micro-batch are short.
pytestmark = pytest.mark.usefixtures("ranks")
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


@pytest.mark.parametrize("name", ["2", "3", "4", "fsdp", "hsdp", "cp", "tp", "pp", "3d", "resumed"])
def test_the_recorded_runs(gallery: Gallery, name: str) -> None:
    """World sizes 1 to 4, each synchronous strategy, and a resume at another world size."""
    one, other = gallery.run("1"), gallery.run(name)
    found, expected = losses(other), losses(one)
    assert len(found) == (FEW if name in ("tp", "3d") else STEPS)
    assert found == pytest.approx(expected[: len(found)], rel=1e-5)
    assert expected[-1] < 0.7 * expected[0]
    validated = [
        {line["step"]: line["valid_loss"] for line in records(run) if "valid_loss" in line}
        for run in (other, one)
    ]
    for step, loss in validated[0].items():
        assert loss == pytest.approx(validated[1][step], rel=1e-5)
    assert len(validated[0]) == len(found) // 10
    if len(found) == STEPS:
        assert_same_run(other, one)


def test_half_precision_is_nearly_the_same_run(gallery: Gallery) -> None:
    found, expected = losses(gallery.run("bf16")), losses(gallery.run("1"))
    assert found == pytest.approx(expected, rel=1e-2)
    assert found != pytest.approx(expected, rel=1e-5), "it was not computed in half"


@pytest.mark.parametrize("name", ["local-sgd", "diloco"])
def test_copies_that_meet_every_fifth_step(gallery: Gallery, name: str) -> None:
    *steps, _ = records(gallery.run(name))
    assert [line["step"] for line in steps if line["bytes_sent"]] == [*range(5, STEPS + 1, 5)]
    assert steps[-1]["loss"] < 0.7 * steps[0]["loss"]


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "world_size"),
    [(24, 5, 3), (10, 4, 4)],
    ids=["5 of which one is short", "3, fewer than ranks"],
)
def test_losses_weights_and_statistics_of_the_convolutional_net(
    ranks: RankPool, tmp_path: Path, global_batch: int, micro_batch: int, world_size: int
) -> None:
    """With batch norm, dropout, and gradients clipped by their global norm."""
    tight = replace(SGD, global_batch=global_batch, micro_batch=micro_batch, clip=0.05, steps=9)
    _same_on(ranks, tmp_path, tight, SHORT, (world_size,))


def test_the_run_depends_on_seed_micro_batch_and_clipping(ranks: RankPool, tmp_path: Path) -> None:
    """Or the comparisons above would compare nothing."""
    for name, options in {
        "base": SGD,
        "seed": replace(SGD, seed=8),
        "micro-batch": replace(SGD, micro_batch=6),
        "clip": replace(SGD, clip=0.05),
    }.items():
        ranks.run(1, train_images, tmp_path / name, replace(options, steps=3), SHORT)
    found = {tuple(losses(path)) for path in tmp_path.iterdir()}
    assert len(found) == 4


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


@pytest.mark.slow
@pytest.mark.parametrize(("global_batch", "micro_batch", "even"), [(24, 5, True), (7, 1, False)])
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
def test_the_language_model_with_dropout(
    ranks: RankPool, tmp_path: Path, small_text: TextFiles
) -> None:
    # 4000 words are 364 windows of 11, the last of them short: 16 steps of 24 are an epoch.
    options = _language_model(tmp_path, small_text, micro_batch=5, steps=40, valid_every=20)
    for world_size in (1, 3, 4):
        run = tmp_path / str(world_size)
        ranks.run(world_size, train_text, run, options, tmp_path / "tokens")
        assert_same_run(run, tmp_path / "1")
