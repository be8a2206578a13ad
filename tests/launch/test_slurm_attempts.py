"""One run over several attempts of a job: signals, time limits, failed nodes, resumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .live import script
from .on_slurm import (
    ONE,
    ONE_EACH,
    SECONDS,
    Site,
    asked,
    attempts,
    last_line,
    log,
    starts,
    until,
)


@pytest.fixture
def site(slurm: Cluster, rankup_here: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, rankup_here, tmp_path)


# Its first attempt makes its steps slowly until it is to stop, the others are through at once.
COUNTS = """
import json, os, sys, time
from pathlib import Path
import rankup
world = rankup.setup()
run, steps = Path(os.environ["RANKUP_RUN_DIR"]), int(sys.argv[1])
place = run / "place"
first, loss = json.loads(place.read_text()) if place.exists() else (0, 1.0)
deadline = rankup.Deadline(float(sys.argv[2]))
rankup.barrier()
for step in range(first, steps):
    loss = 0.9 * loss + float(rankup.all_reduce(float(step * (world.rank + 1)), "sum"))
    if world.is_root:
        with (run / "steps").open("a") as file:
            print(step, repr(loss), file=file)
    time.sleep(0 if first else 0.1)
    if deadline.reached():
        with deadline.saving():
            if world.is_root:
                place.write_text(json.dumps([step + 1, loss]))
        deadline.leave()
"""


def _check_counts(run: Path, steps: int, ranks: int) -> None:
    """All steps of all ranks, each once, with the numbers of a run that was never interrupted."""
    loss, expected = 1.0, []
    for step in range(steps):
        loss = 0.9 * loss + step * sum(range(1, ranks + 1))
        expected.append(loss)
    lines = [line.split() for line in (run / "steps").read_text().splitlines()]
    assert [int(step) for step, _ in lines] == list(range(steps))
    assert [float(loss) for _, loss in lines] == pytest.approx(expected, rel=1e-5)


def test_before_its_time_limit_a_script_saves_and_goes_on_in_a_next_attempt(site: Site) -> None:
    """Slurm's signal comes from the test instead of a minute before the limit."""
    path = script(site.folder, COUNTS)
    job, run = site.submit(*ONE, path, "6000", "1")
    until(lambda: (run / "steps").exists(), run)
    site.cluster.command("scancel", "--signal=USR1", str(job))
    site.ended(job, "COMPLETED", run)
    _check_counts(run, 6000, 1)
    assert starts(run) == 2
    assert [record.get("stopped") for record in attempts(run) if "end" in record] == [True, None]
    assert {record["job"] for record in attempts(run)} == {str(job)}
    assert "stopped with a checkpoint before the time limit" in log(run)


@pytest.mark.slow
def test_slurms_own_time_limit_is_kept(site: Site) -> None:
    path = script(site.folder, COUNTS)
    job, run = site.submit("--time", "1m", path, "1500", "25")
    site.ended(job, "COMPLETED", run, timeout=300)
    _check_counts(run, 1500, 2)
    assert starts(run) >= 2
    assert attempts(run)[1]["stopped"] is True
    assert "DUE TO TIME LIMIT" not in log(run)


# Without torch in the ranks, which do nothing until they are told to.
WAITS = """
import os, time
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
(run / "checkpoints").mkdir(exist_ok=True)
up = run / f"part{attempt}-{os.environ['RANK']}"  # who sees its name at last can read it
up.write_text(os.environ["RANKUP_RESUME"])
up.rename(run / f"up{attempt}-{os.environ['RANK']}")
end = time.monotonic() + 300
while not (run / "go").exists() and time.monotonic() < end:
    time.sleep(0.1)
"""


def _up(run: Path, attempt: int, ranks: int) -> bool:
    return len(list(run.glob(f"up{attempt}-*"))) == ranks


def test_a_node_fails_and_the_job_is_requeued_as_often_as_allowed(site: Site) -> None:
    job, run = site.submit(*ONE_EACH, "--retries", "1", script(site.folder, WAITS))
    until(lambda: _up(run, 0, 2), run)
    site.cluster.set_down("n2")
    until(lambda: _up(run, 1, 2), run)
    (run / "go").touch()
    site.ended(job, "COMPLETED", run)
    assert (run / "up0-0").read_text() == "0"
    assert (run / "up1-0").read_text() == "1", "the second attempt resumes"


@pytest.mark.slow
def test_without_retries_a_killed_node_ends_the_run_which_goes_on_by_the_id_of_its_job(
    site: Site,
) -> None:
    job, run = site.submit(*ONE_EACH, script(site.folder, WAITS))
    until(lambda: _up(run, 0, 2), run)
    site.cluster.kill_node("n2")
    site.ended(job, "FAILED", run)
    assert "--retries allows 0 of that" in log(run)
    assert "--retries allows 0 of that" in site.rankup("logs", run).stdout
    (run / "go").touch()
    again, there = site.submit("--resume", str(job))
    assert there == run
    site.ended(again, "COMPLETED", run)
    assert asked(run) == [str(job), str(again)]


@pytest.mark.slow
def test_of_two_resumes_at_once_one_is_refused(site: Site) -> None:
    job, run = site.submit("--sbatch=--hold", script(site.folder, WAITS))
    site.cluster.command("scancel", str(job))
    until(lambda: not site.queue(), run)
    command = [sys.executable, "-m", "rankup", "run", "--resume", str(run), "--sbatch=--hold"]
    both = [
        subprocess.Popen(
            command,
            cwd=site.folder,
            env={**os.environ, **site.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=SECONDS)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    refused = said[0] if both[0].returncode else said[1]
    assert "is going on already" in refused
    assert asked(run) == [str(job), *site.queue()]


HANGS = """
import time
from datetime import timedelta
import rankup
world = rankup.setup(timeout=timedelta(seconds=8))
rankup.barrier()
if world.rank == 1:
    time.sleep(300)
rankup.barrier()
"""


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(site: Site) -> None:
    job, run = site.submit(*ONE_EACH, script(site.folder, HANGS))
    site.ended(job, "FAILED", run)
    said = last_line(site.rankup("logs", run).stdout)
    assert "rank 1 on n2 did not arrive: it is at script.py:8" in said
    assert "rank 0 waits in it at script.py:9" in said


# Without torch in the ranks; its attempt is over when the marker is there, as Deadline leaves it.
TWICE = """
import os, sys
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
if os.environ["RANK"] == "0":
    first = not (run / "first").exists()
    (run / ("first" if first else "second")).write_text(os.environ["SLURM_JOB_ID"])
    if first:
        (run / "requeue").touch()
"""


@pytest.mark.slow
def test_where_requeue_is_off_a_second_job_follows(site: Site) -> None:
    path = script(site.folder, TWICE)
    job, run = site.submit("--sbatch=--no-requeue", path)
    site.ended(job, "COMPLETED", run)
    [follower] = [record for record in attempts(run) if "follows" in record]
    assert follower["follows"] == str(job)
    site.ended(int(follower["job"]), "COMPLETED", run)
    assert (run / "first").read_text() == str(job)
    assert (run / "second").read_text() == follower["job"]
    assert not (run / "requeue").exists()
    assert f"job {follower['job']} follows" in log(run)
    status = site.rankup("status", run).stdout
    assert str(job) in status
    assert follower["job"] in status
