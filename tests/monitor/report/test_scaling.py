"""What a series of runs says of scaling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.monitor.billing import cost
from rankup.monitor.diagnose import diagnose, verdict
from rankup.monitor.recording import Recording
from rankup.monitor.report.scaling import scaling, scaling_text
from rankup.monitor.report.scaling_page import scaling_html

from ..handmade import BEGIN, NO_STEPS, attempt, made
from .browser import Browser
from .test_browser import THROUGH

STEPS = 400
BATCH = 65_536  # tokens


def run(nodes: int, efficiency: float = 1.0, batch: int = BATCH, steps: int = STEPS) -> Recording:
    """A run of 4 GPUs per node, so much slower than ideal; it does the same work as others."""
    step = batch / BATCH * 2.0 / (nodes * efficiency)
    number = np.arange(1, steps + 1)
    base = made(nodes=nodes)
    end = BEGIN + 60 + step * steps
    names = tuple(head.node for head in base.heads)
    facts = replace(
        base.facts,
        run=f"run-{nodes}",
        command=f"rankup run --nodes {nodes} --time=2h train.py --batch 64",
        nodes=nodes,
        gpus=4,
        ranks=4,
        unit="core-h",
        per_node_hour=48.0,
        attempts=(attempt(BEGIN, end, "COMPLETED", nodes=names),),
    )
    record = replace(
        NO_STEPS,
        time=BEGIN + 60 + step * number,
        step=number,
        loss=2 + 8 / number**0.5,
        seconds=np.full(steps, step),
        rate=np.full(steps, batch / step),
        data_wait=np.full(steps, 0.01),
        mfu=np.full(steps, np.nan),
        unit="tokens",
    )
    return replace(base, facts=facts, steps=record, end=end)


def _with(recording: Recording, **facts: Any) -> Recording:
    return replace(recording, facts=replace(recording.facts, **facts))


def test_speed_up_and_efficiency_are_those_of_the_runs() -> None:
    found = scaling([run(4, 0.8), run(1), run(2, 0.9)])
    assert [point.count for point in found.points] == [4, 8, 16]
    assert [point.speed_up for point in found.points] == pytest.approx([1, 1.8, 3.2])
    assert [point.efficiency for point in found.points] == pytest.approx([1, 0.9, 0.8])
    assert [point.marginal for point in found.points[1:]] == pytest.approx([0.8, 0.7])
    assert found.speed_unit == "tokens/s"
    assert found.warnings == ()
    assert found.pays_up_to == 16
    assert found.headline == "Every GPU paid, up to 16."


def test_the_point_where_more_do_not_pay_is_named() -> None:
    found = scaling([run(1), run(2, 0.95), run(4, 0.9), run(8, 0.5)])
    # From 16 to 32 GPUs the speed goes from 3.6 to 4: 0.1 of ideal.
    assert found.pays_up_to == 16
    assert found.headline == "More than 16 GPUs did not pay."
    assert "Each GPU added from 16 to 32 gave 10%" in found.sentences[1]
    assert found.points[-1].per_work == pytest.approx(2 * (found.points[0].per_work or 0))


def test_the_first_of_one_gpu_is_no_group() -> None:
    one, four = (_with(run(nodes, speed), gpus=1) for nodes, speed in ((1, 1.0), (4, 0.3)))
    found = scaling([one, four])
    assert found.sentences[1].endswith(" of what the first gives.")


def test_two_runs_on_as_many_gpus_count_by_the_faster() -> None:
    found = scaling([run(1), run(2, 0.95), _with(run(2, 0.5), run="again"), run(4, 0.9)])
    assert found.points[-1].marginal == pytest.approx((3.6 - 1.9) / 8 * 4)
    assert found.pays_up_to == 16


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (run(2, batch=2 * BATCH), "global batch differs"),
        (run(2, steps=100), "100 to 400 steps"),
        (_with(run(2), command="rankup run --nodes 2 b.py"), "b.py"),
    ],
)
def test_work_that_differs_is_warned_of(other: Recording, said: str) -> None:
    warnings = scaling([run(1), other]).warnings
    assert any(said in warning for warning in warnings)


def test_no_argument_reaches_the_terminal_raw() -> None:
    other = _with(run(2), command="rankup run b.py \x1b[31mred", run="a\x1b[31mb")
    found = scaling([run(1), replace(other, steps=NO_STEPS), run(4)])
    assert "\x1b" not in scaling_text(found)
    assert "\\x1b[31mred" in scaling_text(found)


def test_cpu_runs_count_ranks() -> None:
    found = scaling([_with(one, gpus=0) for one in (run(1), run(2))])
    assert found.thing == "rank"
    assert [point.count for point in found.points] == [4, 8]


def test_without_steps_the_time_of_whole_runs_counts() -> None:
    found = scaling([replace(run(nodes), steps=NO_STEPS) for nodes in (1, 2)])
    assert found.speed_unit == "runs/h"
    assert found.points[1].speed_up == pytest.approx(860 / 460)


def test_a_run_that_says_nothing_is_named() -> None:
    mute = replace(run(4), steps=NO_STEPS)
    found = scaling([run(1), run(2), mute])
    assert found.points[-1].speed_up is None
    assert any("run-4" in warning for warning in found.warnings)
    assert "-" in scaling_text(found)


def test_one_number_of_gpus_tells_nothing() -> None:
    found = scaling([run(1), run(1)])
    assert found.pays_up_to is None
    assert "cannot be told" in found.headline


@pytest.mark.parametrize("runs", [[], [run(1)]])
def test_less_than_two_runs_are_refused(runs: list[Recording]) -> None:
    with pytest.raises(UserError, match="two or more"):
        scaling(runs)


def test_the_text_fits_a_terminal() -> None:
    lines = scaling_text(scaling([run(nodes, 0.9) for nodes in (1, 2, 64)])).splitlines()
    table = lines[: lines.index("")]
    assert len(table) == 4
    assert max(map(len, table)) <= 80


@pytest.mark.slow
def test_the_page_has_its_plots(browser: Browser, tmp_path: Path) -> None:
    runs = []
    for one in (run(1), run(2, 0.95), run(4, 0.5)):
        named = _with(one, name="</script><script>alert(1)</script>")
        found = diagnose(named)
        runs.append((named, found, cost(named), verdict(named, found)))
    path = tmp_path / "scaling.html"
    path.write_text(scaling_html(runs), encoding="utf-8")
    tab = browser.open(path)
    assert len(tab.requests()) == 1
    assert tab.run(THROUGH) == 0, "plots were not drawn"
    ids = tab.run("[...document.querySelectorAll('figure')].map(f => f.dataset.plot)")
    assert ids == ["speed-up", "efficiency", "loss-steps", "loss-time", "cost"]
    assert "More than 8 GPUs did not pay." in tab.run("document.querySelector('h1').textContent")
    assert "alert(1)" in tab.run("document.querySelector('.run').textContent")

    # Its plots follow light and dark.
    grid = "document.querySelector('[data-plot=cost] .area').layout.font.color"
    before = tab.run(grid)
    tab.run("document.getElementById('theme').click()")
    assert tab.run(grid) != before
    assert tab.complaints() == []
    tab.close()
