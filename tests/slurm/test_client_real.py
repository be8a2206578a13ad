"""The client and the states of jobs against a real Slurm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankup.slurm.client import Client, SlurmError
from rankup.slurm.hostlist import compress, expand
from rankup.slurm.job import JobState, states

from .cluster import Cluster


@pytest.fixture
def client(slurm: Cluster) -> Client:
    return Client(environment={**os.environ, **slurm.environment})


def ended(client: Client, job_id: str, timeout: float = 60) -> list[JobState]:
    """The states of a job once none is live any more."""
    deadline = time.monotonic() + timeout
    found = states(client, job_id)
    while any(state.live for state in found):
        assert time.monotonic() < deadline, f"still live after {timeout:g} s: {found}"
        time.sleep(0.2)
        found = states(client, job_id)
    return found


def script(folder: Path, text: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return path


def test_the_cluster_describes_itself(client: Client) -> None:
    assert client.presence() == "answers"
    assert client.cluster_name() == "rankup"
    assert client.accounts("root") is None
    booster = client.partitions()["booster"]
    assert (booster.default, booster.up, booster.exclusive) == (True, True, True)
    assert (booster.gpus, booster.cores, booster.total_nodes, booster.idle_nodes) == (2, 8, 3, 3)
    assert booster.max_minutes == 120


def test_a_job_goes_from_the_queue_to_its_end(
    client: Client, slurm: Cluster, tmp_path: Path
) -> None:
    options = (f"--chdir={tmp_path}", "--output=out.txt", "--job-name=a b=c", "--comment=x JobId=1")
    job = client.submit(script(tmp_path, "exit 3"), "--nodes=2", "--hold", *options)
    (held,) = states(client, job)
    assert (held.state, held.reason, held.live) == ("PENDING", "JobHeldUser", True)
    slurm.command("scontrol", "release", job)
    (over,) = ended(client, job)
    assert (over.state, over.exit_code, over.source) == ("FAILED", 3, "scontrol")
    assert len(over.nodes) == 2
    assert over.words == "It failed: exit code 3."
    (record,) = client.show(job)
    assert (record["JobName"], record["WorkDir"]) == ("a b=c", str(tmp_path))
    assert record["Comment"].rstrip() == "x JobId=1"


def test_a_job_without_its_folder_died_before_its_first_line(
    client: Client, tmp_path: Path
) -> None:
    job = client.submit(script(tmp_path, "true"), "--chdir=/nowhere", "--output=/nowhere/out")
    (over,) = ended(client, job)
    assert (over.state, over.exit_code) == ("FAILED", None)
    assert "before its first line" in over.words


def test_an_array_is_cancelled_task_by_task(client: Client, tmp_path: Path) -> None:
    options = (f"--chdir={tmp_path}", "--output=/dev/null", "--array=0-2%1")
    job = client.submit(script(tmp_path, "sleep 61"), *options)
    names = [f"{job}_{task}" for task in range(3)]
    assert [state.job_id for state in states(client, job)] == names
    assert all(state.live for state in states(client, job))
    client.cancel(names[1:2])
    # Slurm forgets a task that is cancelled before it ran.
    (forgotten,) = states(client, names[1])
    assert (forgotten.source, forgotten.live) == ("none", False)
    assert [state.job_id for state in states(client, job)] == [names[0], names[2]]
    client.cancel([job])
    over = [(state.job_id, state.state) for state in ended(client, job)]
    assert over == [(names[0], "CANCELLED"), (names[2], "CANCELLED")]


def test_a_signal_reaches_the_script_and_a_requeue_counts(
    client: Client, slurm: Cluster, tmp_path: Path
) -> None:
    text = "trap 'echo caught >> out; exit 4' USR1\necho ready >> out\nsleep 61 & wait"
    job = client.submit(script(tmp_path, text), f"--chdir={tmp_path}", "--output=/dev/null")
    await_lines(tmp_path / "out", 1)
    slurm.command("scontrol", "requeue", job)
    deadline = time.monotonic() + 30
    while states(client, job)[0].restarts != 1:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    slurm.wait(int(job), {"PENDING"})
    slurm.release(int(job))
    await_lines(tmp_path / "out", 2)
    (running,) = states(client, job)
    assert (running.state, running.restarts, running.source) == ("RUNNING", 1, "squeue")
    slurm.command("scancel", "--signal=USR1", "--full", job)
    (over,) = ended(client, job)
    assert (over.state, over.restarts) == ("FAILED", 1)
    assert (tmp_path / "out").read_text().split() == ["ready", "ready", "caught"]


def test_what_cannot_run_is_refused_in_plain_words(client: Client, tmp_path: Path) -> None:
    job = script(tmp_path, "true")
    with pytest.raises(SlurmError, match="No node of the partition"):
        client.submit(job, "--gres=gpu:9")
    with pytest.raises(SlurmError, match="There is no such partition"):
        client.submit(job, "--partition=nix")


def test_jobs_are_found_by_the_folder_they_work_in(
    client: Client, slurm: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "a b").mkdir()
    there, job = f"--chdir={tmp_path / 'a b'}", script(tmp_path, "sleep 61")
    one = client.submit(job, there, "--output=/dev/null", "--hold")
    array = client.submit(job, there, "--output=/dev/null", "--array=0-2")
    client.submit(job, f"--chdir={tmp_path}", "--output=/dev/null")
    assert sorted(client.in_folder(tmp_path / "a b")) == sorted([one, array])
    assert len(client.mine()) == 5
    (known,) = states(client, one, folder=tmp_path / "a b")
    assert (known.state, known.source) == ("PENDING", "squeue")
    (foreign,) = states(client, one, folder=tmp_path)
    assert foreign.source == "none"
    assert [state.live for state in states(client, array, folder=tmp_path / "a b")] == [True] * 3


def test_commands_without_a_configuration_are_no_slurm(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    assert Client(environment={**environment, "SLURM_CONF": os.devnull}).presence() == "absent"


def test_a_job_that_was_never_there_is_unknown(client: Client) -> None:
    assert client.queue(["999999"]) == {}
    assert client.show("999999") == client.show("999999_3") == []
    assert client.account_records("999999") == []
    client.cancel(["999999"])
    assert [state.source for state in states(client, "999999")] == ["none"]


def test_without_a_controller_our_own_records_are_told(client: Client, slurm: Cluster) -> None:
    own = [{"job": "1", "restart": 0, "start": 1700000000, "nodes": "n1"}]
    with slurm.without_controller():
        assert client.presence() == "silent"
        (found,) = states(client, "1", own)
    assert (found.source, found.live) == ("own record", True)


def test_scontrol_reads_our_short_form_of_names(client: Client) -> None:
    hosts = ["jwb0009", "jwb0010", "jwb0012", "login1", "n2", "n1", "gpu-01.local"]
    text = compress(hosts)
    assert client.run("scontrol", "show", "hostnames", text).split() == hosts == expand(text)


def await_lines(path: Path, count: int, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, f"{path} has no {count} lines in {timeout:g} s"
        time.sleep(0.1)
