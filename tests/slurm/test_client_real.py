"""The client and the states of jobs against a real Slurm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rankup.slurm.client import Client, SlurmError, is_ours
from rankup.slurm.hostlist import compress, expand
from rankup.slurm.job import Attempt, state_of

from .cluster import Cluster


@pytest.fixture
def client(slurm: Cluster) -> Client:
    return Client(environment={**os.environ, **slurm.environment})


def ended(client: Client, job_id: str, timeout: float = 120) -> Attempt:
    """The state of a job once it is not live any more."""
    deadline = time.monotonic() + timeout
    found = state_of(client, job_id)
    while found.live:
        assert time.monotonic() < deadline, f"still live after {timeout:g} s: {found}"
        time.sleep(0.1)
        found = state_of(client, job_id)
    return found


def script(folder: Path, text: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{text}\n")
    return path


def test_what_slurm_answers_is_read(client: Client, slurm: Cluster, tmp_path: Path) -> None:
    """The cluster, refusals, waiting jobs by their folder, and a job's end."""
    assert client.presence() == "answers"
    assert client.cluster_name() == "rankup"
    assert client.accounts("root") is None
    booster = client.partitions()["booster"]
    assert (booster.default, booster.up, booster.exclusive) == (True, True, True)
    assert (booster.gpus, booster.cores, booster.total_nodes) == (2, 8, 3)
    assert booster.max_minutes == 120
    hosts = ["jwb0009", "jwb0010", "jwb0012", "login1", "n2", "n1", "gpu-01.local"]
    named = client.run("scontrol", "show", "hostnames", compress(hosts)).split()
    assert named == hosts == expand(compress(hosts))

    path, folder = script(tmp_path, "exit 3"), tmp_path / "a b"
    folder.mkdir()
    with pytest.raises(SlurmError, match="No node of the partition"):
        client.submit(path, "--gres=gpu:9")
    with pytest.raises(SlurmError, match="There is no such partition"):
        client.submit(path, "--partition=nix")
    assert client.show("999999") == []
    assert client.account_records(["999999"]) == []
    client.cancel(["999999"])
    assert state_of(client, "999999").source == "none"

    there = (f"--chdir={folder}", "--output=/dev/null", "--hold")
    one = client.submit(path, *there, "--nodes=2", "--job-name=a b=c", "--comment=x JobId=1")
    client.submit(path, f"--chdir={tmp_path}", "--output=/dev/null", "--hold")
    ours = {r.job_id for r in client.mine() if is_ours(r.uid, r.work_dir, folder)}
    assert ours == {one}
    held = state_of(client, one, folder=folder)
    assert (held.state, held.live) == ("PENDING", True)
    assert "held" in held.words
    assert state_of(client, one, folder=tmp_path).source == "none"

    slurm.command("scontrol", "release", one)
    over = ended(client, one)
    assert (over.state, over.exit_code, over.source) == ("FAILED", 3, "scontrol")
    assert len(over.nodes) == 2
    assert over.words == "It failed: exit code 3."
    (record,) = client.show(one)
    assert (record["JobName"], record["WorkDir"]) == ("a b=c", str(folder))
    assert record["Comment"].rstrip() == "x JobId=1"


def test_commands_without_a_configuration_are_no_slurm() -> None:
    environment = {**os.environ, "SLURM_CONF": os.devnull}
    assert Client(environment=environment).presence() == "absent"


@pytest.mark.slow
def test_a_job_without_its_folder_died_before_its_first_line(
    client: Client, tmp_path: Path
) -> None:
    job = client.submit(script(tmp_path, "true"), "--chdir=/nowhere", "--output=/nowhere/out")
    over = ended(client, job)
    assert (over.state, over.exit_code) == ("FAILED", None)
    assert "before its first line" in over.words


@pytest.mark.slow
def test_a_signal_reaches_the_script_and_a_requeue_counts(
    client: Client, slurm: Cluster, tmp_path: Path
) -> None:
    text = "trap 'echo caught >> out; exit 4' USR1\necho ready >> out\nsleep 61 & wait"
    job = client.submit(script(tmp_path, text), f"--chdir={tmp_path}", "--output=/dev/null")
    await_lines(tmp_path / "out", 1)
    slurm.command("scontrol", "requeue", job)
    slurm.wait(int(job), {"PENDING"})
    assert state_of(client, job).restart == 1
    await_lines(tmp_path / "out", 2)
    running = state_of(client, job)
    assert (running.state, running.restart, running.source) == ("RUNNING", 1, "scontrol")
    slurm.command("scancel", "--signal=USR1", "--full", job)
    over = ended(client, job)
    assert (over.state, over.restart) == ("FAILED", 1)
    assert (tmp_path / "out").read_text().split() == ["ready", "ready", "caught"]


@pytest.mark.slow
def test_without_a_controller_our_own_records_are_told(client: Client, slurm: Cluster) -> None:
    own = [{"job": "1", "restart": 0, "start": 1700000000, "nodes": "n1"}]
    with slurm.without_controller():
        assert client.presence() == "silent"
        found = state_of(client, "1", own)
    assert (found.source, found.live) == ("own record", True)


def await_lines(path: Path, count: int, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < deadline, f"{path} has no {count} lines in {timeout:g} s"
        time.sleep(0.1)
