"""The client: what it asks, how it reads the answers, and what it says when Slurm refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.slurm import parse
from rankup.slurm.client import Client, SlurmError, is_ours

from .fake import FakeSlurm, recorded


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def client(fake: FakeSlurm) -> Client:
    return Client(timeout=20, environment=fake.environment)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\n")
    return path


def test_a_job_is_submitted_and_its_id_returned(
    fake: FakeSlurm, client: Client, script: Path
) -> None:
    fake.answers("sbatch --parsable", out="Project balance: 12\n4711;juwels\n")
    assert client.submit(script, "--hold") == "4711"
    assert fake.calls("sbatch") == [["--parsable", "--hold", str(script)]]


def test_what_is_no_job_id_is_an_error(fake: FakeSlurm, client: Client, script: Path) -> None:
    fake.answers("sbatch", out="welcome\n")
    with pytest.raises(SlurmError, match=r"'welcome', not the id of a job.*squeue --me") as caught:
        client.submit(script)
    assert caught.value.unreachable, "it may have been submitted"


def test_a_refusal_says_which_command_what_it_said_and_what_to_do(
    fake: FakeSlurm, client: Client, script: Path
) -> None:
    said = "Batch job submission failed: Requested node configuration is not available"
    fake.answers("sbatch", err=f"sbatch: error: {said}\n", code=1)
    with pytest.raises(UserError) as caught:
        client.submit(script)
    message = str(caught.value)
    assert message.startswith("sbatch: Batch job submission failed: Requested node configuration")
    assert "No node of the partition has what the job asks for" in message
    assert isinstance(caught.value, SlurmError)
    assert not caught.value.unreachable


def test_variables_that_change_outputs_do_not_reach_the_commands(
    fake: FakeSlurm, script: Path
) -> None:
    changed = {"SBATCH_PARTITION": "x", "SQUEUE_FORMAT": "%i", "SINFO_FORMAT": "%P"}
    changed |= {"SACCT_FORMAT": "JobID", "LC_ALL": "de_DE.UTF-8", "SLURM_CONF": "/c"}
    changed |= {"SLURM_RESTART_COUNT": "2", "SLURM_CPUS_PER_TASK": "9", "SLURM_CLUSTERS": "x"}
    client = Client(environment={**fake.environment, **changed})
    fake.answers("squeue")
    fake.answers("sbatch", out="1\n")
    client.mine()
    client.submit(script)
    (asked,) = fake.environments("squeue")
    (submitted,) = fake.environments("sbatch")
    for environment in (asked, submitted):
        assert not {"SBATCH_PARTITION", "SQUEUE_FORMAT", "SINFO_FORMAT", "SACCT_FORMAT"} & set(
            environment
        )
        assert environment["SLURM_CONF"] == "/c"
    assert asked["LC_ALL"] == "C"
    assert asked["SLURM_TIME_FORMAT"] == "standard"
    # The environment of sbatch is that of the job: it stays the user's.
    assert submitted["LC_ALL"] == "de_DE.UTF-8"
    # Of a job whose shell this is, nothing but the place of the configuration.
    assert [name for name in submitted if name.startswith("SLURM_")] == ["SLURM_CONF"]
    assert "SLURM_CLUSTERS" not in asked


def test_a_command_that_hangs_is_ended(fake: FakeSlurm, script: Path) -> None:
    impatient = Client(timeout=0.3, environment=fake.environment)
    fake.answers("squeue", seconds=600)
    with pytest.raises(SlurmError, match=r"squeue: no answer in 0.3 s") as caught:
        impatient.mine()
    assert caught.value.unreachable
    fake.answers("sbatch", seconds=600)
    with pytest.raises(SlurmError, match="may be there all the same"):
        impatient.submit(script)


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    client = Client(environment={"PATH": str(tmp_path)})
    assert client.presence() == "absent"
    with pytest.raises(SlurmError, match="scontrol: there is no such command on PATH"):
        client.cluster_name()


def test_slurm_answers_where_a_controller_is_up(fake: FakeSlurm, client: Client) -> None:
    fake.answers("scontrol ping", out=recorded("22.05.8/ping.txt"))
    assert client.presence() == "answers"
    down = "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n"
    fake.answers("scontrol ping", out=down, code=1)
    assert client.presence() == "answers"
    fake.answers("scontrol ping", out="Slurmctld(primary) at a is DOWN\n", code=1)
    assert client.presence() == "silent"


def test_slurms_commands_without_a_configuration_are_no_slurm(
    fake: FakeSlurm, client: Client
) -> None:
    for said in (
        "scontrol: fatal: Could not establish a configuration source",
        "scontrol: error: ClusterName needs to be specified",
        "scontrol: fatal: Unable to process configuration file",
        "scontrol: error: fetch_config: DNS SRV lookup failed",
    ):
        fake.answers("scontrol ping", err=f"{said}\n", code=1)
        assert client.presence() == "absent", said


def test_a_busy_controller_gets_a_second_try(
    fake: FakeSlurm, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of its own: the first one is too short for this answer."""
    monkeypatch.setattr("rankup.slurm.client.PING_TIMEOUTS", (0.3, 60.0))
    fake.answers("scontrol ping", out=recorded("22.05.8/ping.txt"), seconds=0.6)
    assert client.presence() == "answers"


