"""What fails on nodes of a real Slurm, how that is said, and how the run goes on."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import RunRankup
from tests.slurm.cluster import Cluster

from .live import script
from .on_slurm import ONE_EACH, Site, asked, last_line, log, starts, until


@pytest.fixture
def site(slurm: Cluster, rankup_here: RunRankup, tmp_path: Path) -> Site:
    return Site(slurm, rankup_here, tmp_path)


WAITS = """
import os, time
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
life = os.environ.get("SLURM_RESTART_COUNT", "0")
(run / "checkpoints").mkdir(exist_ok=True)
up = run / f"part{life}-{os.environ['RANK']}"  # who sees its name at last can read it
up.write_text(os.environ["RANKUP_RESUME"])
up.rename(run / f"up{life}-{os.environ['RANK']}")
end = time.monotonic() + 300
while not (run / "go").exists() and time.monotonic() < end:
    time.sleep(0.1)
"""


def _up(run: Path, life: int, ranks: int) -> bool:
    return len(list(run.glob(f"up{life}-*"))) == ranks


def test_a_node_fails_and_the_job_starts_again_as_often_as_allowed(site: Site) -> None:
    path = script(site.folder, WAITS)
    job, run = site.submit(*ONE_EACH, "--retries", "1", path)
    until(lambda: _up(run, 0, 2), run)
    site.cluster.set_down("n2")
    until(lambda: _up(run, 1, 2), run)
    assert (run / "up0-0").read_text() == "0"
    assert (run / "up1-0").read_text() == "1", "the second life resumes"
    site.cluster.command("scontrol", "requeue", str(job))  # what Slurm does for a dead node
    site.ended(job, "FAILED", run)
    assert starts(run) == 3
    assert "--retries allows 1 of that" in log(run)
    assert f"rankup run --resume {run}" in log(run)
    assert not _up(run, 2, 1)


@pytest.mark.slow
def test_without_retries_a_failed_node_ends_the_run_with_the_reason(site: Site) -> None:
    path = script(site.folder, WAITS)
    job, run = site.submit("--nodes", "2", path)
    until(lambda: _up(run, 0, 4), run)
    site.cluster.kill_node("n2")
    site.ended(job, "FAILED", run)
    assert "--retries allows 0 of that" in log(run)
    said = site.rankup("logs", run).stdout
    assert "--retries allows 0 of that" in said
    (run / "go").touch()
    again, _ = site.submit("--resume", run)
    site.ended(again, "COMPLETED", run)


@pytest.mark.slow
def test_a_killed_step_fails_the_job(site: Site) -> None:
    job, run = site.submit("--nodes", "2", script(site.folder, WAITS))
    until(lambda: _up(run, 0, 4), run)
    began = time.monotonic()
    site.cluster.command("scancel", f"{job}.1")
    site.ended(job, "FAILED", run)
    assert time.monotonic() - began < 30
    said = site.rankup("logs", run).stdout
    assert f"STEP {job}.1 ON n1 CANCELLED" in said


DIES = """
import os, signal, rankup
world = rankup.setup()
rankup.barrier()
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
rankup.barrier()
"""


@pytest.mark.slow
def test_a_killed_rank_is_named(site: Site) -> None:
    job, run = site.submit(*ONE_EACH, script(site.folder, DIES))
    site.ended(job, "FAILED", run)
    said = last_line(site.rankup("logs", run).stdout)
    assert "rank 1 on n2" in said
    assert "killed by SIGKILL" in said
    assert last_line(log(run)) == said


HANGS = """
import time
from datetime import timedelta
import rankup
world = rankup.setup(timeout=timedelta(seconds=20))
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


def test_the_preflight_names_the_node_where_torchrun_is_missing(site: Site) -> None:
    # Bash reads `rc` before it does anything on a node.
    rc = script(site.folder, '[ "$SLURMD_NODENAME" = n1 ] || PATH=/usr/bin:/bin', "rc")
    programs = shlex.quote(str(Path(sys.executable).parent))
    activate = script(
        site.folder, f"export PATH={programs}:$PATH BASH_ENV={shlex.quote(str(rc))}", "activate"
    )
    path = script(site.folder, WAITS)
    job, run = site.submit("--nodes", "2", "--environment", activate, path)
    site.ended(job, "FAILED", run)
    text = log(run)
    assert "preflight: node n2: torchrun is not on PATH" in text
    assert "node n1" not in text
    assert "torch was not started anywhere" in text
    assert not list(run.glob("up*"))
    assert "node n2: torchrun is not on PATH" in site.rankup("logs", run).stdout


def test_the_preflight_counts_what_slurm_granted(site: Site) -> None:
    job, run = site.submit("--sbatch=--gres=gpu:1", script(site.folder, WAITS))
    site.ended(job, "FAILED", run)
    assert "preflight: node n1: Slurm granted 1 GPU(s), the job needs 2" in log(run)
    assert not list(run.glob("up*"))


FAILS_ONCE = """
import os, sys
from pathlib import Path
run = Path(os.environ["RANKUP_RUN_DIR"])
(run / "checkpoints").mkdir(exist_ok=True)
if os.environ["RANKUP_RESUME"] == "0":
    sys.exit("not yet")
(run / f"resumed{os.environ['RANK']}").touch()
"""


@pytest.mark.slow
def test_a_failed_run_goes_on_by_the_id_of_its_job(site: Site) -> None:
    job, run = site.submit(script(site.folder, FAILS_ONCE))
    site.ended(job, "FAILED", run)
    again, there = site.submit("--resume", str(job))
    assert there == run
    site.ended(again, "COMPLETED", run)
    assert (run / "resumed0").exists()
    assert asked(run) == [str(job), str(again)]


def test_a_run_that_waits_or_runs_is_not_started_again(site: Site) -> None:
    path = script(site.folder, FAILS_ONCE)
    job, run = site.submit("--sbatch=--hold", path)
    before = (run / "job.json").read_bytes()
    for name in (str(job), str(run), "last"):
        said = site.rankup("run", "--resume", name, code=2).stderr
        assert f"going on already: job {job} is PENDING" in said
    assert (run / "job.json").read_bytes() == before
    assert site.queue() == [str(job)]


def test_of_two_resumes_at_once_one_is_refused(site: Site) -> None:
    job, run = site.submit("--sbatch=--hold", script(site.folder, FAILS_ONCE))
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
    said = [process.communicate(timeout=60)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    refused = said[0] if both[0].returncode else said[1]
    assert "is going on already" in refused
    assert asked(run) == [str(job), *site.queue()]
