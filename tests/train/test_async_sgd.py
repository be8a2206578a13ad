"""Asynchronous SGD on ranks: as data parallelism where nobody may be late, and bounded else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.train.options import TrainOptions
from tests.pool import RankPool

from .runs import Report, assert_same_run, losses, records, sample_at, train_images

N = 70  # 70 = 2 * 24 + 22: the last batch of an epoch and its last micro-batch are short
SGD = TrainOptions(
    24, 4, 8, optimizer="sgd", lr=0.1, momentum=0.9, strategy="async-sgd", max_staleness=0, seed=5
)

# How late which gradient is, and so each loss, is another in every run.
LATE = replace(SGD, max_staleness=2, optimizer="adamw", lr=1e-2, steps=24)


def _learned(directory: Path) -> bool:
    found = losses(directory)
    return sum(found[-6:]) / 6 < found[0]


def _run(
    ranks: RankPool,
    root: Path,
    world_size: int,
    options: TrainOptions,
    resume: bool = False,
    **shape: Any,
) -> Report:
    shape = {"n": N, **shape}
    report: Report = ranks.run(world_size, train_images, root, options, shape, resume)[0]
    return report


def test_without_staleness_it_is_data_parallelism(ranks: RankPool, tmp_path: Path) -> None:
    _run(ranks, tmp_path / "ddp", 3, replace(SGD, strategy="ddp"))
    _run(ranks, tmp_path / "async", 3, SGD)
    assert_same_run(tmp_path / "async", tmp_path / "ddp")
    late: Counter[str] = Counter()
    for record in records(tmp_path / "async")[:-1]:
        late.update(record["staleness"])
    assert set(late) == {"0"}


@pytest.mark.parametrize(("compress", "damped"), [("int8", True)])
def test_gradients_are_late_within_the_bound_and_each_sample_is_drawn_once(
    ranks: RankPool, tmp_path: Path, compress: str, damped: bool
) -> None:
    """And they learn, whether what is late weighs less or not."""
    trace = tmp_path / "trace"
    options = replace(LATE, compress=compress, damp_staleness=damped, trace_samples=str(trace))
    report = _run(ranks, tmp_path / "run", 4, options)
    assert report.error == ""
    last = records(tmp_path / "run")[-1]["exchange"]
    assert max(int(late) for late in last["staleness"]) <= 2
    assert sum(last["staleness"].values()) == 8 * 18  # micro-batches of eight epochs
    drawn: dict[int, list[int]] = {}
    for line in trace.read_text().splitlines():
        record = json.loads(line)
        drawn.setdefault(record["epoch"], []).extend(record["samples"])
    # A round is written down at its end, under its last epoch.
    assert sorted(sample for epoch in drawn.values() for sample in epoch) == sorted([*range(N)] * 8)
    assert _learned(tmp_path / "run")
    assert "gradients late by versions: " in report.output


@pytest.mark.slow
def test_it_is_resumed_by_any_number_of_workers(ranks: RankPool, tmp_path: Path) -> None:
    _run(ranks, tmp_path / "whole", 3, SGD)
    stop = {sample_at(SGD, N, 2): "stop"}
    _run(ranks, tmp_path / "parts", 3, SGD, events=stop)
    done = len(losses(tmp_path / "parts"))
    assert 2 <= done < 8
    report = _run(ranks, tmp_path / "parts", 2, SGD, resume=True)
    assert f"resuming at step {done} of 8" in report.output
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
def test_what_is_owed_of_a_full_batch_does_not_swell_a_short_one(
    ranks: RankPool, tmp_path: Path
) -> None:
    """The last batch of an epoch has one sample here."""
    options = replace(SGD, compress="topk:0.05", steps=16, clip=0.0)
    _run(ranks, tmp_path, 2, options, n=73)
    norms = [record["grad_norm"] for record in records(tmp_path)[:-1]]
    short = [norm for step, norm in enumerate(norms, start=1) if step % 4 == 0]
    assert max(short) < 4 * max(norm for step, norm in enumerate(norms, start=1) if step % 4)


def test_a_loss_that_is_not_finite_is_named_with_its_step_and_rank(
    ranks: RankPool, tmp_path: Path
) -> None:
    report = _run(ranks, tmp_path, 3, SGD, events={sample_at(SGD, N, 2): "nan"})
    assert "RunFailed: step 2: the loss on rank" in report.error
    assert [record["step"] for record in records(tmp_path)] == [1]