def test_the_configuration_is_read(fake: FakeSlurm, client: Client) -> None:
    fake.answers("scontrol show config", out=recorded("22.05.8/config.txt"))
    assert client.cluster_name() == "hc"
    fake.answers("scontrol show config", out="JobRequeue = 0\n")
    assert client.cluster_name() is None


def test_accounts_are_those_of_this_cluster(fake: FakeSlurm, client: Client) -> None:
    fake.answers("scontrol show config", out="ClusterName = juwels\n")
    fake.answers("sacctmgr show assoc user=ada cluster=juwels", out="proj1\nproj2\nproj1\n")
    assert client.accounts("ada") == frozenset(("proj1", "proj2"))


def test_accounts_are_unknown_without_slurmdbd(fake: FakeSlurm, client: Client) -> None:
    fake.answers("scontrol show config", out=recorded("22.05.8/config.txt"))
    said = "You are not running a supported accounting_storage plugin\n"
    fake.answers("sacctmgr", err=said, code=1)
    assert client.accounts("ada") is None
    fake.answers("sacctmgr", out="\n")
    assert client.accounts("ada") is None


def test_no_ids_ask_nothing(fake: FakeSlurm, client: Client) -> None:
    client.cancel([])
    assert fake.calls("scancel") == []


def test_jobs_of_a_folder_are_this_users_that_work_there(
    fake: FakeSlurm, client: Client, tmp_path: Path
) -> None:
    me, other = os.getuid(), os.getuid() + 1
    folder = tmp_path / "a|b c"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    rows = [
        f"7_1|RUNNING|N/A|n1|None|{me}|{folder}",
        f"7_2|PENDING|N/A||Resources|{me}|{folder}",
        f"9|PENDING|N/A||(Nodes required|odd)|{me}|{tmp_path / 'link'}",
        f"10|COMPLETED|N/A|n1|None|{me}|{folder}",
        f"11|RUNNING|N/A|n1|None|{other}|{folder}",
        f"12|RUNNING|N/A|n1|None|{me}|{tmp_path}",
        "13|RUNNING|N/A|n1|None",
    ]
    fake.answers(f"squeue -u {me}", out="\n".join(rows) + "\n")
    for place in (folder, tmp_path / "link"):
        ours = [row.job_id for row in client.mine() if is_ours(row.uid, row.work_dir, place)]
        assert ours == ["7_1", "7_2", "9"]
    assert [row.job_id for row in client.mine()] == ["7_1", "7_2", "9", "12"]
    assert client.mine()[2].reason == "(Nodes required|odd)"
    fake.unreachable()
    with pytest.raises(SlurmError):
        client.mine()


def test_unknown_jobs_are_in_no_answer(fake: FakeSlurm, client: Client) -> None:
    for said in ("slurm_load_jobs error: Invalid job id specified", "Job 28_7 not found"):
        fake.answers("scontrol show job", err=said, code=1)
        assert client.show("4711") == []


def test_another_failure_of_squeue_is_an_error(fake: FakeSlurm, client: Client) -> None:
    fake.unreachable()
    with pytest.raises(SlurmError, match="does not answer") as caught:
        client.mine()
    assert caught.value.unreachable


