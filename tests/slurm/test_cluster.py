"""The private Slurm of the tests: it ends with them, and in CI it has to be there."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from . import guard
from .cluster import Cluster
from .fixtures import require

HOLD = "sleep 61"


@pytest.mark.slow
def test_a_killed_node_leaves_no_process_of_its_own_and_comes_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    job = slurm.submit(f"srun {HOLD}", tmp_path, "--nodes=3", "--no-requeue")
    slurm.wait(job, {"RUNNING"})
    _await_tasks(slurm.folder, job, ["n1", "n2", "n3"])
    slurm.kill_node("n2")
    _await_tasks(slurm.folder, job, ["n1", "n3"])
    slurm.restore("n2")
    slurm.settle()
    assert slurm.node("n2")["State"].startswith("IDLE")


@pytest.mark.slow
def test_a_cluster_whose_tests_are_killed_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import pathlib, time; from tests.slurm.cluster import Cluster\n"
        f"c = Cluster(); j = c.submit('srun {HOLD}', pathlib.Path({str(tmp_path)!r}), '-N3')\n"
        "c.wait(j, {'RUNNING'}); print(j, c.folder, flush=True); time.sleep(120)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            job, name = process.stdout.readline().split(maxsplit=1)
            folder = Path(name.strip())
            _await_tasks(folder, int(job), ["n1", "n2", "n3"])
            assert len(guard.processes_of(folder)) > 8
        finally:
            process.kill()
    deadline = time.monotonic() + 120
    while (folder.exists() or guard.processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert guard.processes_of(folder) == []


def test_a_missing_slurm_skips_but_in_ci_it_fails() -> None:
    require("", {"CI": "true"})
    with pytest.raises(pytest.skip.Exception, match="no slurmd"):
        require("no slurmd", {})
    with pytest.raises(pytest.fail.Exception, match="no slurmd"):
        require("no slurmd", {"CI": "true"})


def _await_tasks(folder: Path, job: int, nodes: list[str]) -> None:
    deadline = time.monotonic() + 120
    while (found := _tasks(folder, job)) != nodes:
        assert time.monotonic() < deadline, f"tasks on {found}, not on {nodes}"
        time.sleep(0.1)


def _tasks(folder: Path, job: int) -> list[str]:
    """The nodes on which the job's `HOLD` runs, one entry per process."""
    found = []
    for process in guard.processes_of(folder):
        with suppress(psutil.Error, OSError):
            ours = guard.variable(process, "SLURM_JOB_ID") == str(job)
            if ours and process.name() == "sleep" and process.cmdline()[-1] == HOLD.split()[-1]:
                found.append(guard.variable(process, "SLURMD_NODENAME"))
    return sorted(found)
