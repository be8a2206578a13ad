"""A run whose processes, node or disk go away in the middle still gets its report."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rankup.monitor.lines import FOLDER
from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .live import Live, live, script
from .on_slurm import Site, log, until

ON = {"RANKUP_MONITOR": "1"}
STEPS = """
import os, sys, time
import rankup
rankup.setup()
run = os.environ["RANKUP_RUN_DIR"]
end = time.time() + 300
step = 0
while time.time() < end and not os.path.exists(os.path.join(run, "go")):
    step += 1
    rankup.log_metrics(step=step, loss=1 / step)
    time.sleep(0.1)
"""


def _samples(run: Path, node: str = "*") -> int:
    """Whole samples of the node that has the fewest."""
    files = list((run / FOLDER).glob(f"{node}.host.csv"))
    return min((max(0, file.read_bytes().count(b"\n") - 1) for file in files), default=0)


def _kill(going: Live) -> None:
    """Kill the launcher, its ranks and the sampler at once: none sees another one go."""
    family = going.family()
    for process in family:
        process.suspend()
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow
def test_a_whole_job_that_is_killed_has_its_report(rankup_here: RunRankup, tmp_path: Path) -> None:
    run, train = tmp_path / "run", script(tmp_path, STEPS)
    with live(["run", "--local", "--nproc", "1", "--out", run, train], tmp_path, ON) as going:
        going.until(lambda: _samples(run) >= 2 and (run / "metrics.jsonl").exists())
        _kill(going)
        going.nobody_left()
    assert not (run / "report.html").exists()
    (file,) = (run / FOLDER).glob("*.jsonl")
    assert b'"kind":"end"' not in file.read_bytes()
    done = rankup_here(["report", run, "--formats", "html,text"])
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "It ended without a word (killed, or the machine went down)." in page
    assert "RK724" in (run / "report.txt").read_text()


@pytest.fixture
def site(slurm: Cluster, run_rankup: RunRankup, tmp_path: Path) -> Site:
    found = Site(slurm, run_rankup, tmp_path)
    found.env.update(ON)
    return found


@pytest.mark.slow
def test_a_job_whose_node_died_has_its_report_and_the_gap(site: Site) -> None:
    words = ["--nodes", "2", "--nproc", "1", "--allow-idle-gpus"]
    job, run = site.submit(*words, script(site.folder, STEPS))
    until(lambda: _samples(run, "n1") >= 3 and _samples(run, "n2") >= 3, run)
    # First of all that the node takes with it: another process that goes first would have it end in
    # order, and the controller may notice before the silence is long enough to be a gap.
    _sampler(run, "n2").kill()
    last = _last(run / FOLDER / "n2.host.csv")
    until(lambda: _last(run / FOLDER / "n1.host.csv") > last + 20, run)
    site.cluster.kill_node("n2")
    killed = time.time()
    site.ended(job, "FAILED", run)
    said = json.loads(site.rankup("report", run, "--json").stdout)
    assert "RK724" in [one["finding"]["code"] for one in said["findings"]], said
    site.rankup("report", run, "--formats", "html")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "n2: killed" in page, "its samples end before those of the run: a gap"
    assert "n1: killed" not in page
    assert '"kind":"end"' not in (run / FOLDER / "n2.jsonl").read_text(), "no end is said"
    assert _last(run / FOLDER / "n2.host.csv") <= killed
    assert _last(run / FOLDER / "n1.host.csv") > killed, log(run)


def _sampler(run: Path, node: str) -> psutil.Process:
    """The sampler of a node, all of which run on this machine."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            ours = "monitor" in words and str(run) in words
            if ours and process.environ().get("SLURMD_NODENAME") == node:
                return process
    pytest.fail(f"no sampler of {node} runs")


def _last(table: Path) -> float:
    """When the last sample was taken."""
    return float(table.read_text().splitlines()[-1].partition(",")[0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, where mounting is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes the rights of root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


FILLS = """
import os
import rankup
rankup.setup()
run = os.environ["RANKUP_RUN_DIR"]
for step in range(1, 60):
    rankup.log_metrics(step=step, loss=1 / step, note="x" * 200)
    if step == 10:
        try:
            with open(os.path.join(run, "much"), "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            print("filled:", error.strerror)
print("all steps are done")
"""


@pytest.mark.slow
def test_on_a_full_disk_the_training_goes_on(
    run_rankup: RunRankup, rankup_here: RunRankup, tmp_path: Path, small_disk: Path
) -> None:
    run, train = small_disk / "run", script(tmp_path, FILLS)
    words: list[str | Path] = ["run", "--local", "--nproc", "1", "--out", run, train]
    done = run_rankup(words, cwd=tmp_path, env=ON, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "filled: No space left on device" in done.stdout
    assert "all steps are done" in done.stdout
    assert "a line of metrics.jsonl could not be written" in done.stderr
    assert "report.txt could not be written: No space left on device" in done.stderr
    assert "nothing is wrong so far" not in done.stderr, "its end is known, though not on disk"
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line)  # whole lines, fewer of them
    assert not list(run.glob("*report.txt*")), "no half of a report"
    kept = tmp_path / "kept"
    again = rankup_here(["report", run, "--formats", "html", "--out", kept])
    assert again.returncode == 0, again.stderr
    assert (kept / "report.html").exists()
