"""The learning rate as a function of the step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.runtime.world import World
from rankup.train.options import TrainOptions
from rankup.train.plan import FLOOR, learning_rate, rate
from tests.parallel.tasks import SmallLM
from tests.parallel.test_same_run import SGD
from tests.pool import RankPool

from .runs import assert_bit_for_bit, train_task


def test_a_small_cosine_by_hand() -> None:
    rates = [learning_rate(step, 6, 1.0, 2, "cosine") for step in range(1, 7)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[3] == pytest.approx((1 + FLOOR) / 2)
    assert rates[5] == pytest.approx(FLOOR)


@given(
    last=st.integers(1, 300),
    warmup=st.integers(0, 400),
    peak=st.floats(1e-6, 10),
    schedule=st.sampled_from(["cosine", "constant"]),
)
def test_rises_to_the_peak_then_never_rises(
    last: int, warmup: int, peak: float, schedule: str
) -> None:
    rates = [learning_rate(step, last, peak, warmup, schedule) for step in range(1, last + 1)]
    assert all(0 < value <= peak * (1 + 1e-12) for value in rates)
    rising, falling = rates[:warmup], rates[max(0, warmup - 1) :]
    assert all(a < b for a, b in pairwise(rising))
    assert all(a >= b * (1 - 1e-12) for a, b in pairwise(falling))
    if warmup and warmup <= last:
        assert rates[warmup - 1] == pytest.approx(peak)
    if last > warmup:
        assert rates[-1] == pytest.approx(peak * (FLOOR if schedule == "cosine" else 1))


def test_without_warm_up_the_first_step_is_near_the_peak() -> None:
    assert learning_rate(1, 1000, 0.3, 0, "cosine") == pytest.approx(0.3, rel=1e-4)
    assert learning_rate(1, 1000, 0.3, 0, "constant") == 0.3


def _wsd(last: int, decay: float, warmup: int = 2) -> list[float]:
    options = TrainOptions(schedule="wsd", lr=1.0, warmup=warmup, decay=decay)
    return [rate(step, last, options) for step in range(1, last + 1)]


def test_warmup_stable_decay_by_hand() -> None:
    assert _wsd(10, decay=4) == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert _wsd(10, decay=0.4) == _wsd(10, decay=4)
    assert _wsd(3, decay=0.9) == pytest.approx([0.5, 2 / 3, 1 / 3])  # rise and fall meet


@given(first=st.integers(5, 200), more=st.integers(0, 200), decay=st.sampled_from([0.2, 1.0, 4.0]))
def test_a_run_that_is_made_longer_in_its_stable_part_is_the_longer_run(
    first: int, more: int, decay: float
) -> None:
    """So a checkpoint from before the decay is one of any longer run, too."""
    stable = first - max(1, round(decay if decay >= 1 else decay * first))
    assert _wsd(first, decay)[:stable] == _wsd(first + more, decay)[:stable]


def _train(world: World, run: Path, options: TrainOptions, resume: bool) -> None:
    assert not train_task(world, SmallLM(options), options, run, resume).error


def test_a_resume_with_more_steps_is_the_longer_run(ranks: RankPool, tmp_path: Path) -> None:
    options = replace(SGD, schedule="wsd", decay=2, warmup=2, checkpoint_every=4, valid_every=9)
    ranks.run(1, _train, tmp_path / "run", options, False)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")  # it has begun to fall
    longer = replace(options, steps=9)
    ranks.run(1, _train, tmp_path / "run", longer, True)
    ranks.run(1, _train, tmp_path / "longer", longer, False)
    assert_bit_for_bit(tmp_path / "run", tmp_path / "longer")
