"""Copies that train by themselves and meet: local SGD and DiLoCo on the loop of all strategies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankup.parallel.copies import DiLoCo, Flat, ring_bytes
from rankup.recipes.options import LanguageModelOptions
from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from tests.conftest import TextFiles
from tests.pool import RankPool

from .runs import (
    Report,
    assert_bit_for_bit,
    assert_same_run,
    checkpoints,
    final_model,
    losses,
    records,
    sample_at,
    train_images,
    train_text,
)

EVEN = 72  # three steps of six micro-batches to an epoch
SGD = TrainOptions(24, 4, 12, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, clip=0.0)
ADAM = replace(SGD, optimizer="adamw", lr=1e-2)


def _run(
    ranks: RankPool,
    root: Path,
    world_size: int,
    options: TrainOptions,
    resume: bool = False,
    **shape: Any,
) -> Report:
    shape = {"n": EVEN, **shape}
    report: Report = ranks.run(world_size, train_images, root, options, shape, resume)[0]
    return report


def _local(options: TrainOptions, every: int | str, **changes: Any) -> TrainOptions:
    return replace(options, strategy="local-sgd", sync_every=str(every), **changes)


def _diloco(options: TrainOptions, every: int | str, **changes: Any) -> TrainOptions:
    return replace(options, strategy="diloco", sync_every=str(every), **changes)


def test_meeting_after_each_step_of_sgd_is_data_parallelism(
    ranks: RankPool, tmp_path: Path
) -> None:
    """Where all copies have as many samples; with batch norm and dropout."""
    _run(ranks, tmp_path / "ddp", 2, SGD)
    _run(ranks, tmp_path / "local", 2, _local(SGD, 1))
    assert_same_run(tmp_path / "local", tmp_path / "ddp")


@pytest.mark.slow
def test_diloco_of_rate_one_without_momentum_is_the_mean(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(SGD, steps=7)  # the last round is a short one
    _run(ranks, tmp_path / "local", 2, _local(options, 4))
    mean = _diloco(options, 4, outer_lr=1.0, outer_momentum=0.0)
    _run(ranks, tmp_path / "diloco", 2, mean)
    assert_same_run(tmp_path / "diloco", tmp_path / "local")


def test_the_outer_optimizer_is_nesterovs(ranks: RankPool, tmp_path: Path) -> None:
    """One copy that meets itself after each step: SGD by hand on where it went."""
    once = _diloco(replace(SGD, schedule="constant"), 1, outer_lr=0.7, outer_momentum=0.9)
    weights = []
    for steps in (1, 2):
        _run(ranks, tmp_path / str(steps), 1, replace(once, steps=steps))
        weights.append(final_model(tmp_path / str(steps)))
    _run(ranks, tmp_path / "plain", 1, replace(once, steps=1, outer_lr=1.0, outer_momentum=0.0))
    name = next(name for name in weights[0] if name.endswith("weight"))
    # x1 = x0 - lr (1 + m) g for a first gradient g, and the plain step is x0 - g.
    start = _start_of(weights[0][name], final_model(tmp_path / "plain")[name], 0.7 * 1.9)
    assert torch.isfinite(start).all()
    _run(ranks, tmp_path / "half", 1, replace(once, steps=1, outer_lr=0.35, outer_momentum=0.9))
    half = final_model(tmp_path / "half")[name]
    torch.testing.assert_close(start - half, (start - weights[0][name]) / 2, rtol=1e-3, atol=1e-6)


def _start_of(far: torch.Tensor, near: torch.Tensor, ratio: float) -> torch.Tensor:
    """x0 where far = x0 - ratio g and near = x0 - g."""
    return (ratio * near - far) / (ratio - 1)


@pytest.mark.slow
def test_bytes_sent_are_those_of_data_parallelism_over_the_steps_between(
    ranks: RankPool, tmp_path: Path
) -> None:
    few = replace(SGD, steps=8)
    _run(ranks, tmp_path / "ddp", 2, few)
    ddp = records(tmp_path / "ddp")[-1]["exchange"]["bytes_sent"]
    for name, options in {"local": _local(few, 4), "diloco": _diloco(few, 4)}.items():
        _run(ranks, tmp_path / name, 2, options)
        found = records(tmp_path / name)[-1]["exchange"]
        # Running statistics are averaged, too, which under ddp travel with the losses.
        held = _numbers(tmp_path / "ddp", "running") + _numbers(tmp_path / "ddp", "num_batches")
        statistics = ring_bytes(8 * held, 2) * 2
        assert found["bytes_sent"] == pytest.approx(ddp / 4 + statistics, rel=1e-2)
        assert found["bytes_per_step"] == round(found["bytes_sent"] / 8)
        lines = [record["bytes_sent"] > 0 for record in records(tmp_path / name)[:-1]]
        assert lines == [step % 4 == 0 for step in range(1, 9)]


def _mask_after_meetings(world: World) -> torch.Tensor:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.1, -torch.inf, 0.3]))
    exchange = DiLoCo(Flat(model), None, 0.7, 0.9)
    for _ in range(3):
        exchange.meet()
    return model.mask


def _numbers(root: Path, part: str) -> int:
    return sum(v.numel() for name, v in final_model(root).items() if part in name)


def test_validation_and_checkpoints_wait_until_the_copies_meet(
    ranks: RankPool, tmp_path: Path
) -> None:
    options = _local(ADAM, 5, valid_every=2, checkpoint_every=4)
    _run(ranks, tmp_path, 2, options)
    validated = [record["step"] for record in records(tmp_path)[:-1] if "valid_loss" in record]
    assert validated == [5, 10, 12]
    assert checkpoints(tmp_path)[-1] == "step-00000012"


def test_meeting_once_per_epoch(ranks: RankPool, tmp_path: Path) -> None:
    _run(ranks, tmp_path, 2, _local(ADAM, "epoch", steps=7))
    met = [record["step"] for record in records(tmp_path)[:-1] if record["bytes_sent"]]
    assert met == [3, 6, 7]


@pytest.mark.slow
def test_a_copy_without_micro_batches_learns_when_it_meets_the_others(
    ranks: RankPool, tmp_path: Path
) -> None:
    few = _diloco(replace(ADAM, global_batch=8), 3)  # two micro-batches for three copies
    report = _run(ranks, tmp_path, 3, replace(few, steps=6), n=30)
    assert report.error == ""
    # The first copy is the one without work, so without an optimizer state to go on from.
    report = _run(ranks, tmp_path, 3, few, resume=True, n=30)
    assert report.error == ""
    assert max(losses(tmp_path)[6:]) < losses(tmp_path)[0]


@pytest.mark.slow
def test_a_wish_to_stop_ends_a_long_round(ranks: RankPool, tmp_path: Path) -> None:
    """And the next attempt goes on from there."""
    options = _local(ADAM, 1000, steps=24)
    report = _run(ranks, tmp_path, 2, options, events={sample_at(options, EVEN, 2): "stop"})
    assert "stopped at step 20 of 24" in report.output
    report = _run(ranks, tmp_path, 2, options, resume=True)
    assert "resuming at step 20 of 24" in report.output
    assert len(losses(tmp_path)) == 24


def test_buffers_that_are_no_statistics_stay_what_they_are(ranks: RankPool, tmp_path: Path) -> None:
    before = torch.tensor([0.1, -torch.inf, 0.3])
    for after in ranks.run(3, _mask_after_meetings):
        assert torch.equal(after, before)


def test_a_resumed_run_goes_on_bit_for_bit(ranks: RankPool, tmp_path: Path) -> None:
    """Each copy with its own optimizer, and the outer momentum."""
    options = _diloco(ADAM, 2, checkpoint_every=4, steps=8)
    _run(ranks, tmp_path / "whole", 3, options)
    stop = {sample_at(options, EVEN, 3): "stop"}
    _run(ranks, tmp_path / "parts", 3, options, events=stop)
    assert len(losses(tmp_path / "parts")) < 8
    _run(ranks, tmp_path / "parts", 3, options, resume=True)
    assert_bit_for_bit(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_another_number_of_copies_goes_on(ranks: RankPool, tmp_path: Path) -> None:
    options = _diloco(ADAM, 2, checkpoint_every=6)
    _run(ranks, tmp_path, 2, replace(options, steps=6))
    report = _run(ranks, tmp_path, 3, options, resume=True)
    assert "resuming at step 6" in report.output
    assert report.error == ""
    assert max(losses(tmp_path)[6:]) < losses(tmp_path)[0]


def test_a_loss_that_is_not_finite_is_named_with_its_step_and_rank(
    ranks: RankPool, tmp_path: Path
) -> None:
    options = _diloco(ADAM, 5)
    report = _run(ranks, tmp_path, 2, options, events={sample_at(options, EVEN, 3): "nan"})
    assert "RunFailed: step 3: the loss on rank 0" in report.error
    assert [record["step"] for record in records(tmp_path)] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["shard", "tp"])
def test_copies_may_be_split(
    ranks: RankPool, tmp_path: Path, small_text: TextFiles, axis: str
) -> None:
    """Two copies of two ranks each train as two of one rank do."""
    options = LanguageModelOptions(
        train=str(small_text.train), valid=str(small_text.valid), test=str(small_text.test),
        global_batch=16, micro_batch=4, steps=5, optimizer="sgd", lr=0.1, momentum=0.0, seq_len=12,
        layers=2, dim=16, heads=2, dropout=0.0, strategy="diloco", sync_every="3", valid_every=5,
    )  # fmt: skip
    options.prepare(tmp_path)
    tokens = tmp_path / "tokens"
    ranks.run(2, train_text, tmp_path / "whole", options, tokens)
    split = replace(options, dp=2, **{axis: 2})  # type: ignore[arg-type]
    ranks.run(4, train_text, tmp_path / axis, split, tokens)
    assert_same_run(tmp_path / axis, tmp_path / "whole")
