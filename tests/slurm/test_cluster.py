"""The private Slurm is a real one: what other tests take for granted about it."""

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


def test_three_nodes_are_idle_and_two_partitions_are_up(slurm: Cluster) -> None:
    lines = slurm.command("sinfo", "--noheader", "--format=%P %l %D %t %G").splitlines()
    assert sorted(lines) == [
        "booster* 2:00:00 3 idle gpu:2",
        "devel 30:00 1 idle gpu:2",
    ]


def test_each_node_has_an_address_of_its_own(slurm: Cluster) -> None:
    addresses = [slurm.node(node.name)["NodeAddr"] for node in slurm.nodes]
    assert addresses == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]


def test_a_job_has_one_task_per_node_and_sees_two_gpus_on_each(
    slurm: Cluster, tmp_path: Path
) -> None:
    job = slurm.submit(
        "srun bash -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES'",
        tmp_path,
        *("--nodes=3", "--ntasks-per-node=1", "--gres=gpu:2", "--output=out.txt"),
    )
    assert slurm.wait(job)["JobState"] == "COMPLETED"
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert sorted(lines) == ["n1 2 0,1", "n2 2 0,1", "n3 2 0,1"]


def test_a_failing_job_is_failed_with_its_exit_code(slurm: Cluster, tmp_path: Path) -> None:
    job = slurm.wait(slurm.submit("exit 7", tmp_path))
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")


def test_a_node_is_given_to_one_job_alone(slurm: Cluster, tmp_path: Path) -> None:
    first = slurm.submit(HOLD, tmp_path, "--nodes=2")
    slurm.wait(first, {"RUNNING"})
    second = slurm.submit("true", tmp_path, "--nodes=2", "--ntasks=2")
    time.sleep(2)
    assert slurm.job(second)["JobState"] == "PENDING"
    slurm.command("scancel", str(first))
    assert slurm.wait(second)["JobState"] == "COMPLETED"


def test_a_requeued_job_starts_again_within_seconds(slurm: Cluster, tmp_path: Path) -> None:
    script = """
        echo life ${SLURM_RESTART_COUNT:-0}
        [ -n "${SLURM_RESTART_COUNT:-}" ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }
    """
    job = slurm.submit(script, tmp_path, "--open-mode=append", "--output=out.txt")
    assert slurm.wait(job, timeout=30)["Restarts"] == "1"
    text = (tmp_path / "out.txt").read_text()
    assert [line for line in text.splitlines() if line.startswith("life")] == ["life 0", "life 1"]


def test_requeue_can_be_switched_off(slurm: Cluster, tmp_path: Path) -> None:
    with slurm.configured(JobRequeue="0"):
        job = slurm.submit(HOLD, tmp_path)
        slurm.wait(job, {"RUNNING"})
        refused = slurm.run("scontrol", "requeue", str(job))
    assert refused.returncode == 1
    assert "disabled" in refused.stderr
    assert slurm.job(job)["JobState"] == "RUNNING"


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_a_node_set_down_ends_the_job(slurm: Cluster, tmp_path: Path, node: str) -> None:
    job = slurm.submit(f"srun {HOLD}", tmp_path, "--nodes=3", "--no-requeue")
    slurm.wait(job, {"RUNNING"})
    slurm.set_down(node)
    assert slurm.wait(job, timeout=20)["JobState"] == "NODE_FAIL"


def test_a_killed_node_leaves_no_process_of_its_own_and_comes_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    job = slurm.submit(f"srun {HOLD}", tmp_path, "--nodes=3", "--no-requeue")
    slurm.wait(job, {"RUNNING"})
    _await_tasks(slurm.folder, job, ["n1", "n2", "n3"])
    slurm.kill_node("n2")
    deadline = time.monotonic() + 10
    while "n2" in (left := _tasks(slurm.folder, job)) and time.monotonic() < deadline:
        time.sleep(0.1)  # who is killed is there until the kernel has cleaned up
    assert left == ["n1", "n3"]
    slurm.restore("n2")
    slurm.settle()
    assert slurm.node("n2")["State"].startswith("IDLE")


def test_without_a_controller_a_command_fails(slurm: Cluster) -> None:
    with slurm.without_controller():
        assert slurm.run("scontrol", "ping").returncode == 1
    assert "is UP" in slurm.command("scontrol", "ping")


def test_a_cluster_whose_tests_are_killed_leaves_nothing(slurm: Cluster, tmp_path: Path) -> None:
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
    deadline = time.monotonic() + 60
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
    deadline = time.monotonic() + 30
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
