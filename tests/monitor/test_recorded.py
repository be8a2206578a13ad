"""Recorded runs, from their files to the report."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from rankup.launch import report
from rankup.launch.attempts import NO_SLURM
from rankup.monitor.billing import cost
from rankup.monitor.diagnose import diagnose, verdict
from rankup.monitor.lines import FOLDER, header
from rankup.monitor.load import load
from rankup.monitor.recording import Facts, Recording
from rankup.monitor.report.html import html
from rankup.monitor.report.text import text
from rankup.site.config import Config

from .record import HERE, PLANS
from .rundirs import usable

# The machine was busy with other things, which is what RK709 says; `recorded/README.md`.
BUSY = "RK709"
EXPECTED = {
    "healthy": {BUSY},
    "sick": {"RK701", BUSY},
    "torn": set(),
}
HEADLINES = {
    "healthy": "More processes than cores took turns: 0.045 of 0.073 node-h were wasted.",
    "sick": "Two of four GPUs did nothing: ",
    "torn": "Nothing wrong was found in what is on record; the GPUs worked ",
}


def known(name: str) -> Facts:
    """What `job.json` says of a recorded run."""
    return report.facts(HERE / name, Config(), NO_SLURM)


def of(name: str) -> Recording:
    return load(HERE / name, known(name))


def codes(recording: Recording) -> set[str]:
    return {one.code for one in diagnose(recording)}


def test_each_plan_is_recorded_and_small() -> None:
    assert {path.name for path in HERE.iterdir() if path.is_dir()} == set(PLANS) == set(EXPECTED)
    for file in HERE.rglob("*"):
        assert not file.is_file() or file.stat().st_size < 60_000, file


@pytest.mark.parametrize("name", EXPECTED)
def test_from_the_files_to_the_report(name: str) -> None:
    recording = of(name)
    usable(recording)
    assert recording.nodes == ("node1",)
    assert recording.ranks.tolist() == [0, 1]
    assert len(recording.gpus) == PLANS[name].busy + PLANS[name].idle
    assert len(recording.steps.step) > 50
    found = diagnose(recording)
    assert {one.code for one in found} == EXPECTED[name]
    said, paid = verdict(recording, found), cost(recording)
    assert said.headline.startswith(HEADLINES[name])
    lines = text(recording, found)
    assert said.headline[:40] in lines
    if name == "torn":
        assert recording.torn == 1
        # The one until the next sampler, and the one to the end.
        assert [gap.why for gap in recording.gaps].count("killed") == 2
        assert 90 <= recording.gaps[0].end - recording.gaps[0].begin <= 120
    page = html(recording, found, paid, said)
    assert said.headline in page
    assert len(page) < 6_000_000


def test_the_idle_gpus_of_the_sick_run_are_named_and_priced() -> None:
    (one,) = [one for one in diagnose(of("sick")) if one.code == "RK701"]
    assert one.gpus == (2, 3)
    assert "2 of 4 billed GPUs" in one.message
    assert one.cost == pytest.approx(0.148, abs=0.002)  # 4 min 26 s of two GPUs


def _alone(run: Path) -> None:
    """As on a machine of its own: the load of the two ranks, and none of other people."""
    (path,) = (run / FOLDER).glob("*.host.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, header("host"), lineterminator="\n")
        table.writeheader()
        table.writerows({**row, "load": 2.0} for row in rows)


def test_without_the_others_load_nothing_is_found(tmp_path: Path) -> None:
    name = "healthy"
    run = shutil.copytree(HERE / name, tmp_path / name)
    _alone(run)
    recording = load(run, known(name))
    found = diagnose(recording)
    assert found == ()
    assert verdict(recording, found).headline.startswith(
        "Nothing wrong was found; the cores worked"
    )
