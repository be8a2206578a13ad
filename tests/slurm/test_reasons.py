"""Why a job waits and how it ended: every reason has words, unknown ones stay as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.slurm import reasons


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Priority", "Other jobs come first"),
        ("(Priority)", "Other jobs come first"),
        ("Resources", "next in line"),
        ("Dependency", "waits for another job"),
        ("DependencyNeverSatisfied", "never starts"),
        ("BeginTime", "after a requeue"),
        ("PartitionTimeLimit", "outside the partition's limits"),
        ("PartitionNodeLimit", "outside the partition's limits"),
        ("PartitionConfig", "outside the partition's limits"),
        ("PartitionDown", "partition is down"),
        ("PartitionInactive", "partition is down"),
        ("JobHeldUser", "scontrol release"),
        ("JobHeldAdmin", "administrator"),
        ("JobHoldMaxRequeue", "Read its log"),
        ("launch failed requeued held", "broken"),
        ("launch_failed_requeued_held", "broken"),
        ("InvalidAccount", "--account"),
        ("InvalidQOS", "--qos"),
        ("Licenses", "licence"),
        ("BadConstraints", "No node has all"),
        ("ReqNodeNotAvail", "reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "shorter --time"),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", "shorter --time"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "n[1-2]"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_"
         "partitions", "being repaired"),
        ("Job's account not known, so it can't use this partition (a allows b)", "may not use"),
    ],
)  # fmt: skip
def test_a_pending_reason_is_said_in_plain_words(reason: str, words: str) -> None:
    assert words in reasons.pending(reason)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocGrpNodeLimit", "All jobs of the account together have reached its limit on nodes"),
        ("AssocGrpGRES", "All jobs of the account together have reached its limit on GPUs"),
        ("AssocGrpCPUMinutesLimit", "The compute time of the account is used up"),
        ("AssocGrpBillingMinutes", "The compute time of the account is used up"),
        ("AssocGrpMemLimit", "limit on memory"),
        ("AssocGrpCPURunMinutesLimit", "together have reached its limit on cores"),
        ("AssocMaxJobsLimit", "limit of the account on running jobs"),
        ("AssocMaxWallDurationPerJobLimit", "more wall time than the account allows a job"),
        ("QOSMaxNodePerJobLimit", "more nodes than its quality of service (QOS) allows a job"),
        ("QOSMaxJobsPerUserLimit", "would bring you or your account over the limit"),
        ("QOSMaxSubmitJobPerUserLimit", "over the limit"),
        ("QOSGrpNodeLimit", "All jobs of its quality of service (QOS) together"),
        ("QOSMinGRES", "less than its quality of service (QOS) requires"),
        ("QOSUsageThreshold", "compute time"),
        ("MaxGRESPerAccount", "limit of its quality of service (QOS) on GPUs"),
    ],
)
def test_a_limits_family_names_whose_limit_and_on_what(reason: str, words: str) -> None:
    said = reasons.pending(reason)
    assert words in said
    assert reason in said


def test_an_unknown_reason_stays_as_slurm_gives_it() -> None:
    assert reasons.pending("MoonPhase") == "Slurm's reason: MoonPhase."


@given(st.text(max_size=60))
def test_any_reason_has_words(reason: str) -> None:
    assert reasons.pending(reason)
    assert reasons.ended("FAILED", 1, 0, reason)


@pytest.mark.parametrize(
    ("state", "code", "number", "reason", "words"),
    [
        ("FAILED", 0, 53, "JobLaunchFailure", "working directory or the log's folder is not there"),
        ("FAILED", 3, 0, "NonZeroExitCode", "exit code 3."),
        ("FAILED", 137, 0, "NonZeroExitCode", "killed by SIGKILL."),
        ("FAILED", 0, 9, "JobLaunchFailure", "killed by SIGKILL."),
        ("FAILED", 1, 0, "SystemFailure", "reason: SystemFailure"),
        ("FAILED", 0, 1, "BadConstraints", "No node has all"),
        ("TIMEOUT", 0, 15, "TimeLimit", "time limit"),
        ("NODE_FAIL", 0, 15, "NodeDown", "A node died on n2"),
        ("OUT_OF_MEMORY", 0, 125, "OutOfMemory", "main memory"),
        ("CANCELLED", 0, 15, "JobHeldUser", "cancelled while it ran on n2."),
        ("COMPLETED", 0, 0, "JobHeldUser", "ended as it should"),
        ("PREEMPTED", 0, 15, "None", "took its nodes"),
        ("DEADLINE", 0, 0, "None", "--deadline"),
        ("BOOT_FAIL", 0, 0, "None", "did not start up"),
        ("LAUNCH_FAILED", 0, 0, "None", "It failed (Slurm's state: LAUNCH_FAILED)."),
        ("REVOKED", 0, 0, "Other", "It failed (Slurm's state: REVOKED); reason: Other."),
    ],
)
def test_an_end_is_said_in_plain_words(
    state: str, code: int, number: int, reason: str, words: str
) -> None:
    assert words in reasons.ended(state, code, number, reason, "n2")


def test_a_job_cancelled_in_the_queue_says_why_it_waited() -> None:
    assert "PartitionTimeLimit" in reasons.ended("CANCELLED", 0, 0, "PartitionTimeLimit")


def test_a_state_is_live_or_over() -> None:
    live = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "CONFIGURING")
    over = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "UNKNOWN")
    assert [reasons.is_live(state) for state in live] == [True] * len(live)
    assert [reasons.is_live(state) for state in over] == [False] * len(over)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Invalid account or account/partition combination specified", "no member"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "shorter --time"),
        ("Invalid --time specification", "shorter --time"),
        ("Requested node configuration is not available", "No node"),
        ("invalid partition specified: nix", "sinfo -s"),
        ("Invalid partition name specified", "sinfo -s"),
        ("Unable to contact slurm controller (connect failure)", "does not answer"),
        ("Job violates accounting/QOS policy (job submit limit, user's size)", "budget"),
        ("Invalid qos specification", "--qos"),
        ("Requested reservation is invalid", "reservation"),
        ("Job dependency problem", "afterok:ID"),
        ("Node count specification invalid", "--nodes"),
        ("Invalid generic resource (gres) specification", "GPUs"),
        ("cannot stat file /etc/slurm/slurm.conf", "no login node"),
        ("Access/permission denied", "another user's"),
    ],
)
def test_a_known_refusal_says_what_to_do(said: str, words: str) -> None:
    assert words in reasons.advice(f"Batch job submission failed: {said}")


def test_an_unknown_refusal_has_no_advice() -> None:
    assert reasons.advice("the moon is full") == ""
    assert reasons.tidy("sbatch: error: a\n\nsbatch: error: b\nsbatch: error: b\n") == "a; b"