def test_names_and_comments_that_look_like_fields_change_none(
    fake: FakeSlurm, client: Client
) -> None:
    fake.answers("scontrol show job", out=recorded("22.05.8/exit-3.txt"))
    (record,) = client.show("29")
    assert record["JobName"] == "a b=c d"
    assert record["Comment"] == "JobId=77 x=y JobState=FAKE"
    assert (record["JobId"], record["JobState"], record["ExitCode"]) == ("29", "FAILED", "3:0")
    assert record["WorkDir"] == "/home/ada"


def test_newer_versions_fields_and_paths_with_spaces_are_read(
    fake: FakeSlurm, client: Client
) -> None:
    fake.answers("scontrol show job", out=recorded("24.05/running.txt"))
    (record,) = client.show("9001")
    assert record["JobState"] == "RUNNING"
    assert record["Command"] == "/p/project/my scripts/job.sh --lr=1"
    assert record["WorkDir"] == "/p/project/my runs"
    assert record["StdOut"] == "/p/project/my runs/log/job.out"
    assert record["Comment"] == "ours = good"
    assert record["AllocTRES"].endswith("gres/gpu=8")
    assert (record["TresPerNode"], record["TresPerTask"]) == ("gres/gpu:4", "cpu=48")


@given(st.text(max_size=300))
def test_any_answer_is_read_without_an_error(text: str) -> None:
    assert isinstance(parse.job_records(f"JobId=1 JobName={text}"), list)
    assert isinstance(parse.queue_rows(f"1|RUNNING|{text}"), list)
    assert isinstance(parse.account_rows(f"1|{text}"), list)
    assert isinstance(parse.config_values(text), dict)


@given(
    st.text(alphabet=" =abJobStateId:()0/\"'", max_size=40),
    st.text(alphabet=" =abJobStateId:()0/\"'", max_size=40),
)
def test_any_name_and_comment_leave_the_fields_alone(name: str, comment: str) -> None:
    text = recorded("22.05.8/exit-3.txt")
    text = text.replace("JobName=a b=c d ", f"JobName={name} ")
    text = text.replace("Comment=JobId=77 x=y JobState=FAKE ", f"Comment={comment} ")
    (record,) = parse.job_records(text)
    assert record["JobName"] == name
    assert (record["JobState"], record["ExitCode"]) == ("FAILED", "3:0")
    assert record["StdOut"] == "/home/ada/slurm-29.out"


def test_accounting_that_is_disabled_has_no_records(fake: FakeSlurm, client: Client) -> None:
    fake.answers("sacct", err="Slurm accounting storage is disabled\n", code=1)
    assert client.account_records(["1"]) == []
    fake.answers("sacct", err="sacct: error: Problem talking to the database\n", code=1)
    with pytest.raises(SlurmError, match="Problem talking to the database"):
        client.account_records(["1"])


def test_accounting_lists_the_attempts_of_a_job(fake: FakeSlurm, client: Client) -> None:
    fake.answers("sacct --duplicates -j 9001", out=recorded("24.05/sacct.txt"))
    attempts = client.account_records(["9001"])
    assert [attempt.state for attempt in attempts] == ["REQUEUED", "NODE_FAIL", "OUT_OF_MEMORY"]
    assert attempts[1].nodes == ("jwb0001", "jwb0002")
    assert (attempts[1].exit_code, attempts[2].signal) == (1, 125)
    fake.answers(
        "sacct", out="5|CANCELLED by 1000|0:15|Unknown|2026-11-20T10:00:00|None assigned|x|/x\n"
    )
    (cancelled,) = client.account_records(["5"])
    assert (cancelled.state, cancelled.nodes, cancelled.start) == ("CANCELLED", (), None)


def test_a_job_that_has_ended_is_cancelled_without_an_error(
    fake: FakeSlurm, client: Client
) -> None:
    said = "scancel: error: Kill job error on job id 7: Job/step already completing or completed"
    fake.answers("scancel", err=said, code=1)
    client.cancel(["7", "8_2"])
    assert fake.calls("scancel") == [["7", "8_2"]]
    fake.answers("scancel", err="scancel: error: Access/permission denied", code=1)
    with pytest.raises(SlurmError, match="another user's"):
        client.cancel(["7"])


def test_a_command_reads_what_it_is_given(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"]}
    assert Client(environment=environment).run("cat", input="ä\n") == "ä\n"
