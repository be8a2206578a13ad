"""Invariant 2, once: over the committed steps of an epoch each sample is drawn exactly once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankup.train.options import TrainOptions
from tests.gallery import PER_EPOCH, SAMPLES, STEPS, TRACE, Gallery
from tests.pool import RankPool

from .runs import losses, sample_at, train_images

pytestmark = pytest.mark.usefixtures("ranks")
N = 70  # three steps of 24, 24 and 22 to an epoch
OPTIONS = TrainOptions(24, 4, epochs=3, optimizer="sgd", lr=0.05, seed=5, checkpoint_every=2)


def _options(root: Path) -> TrainOptions:
    return replace(OPTIONS, trace_samples=str(root / "trace.jsonl"))


def _lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "trace.jsonl").read_text().splitlines()]


def _drawn(root: Path, epoch: int) -> list[int]:
    lines = [line for line in _lines(root) if line["epoch"] == epoch]
    return [sample for line in lines for sample in line["samples"]]


def _assert_each_once(root: Path, epochs: int, n: int = N) -> None:
    for epoch in range(epochs):
        assert Counter(_drawn(root, epoch)) == Counter(range(n)), f"epoch {epoch}"


def _lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / TRACE).read_text().splitlines()]


@pytest.mark.parametrize("name", ["1", "3", "hsdp", "resumed"])
def test_each_sample_once_per_epoch(gallery: Gallery, name: str) -> None:
    """Also over a kill -9 and a resume at another world size."""
    lines, orders = _lines_of(gallery.run(name)), set()
    for epoch in range(STEPS // PER_EPOCH):
        drawn = [i for line in lines if line["epoch"] == epoch for i in line["samples"]]
        assert sorted(drawn) == list(range(SAMPLES)), f"epoch {epoch}"
        orders.add(tuple(drawn))
    assert len(orders) == STEPS // PER_EPOCH, "epochs come in different orders"
    pairs = [(line["step"], line["rank"]) for line in lines]
    assert len({*pairs}) == len(pairs)
    assert {step for step, _ in pairs} == {*range(1, STEPS + 1)}


def test_ranks_without_work_draw_nothing(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(_options(tmp_path), global_batch=10, epochs=1)
    ranks.run(4, train_images, tmp_path, options, {"n": N})
    _assert_each_once(tmp_path, 1)
    assert all(
        [] in [line["samples"] for line in _lines(tmp_path) if line["step"] == step]
        for step in range(1, 8)
    )


def test_each_sample_once_over_work_that_was_lost(ranks: RankPool, tmp_path: Path) -> None:
    """Steps that an attempt took after its last checkpoint are done again, and listed once."""
    n = 230
    options = replace(_options(tmp_path), epochs=1, checkpoint_every=3)
    shape = {"n": n, "events": {sample_at(options, n, 8): "nan"}}
    assert "step 8" in ranks.run(2, train_images, tmp_path, options, shape)[0].error
    # Seven sound steps, of which the checkpoint at 6 kept six.
    assert max(line["step"] for line in _lines(tmp_path)) > 6
    assert len(losses(tmp_path)) == 7
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('{"step": 9, "ep')  # torn by a kill
    ranks.run(3, train_images, tmp_path, options, {"n": n}, True)
    _assert_each_once(tmp_path, 1, n)
    assert len(losses(tmp_path)) == 10
