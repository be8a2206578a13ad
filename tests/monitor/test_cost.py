"""What a run cost: the bill, one efficiency, and what each finding wasted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.monitor.billing import cost
from rankup.monitor.diagnose import OVERLAP, diagnose, verdict
from rankup.monitor.load import load
from rankup.monitor.recording import Recording
from rankup.monitor.report.html import html
from rankup.monitor.report.text import text
from rankup.monitor.thresholds import LIMITS

from .diagnose.sick import of_one, starve
from .handmade import BEGIN, POWER, attempt, made, per_gpu
from .traces import one_of_four, two_attempts

_BUSY = {"rank_cpu": 300.0, "rank_workers_cpu": 0.0}
_IDLE = {"rank_cpu": 0.0, "rank_workers_cpu": 0.0}


def efficiency(recording: Recording) -> float:
    found = cost(recording).efficiency
    assert found is not None
    return found


def test_the_courses_job() -> None:
    """1 h 32 on JURECA: 128 cores x 1.533 h = 196.3 core-h, three quarters of them for nothing."""
    recording = one_of_four().recording()
    (found,) = diagnose(recording)
    paid = cost(recording)
    assert found.code == "RK701"
    assert [recording.gpu_names()[column] for column in found.gpus] == [
        f"jrc0001:{index}" for index in (1, 2, 3)
    ]
    assert (paid.billed, paid.unit) == (pytest.approx(196.27, abs=0.01), "core-h")
    assert found.cost == pytest.approx(147.2, abs=0.1)
    assert "147 of 196 core-h" in found.message
    assert "torchrun --nproc-per-node=gpu" in found.todo
    assert "rankup run" in found.todo


@pytest.mark.parametrize(
    ("util", "power", "expected"),
    [
        (96, 0.80, 0.96),
        (96, 0.55, 0.96),  # bound by memory bandwidth: no less work
        (100, 0.22, 0.07),  # spins in a collective
        (100, 0.14, 0.0),
        (100, 0.35, 0.5),
        (0, 0.14, 0.0),
        (50, 0.45, 0.5),
    ],
)
def test_work_is_use_and_power(util: float, power: float, expected: float) -> None:
    assert efficiency(made(util=util, power=power * POWER)) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        ({"power": np.nan, "util": 80.0}, 0.8, "power is not known"),
        ({"util": np.nan, "power": 0.35 * POWER}, 0.5, "use is not known"),
        # 4 ranks at 3 of 48 cores each; somebody else has the others.
        ({"gpus": 0, "ranks": 4, "cpu": 100.0, **_BUSY}, 0.5, "CPU use of the ranks"),
        ({"gpus": 0, "ranks": 4, "cpu": 100.0, **_IDLE}, 0.0, "CPU use of the ranks"),
    ],
)
def test_what_is_not_known_is_done_without(
    changes: dict[str, Any], expected: float, said: str
) -> None:
    recording = made(**changes)
    assert efficiency(recording) == pytest.approx(expected)
    assert said in cost(recording).formula


@pytest.mark.parametrize(
    "changes", [{"util": np.nan, "power": np.nan}, {"gpus": 0, "ranks": 0, "cpu": 100.0}]
)
def test_nothing_known_gives_no_number(changes: dict[str, Any]) -> None:
    recording = made(**changes)
    paid = cost(recording)
    assert (paid.efficiency, paid.used, paid.wasted) == (None, None, None)
    assert paid.billed == pytest.approx(48.0)


def test_gpus_that_cannot_be_read_are_not_counted_as_cores() -> None:
    assert cost(made(gpus=0, facts={"gpus": 4})).efficiency is None


def test_all_attempts_are_billed_and_the_time_between_is_not() -> None:
    paid = cost(two_attempts().recording())
    assert paid.attempts == pytest.approx((48.0, 1600 / 3600 * 2 * 48))
    assert paid.billed == pytest.approx(sum(paid.attempts))
    assert paid.node_hours == pytest.approx(2 * 3400 / 3600)


def test_a_killed_attempt_ends_with_the_last_that_was_heard_of_it(tmp_path: Path) -> None:
    """Not when the next one began: the time between was spent in the queue."""
    trace = two_attempts()
    trace.write(tmp_path)
    first, second = trace.facts().attempts
    facts = trace.facts(attempts=(replace(first, ended=None, state="UNKNOWN"), second))
    recording = load(tmp_path, facts)
    seconds = cost(recording).attempts[0] / 48 / 2 * 3600
    assert seconds == pytest.approx(1800, abs=20)
    assert {gap.why for gap in recording.gaps} == {"between attempts"}


def test_the_billed_time_counts_and_not_the_sampled() -> None:
    """Samplers died half way: the rest is taken to be like what was seen, and said."""
    covered = np.ones((360, 1), np.float32)
    covered[180:] = 0
    paid = cost(made(covered=covered, util=50.0))
    assert paid.seen == pytest.approx(0.5)
    assert paid.used == pytest.approx(24.0)
    assert paid.wasted == pytest.approx(24.0)


def test_little_that_is_known_is_not_nothing() -> None:
    covered = np.zeros((360, 1), np.float32)
    covered[180] = 1
    recording = made(covered=covered, util=50.0)
    paid = cost(recording)
    said = verdict(recording, (), paid)
    assert "Samples tell of less than 1 % of the time" in " ".join(said.sentences)
    assert "samples tell of less than 1 % of that time" in html(recording, (), paid, said)


def test_a_site_without_accounting_is_billed_in_gpu_hours() -> None:
    paid = cost(made(facts={"unit": None, "per_node_hour": None}))
    assert (paid.billed, paid.unit, paid.priced) == (pytest.approx(4.0), "GPU-h", False)


def test_each_finding_says_what_it_cost_by_itself() -> None:
    """Three GPUs unused; the fourth hangs for half of the time."""
    util, power = np.tile(per_gpu("util", 1), (360, 1)), np.tile(per_gpu("power", 1), (360, 1))
    util[180:, 0], power[180:, 0] = 100, 0.21 * POWER
    traffic = np.where(np.arange(360) < 180, 1e9, 0)[:, None]
    recording = made(
        util=util,
        power=power,
        pcie_rx=traffic,
        memory=per_gpu("memory", 1),
        processes=per_gpu("processes", 1),
    )
    costs = {one.code: one.cost for one in diagnose(recording)}
    assert costs == {
        "RK701": pytest.approx(36.0),
        "RK706": pytest.approx(6.0 * (1 - 0.01 / 0.3), rel=0.02),
    }


def test_findings_may_overlap_and_the_report_says_so() -> None:
    """All wait for data two thirds of the time, and one GPU has less to do than the others."""
    trace = starve(0.66).with_gpu(util=of_one(2, 20, 33))
    recording = trace.recording()
    found = diagnose(recording)
    assert {one.code for one in found} == {"RK704", "RK705"}
    wasted = cost(recording).wasted
    assert wasted is not None
    assert sum(one.cost or 0 for one in found) > wasted
    alone = found[:1]
    assert OVERLAP in " ".join(text(recording, found).split())
    assert OVERLAP not in " ".join(text(recording, alone).split())
    for shown, there in ((found, True), (alone, False)):
        page = html(recording, shown, cost(recording), verdict(recording, shown))
        assert (OVERLAP in page) is there


def test_an_attempt_that_runs_is_billed_up_to_its_last_sample() -> None:
    attempts = (attempt(BEGIN, None, "RUNNING", nodes=("jrc0001",)),)
    assert cost(made(facts={"attempts": attempts})).billed == pytest.approx(48.0)


def test_an_unused_gpu_of_a_neighbour_is_not_ours() -> None:
    names = ("util", "memory", "power", "processes")
    unused = {name: per_gpu(name, 1) for name in names}
    assert [one.code for one in diagnose(made(**unused, ranks=1))] == ["RK701"]
    assert diagnose(made(**unused, ranks=1, facts={"gpus": 1})) == ()


def test_the_formula_names_its_thresholds() -> None:
    formula = cost(made()).formula
    assert f"{LIMITS.power_floor:.2f}" in formula
    assert f"{LIMITS.power_full - LIMITS.power_floor:.2f}" in formula
