"""Machine, profile, Slurm, partitions and accounts, judged from facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import codes, machine, network, queue
from rankup.login.doctor.machine import Machine
from rankup.login.doctor.network import Resolved
from rankup.site import config, profile
from rankup.site.config import Config
from rankup.slurm.partitions import partitions
from tests.slurm.fake import recorded

JURECA = profile.load("jureca-dc")
GENERIC = profile.load("generic")
LOCAL = profile.load("local")
LIVE = partitions(recorded("22.05.8/partitions.txt"), recorded("22.05.8/sinfo.txt"))


def levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.code, one.level) for one in findings]


def test_the_clue_and_what_is_not_sure_are_said() -> None:
    found = machine.check_machine(Machine(JURECA, "$SYSTEMNAME=jurecadc", "jrlogin05", True, ""))
    assert [one.code for one in found] == [codes.MACHINE, codes.UNSURE, codes.LOGIN_NODE]
    assert "jureca-dc ($SYSTEMNAME=jurecadc)" in found[0].message
    assert found[1].message == "nobody has confirmed: mounts"
    assert "login node" in found[2].message


def test_what_is_not_sure_of_the_nodes_that_jobs_go_to_is_said() -> None:
    site = replace(JURECA, partition="dc-h100")
    found = machine.check_machine(Machine(site, "x", "jrlogin05", True, ""))
    assert found[1].message == (
        "nobody has confirmed: mounts, partitions.dc-h100, partitions.dc-h100.cores"
    )


def test_a_mistake_in_the_site_table_is_kept_and_the_profile_detected() -> None:
    wrong = Config(site={"purge_days": 3, "mounts": "/p"})
    found = machine.find(wrong, {"SYSTEMNAME": "jurecadc"}, "jrlogin05", lambda: None)
    assert found.profile.name == "jureca-dc"
    assert found.profile.purge_days == 90
    [finding] = machine.check_configuration(config.Config(), found.problem)
    assert (finding.level, finding.code) == ("error", codes.CONFIGURATION)
    assert "mounts" in finding.message


@pytest.mark.parametrize(
    ("site", "presence", "level"),
    [
        (LOCAL, "absent", "ok"),
        (JURECA, "absent", "warning"),
        (JURECA, "answers", "ok"),
        (GENERIC, "silent", "error"),
    ],
)
def test_presence(site: profile.Profile, presence: queue.Presence, level: str) -> None:
    assert levels(queue.check_presence(site, presence)) == [(codes.SLURM, level)]


def test_partitions_have_their_limits_and_the_default_comes_first() -> None:
    found = queue.check_partitions(GENERIC, None, LIVE)
    assert [one.place for one in found] == ["booster (default)", "devel", "closed", "private"]
    assert found[0].message == (
        "3 of 3 nodes free now, 2 GPUs, 8 CPUs and 7 GB a node; 24:00 h at most, 3 nodes a job; "
        "whole nodes"
    )
    assert "starts no jobs now" in found[2].message
    assert {one.level for one in found} == {"ok"}


def test_a_partition_that_rankup_toml_asks_for_and_is_not_there_is_an_error() -> None:
    found = queue.check_partitions(GENERIC, "boster", LIVE)
    assert (found[0].level, found[0].todo) == ("error", "did you mean booster?")


def test_the_partition_that_jobs_go_to_being_down_is_a_warning() -> None:
    found = queue.check_partitions(GENERIC, "closed", LIVE)
    assert (found[0].place, found[0].level) == ("closed (default)", "warning")


def test_a_profile_that_says_something_else_than_slurm_is_a_warning() -> None:
    site = profile.override(GENERIC, {"partitions": {"booster": {"gpus": 4, "cores": 8}}})
    [found] = queue.check_differences(site, LIVE)
    assert "gpus is 4 in the profile, 2 says Slurm" in found.message


def test_accounts() -> None:
    yours = frozenset({"train", "test"})
    assert levels(queue.check_account(JURECA, None, "", yours)) == [(codes.ACCOUNT, "warning")]
    assert levels(queue.check_account(JURECA, "TRAIN", "x", yours)) == [(codes.ACCOUNT, "ok")]
    [wrong] = queue.check_account(JURECA, "trian", "$SBATCH_ACCOUNT", yours)
    assert (wrong.level, wrong.todo) == ("error", "did you mean train?")
    [unknown] = queue.check_account(JURECA, "train", "rankup.toml", None)
    assert "Slurm does not say" in unknown.message
    assert queue.check_account(GENERIC, None, "", None) == []


def test_internet() -> None:
    assert network.check_internet(GENERIC, None)[0].level == "warning"
    [none] = network.check_internet(JURECA, False)
    assert none.level == "ok"
    assert "none; dc-gpu-devel have some" in none.message
    assert network.check_internet(JURECA, True)[0].level == "ok"


@pytest.mark.parametrize(
    ("resolved", "level", "part"),
    [
        (Resolved("jrc1", "10.0.0.1", "10.1.0.1", ""), "ok", "jrc1i is 10.0.0.1"),
        (Resolved("jrc1", "", "10.1.0.1", ""), "warning", "jrc1i does not resolve"),
        (Resolved("jrc1", "", "", "10.9.9.9"), "ok", "NodeAddr is 10.9.9.9"),
        (Resolved("jrc1", "", "", "jrc1"), "warning", "no IPv4 address"),
        (Resolved("jrc1", None, "10.1.0.1", ""), "warning", "did not answer"),
        (Resolved("jrc1", "10.0.0.1", None, ""), "ok", "jrc1i is 10.0.0.1"),
    ],
)
def test_names_of_nodes(resolved: Resolved, level: str, part: str) -> None:
    [found] = network.check_names(JURECA, [resolved])
    assert found.level == level
    assert part in found.message


def test_a_name_is_resolved_by_the_real_resolver() -> None:
    # Loopback is nobody else's: as in the job script it does not count.
    [found] = network.resolve(["localhost"], "", {"localhost": "127.0.0.1"})
    assert found == Resolved("localhost", "", "", "127.0.0.1")
