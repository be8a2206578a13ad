"""`metrics.jsonl`, the wish to stop, and how little a step says to the other ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rankup.runtime.world import World
from rankup.train.metrics import PEAK_FLOPS, peak_flops, peak_memory
from rankup.train.options import TrainOptions
from rankup.train.plan import Place, Step
from rankup.train.step import StepResult
from tests.gallery import STEPS, Gallery
from tests.pool import RankPool

from .runs import Report, checkpoints, records, sample_at, train_images

OPTIONS = TrainOptions(24, 8, 5, optimizer="sgd", lr=0.05, valid_every=2)
N = 120


def test_a_step_begins_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host does between them is a part of it, and of `mfu`."""
    readings = iter([10.0, 11.0, 14.0, 16.0, 20.0, 21.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(readings))

    def taken(before: StepResult | None = None) -> StepResult:
        step = Step(1, torch.arange(1), [range(1)], Place(1, 0, 1))
        result = StepResult(step, 0.1, 1, range(1), torch.device("cpu"), before)
        result.stop_clock()
        return result

    first = taken()
    second = taken(first)
    alone = taken()  # behind a validation, say
    assert [result.seconds for result in (first, second, alone)] == [1.0, 5.0, 1.0]


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("name", ["1", "3"])
def test_one_line_per_step_and_a_final_one(gallery: Gallery, name: str) -> None:
    *steps, final = records(gallery.run(name))
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    for line in steps:
        assert math.isfinite(line["loss"])
        assert line["lr"] == 0.1
        assert line["tokens_per_s"] > 0
        assert 0 <= line["data_wait"] <= 1
        assert line["peak_memory"] > 1 << 20
        assert line["mfu"] is None
        assert not line.get("final")
    assert [line["step"] for line in steps if "valid_loss" in line] == [10, 20, 30, 40, 50]
    assert final["final"] is True
    assert final["step"] == STEPS
    assert final["valid_loss"] == steps[-1]["valid_loss"]
    assert final["best_valid_loss"] == min(line.get("valid_loss", math.inf) for line in steps)
    assert final["test_loss"] > 0


def test_every_rank_knows_how_it_ended(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(OPTIONS, schedule="constant")
    shape = {"n": 2 * OPTIONS.global_batch - 1}
    first, other = ranks.run(2, train_images, tmp_path, options, shape)
    assert "step 5/5" in first.output
    assert other.output == "", "rank 0 reports alone"
    final = records(tmp_path)[-1]
    for report in (first, other):  # every rank knows how it ended
        assert report.outcome is not None
        assert report.outcome.valid_loss == final["valid_loss"]
        assert report.outcome.test_loss == final["test_loss"]
    assert [line["lr"] for line in records(tmp_path)[:5]] == [options.lr] * 5


GPUS = {
    "Quantum 9000": None,
    "NVIDIA RTX A4000": None,  # not an A40
    "NVIDIA A40": PEAK_FLOPS["A40"],
    "NVIDIA A100-SXM4-40GB": PEAK_FLOPS["A100"],
    "NVIDIA GH200 120GB": PEAK_FLOPS["GH200"],
    "NVIDIA H200": PEAK_FLOPS["H200"],
    "Tesla V100-SXM2-16GB": PEAK_FLOPS["V100"],
}


@pytest.mark.parametrize("name", GPUS)
def test_a_device_that_is_not_known_has_no_peak(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    # The answer may be remembered: a device of its own for each name.
    assert peak_flops(torch.device("cuda", list(GPUS).index(name))) == GPUS[name]
    assert peak_flops(torch.device("cpu")) is None


def test_memory_of_a_process_is_counted_in_bytes() -> None:
    assert 10 << 20 < peak_memory(torch.device("cpu")) < 1 << 45


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(OPTIONS, checkpoint_every=5)
    shape = {"n": N, "events": {sample_at(options, N, 2, 23): "stop"}}
    reports: list[Report] = ranks.run(3, train_images, tmp_path, options, shape)
    for report in reports:
        assert report.outcome is not None
        assert not report.outcome.finished
        assert report.outcome.place == reports[0].outcome.place  # type: ignore[union-attr]
        assert report.outcome.test_loss is None
    stopped = reports[0].outcome.place.step  # type: ignore[union-attr]
    assert stopped in (2, 3)
    assert checkpoints(tmp_path) == [f"step-{stopped:08d}"]
    assert [line["step"] for line in records(tmp_path)] == list(range(1, stopped + 1))


def test_a_signal_in_the_last_step_leaves_the_evaluation_to_a_resume(
    ranks: RankPool, tmp_path: Path
) -> None:
    shape = {"n": N, "events": {sample_at(OPTIONS, N, 5): "stop"}}
    for report in ranks.run(2, train_images, tmp_path, OPTIONS, shape):
        assert report.outcome is not None
        assert not report.outcome.finished
        assert report.outcome.place.step == 5
    assert checkpoints(tmp_path)[-1] == "step-00000005"
    resumed = ranks.run(2, train_images, tmp_path, OPTIONS, {"n": N}, True)[0]
    assert resumed.outcome is not None
    assert resumed.outcome.finished
    assert records(tmp_path)[-1]["final"]


COLLECTIVES = [
    "all_reduce", "barrier", "broadcast", "broadcast_object_list", "all_gather",
    "all_gather_object", "all_gather_into_tensor", "gather", "gather_object", "scatter",
    "scatter_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "monitored_barrier",
]  # fmt: skip


def _collectives(world: World, directory: Path, steps: int) -> tuple[Counter[str], int]:
    """Collectives called by Python in a run without checkpoints on the way, and the largest sum's
    number of elements. Those of DDP's gradient buckets are called from C++."""
    calls: Counter[str] = Counter()
    largest = 0
    originals = {name: getattr(dist, name) for name in COLLECTIVES}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal largest
            calls[name] += 1
            if name == "all_reduce":
                largest = max(largest, args[0].numel())
            return originals[name](*args, **kwargs)

        return call

    options = replace(OPTIONS, steps=steps, valid_every=1000, checkpoint_every=1000)
    try:
        for name in COLLECTIVES:
            setattr(dist, name, counting(name))
        train_images(world, directory, options, {"n": 24 * 40})
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return calls, largest


def test_a_step_takes_one_small_reduction_beside_the_gradients(
    ranks: RankPool, tmp_path: Path
) -> None:
    short = ranks.run(3, _collectives, tmp_path / "short", 4)
    long = ranks.run(3, _collectives, tmp_path / "long", 14)
    for (before, _), (after, largest) in zip(short, long, strict=True):
        assert after - before == Counter(all_reduce=10)
        assert largest < 100
