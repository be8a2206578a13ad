"""A Slurm job of two nodes carries a sampler on each and ends with its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankup.monitor.lines import FOLDER
from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .live import script
from .on_slurm import Site, log

WORK = "import time\ntime.sleep(6)\n"


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    found = Site(slurm, run_rankup, tmp_path)
    found.env["RANKUP_MONITOR"] = "1"
    return found


def test_two_nodes_end_with_their_report(site: Site, tmp_path: Path) -> None:
    job, run = site.submit(
        "--nodes", "2", "--nproc", "1", "--allow-idle-gpus", script(tmp_path, WORK)
    )
    site.ended(job, "COMPLETED", run)
    files = sorted((run / FOLDER).glob("*.jsonl"))
    assert len(files) == 2
    for file in files:
        head, *samples = [json.loads(line) for line in file.read_text().splitlines()]
        assert head["node"] == file.stem
        assert head["life"].startswith(f"{job}.")
        assert samples
    assert (run / "report.html").stat().st_size > 100_000
    said = log(run)
    assert (run / "report.txt").read_text().splitlines()[0] in said


@pytest.mark.slow
def test_the_cause_of_a_failure_is_read_last(site: Site, tmp_path: Path) -> None:
    broken = script(tmp_path, "import time\ntime.sleep(3)\nraise ValueError('no data')\n")
    job, run = site.submit("--nproc", "1", "--allow-idle-gpus", broken)
    site.ended(job, "FAILED", run)
    said = log(run)
    assert "ValueError: no data" in said.rstrip().splitlines()[-1]
    assert (run / "report.html").exists()
    assert json.loads(site.rankup("report", str(run), "--json").stdout)["verdict"]
