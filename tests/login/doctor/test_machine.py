"""Machine, profile, Slurm, partitions and accounts, judged from facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import facts, machine
from rankup.login.doctor.facts import Machine
from rankup.site import profile
from rankup.site.config import Config
from rankup.slurm.parse import partitions
from tests.login.doctor.known import asked
from tests.slurm.fake import recorded

JURECA = profile.load("jureca-dc")
GENERIC = profile.load("generic")
LOCAL = profile.load("local")
LIVE = partitions(recorded("22.05.8/partitions.txt"), recorded("22.05.8/sinfo.txt"))


def levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.code, one.level) for one in findings]


def test_the_clue_what_is_not_sure_and_the_kind_of_node_are_said() -> None:
    known = Machine(JURECA, "$SYSTEMNAME=jurecadc", "jrlogin05", True, "")
    said, unsure, node = asked(machine.machine, machine=known)
    assert "jureca-dc ($SYSTEMNAME=jurecadc)" in said.message
    assert unsure.message == "nobody has confirmed: mounts"
    assert "login node" in node.message
    known = replace(known, profile=replace(JURECA, partition="dc-h100"))
    [_, unsure, _] = asked(machine.machine, machine=known)
    assert unsure.message == (
        "nobody has confirmed: mounts, partitions.dc-h100, partitions.dc-h100.cores"
    )


def test_a_mistake_in_the_site_table_is_kept_and_the_profile_detected() -> None:
    wrong = Config(site={"purge_days": 3, "mounts": "/p"})
    found = facts.find_machine(wrong, {"SYSTEMNAME": "jurecadc"}, "jrlogin05", lambda: None)
    assert found.profile.name == "jureca-dc"
    assert found.profile.purge_days == 90
    [finding] = asked(machine.configuration, problem="", machine=found, config=Config())
    assert (finding.level, finding.code) == ("error", "RK504")
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
def test_presence(site: profile.Profile, presence: str, level: str) -> None:
    assert levels(asked(machine.slurm, profile=site, presence=presence)) == [("RK505", level)]


def partitions_of(wanted: str | None, site: profile.Profile = GENERIC) -> list[Finding]:
    job = {} if wanted is None else {"partition": wanted}
    return asked(
        machine.partitions,
        profile=site,
        presence="answers",
        partitions=LIVE,
        config=Config(job=job),
    )


def test_partitions_have_their_limits_and_the_default_comes_first() -> None:
    found = partitions_of(None)
    assert [one.place for one in found] == ["booster (default)", "devel", "closed", "private"]
    assert found[0].message == (
        "3 of 3 nodes free now, 2 GPUs, 8 CPUs and 7 GB a node; 24:00 h at most, 3 nodes a job; "
        "whole nodes"
    )
    assert "starts no jobs now" in found[2].message
    assert {one.level for one in found} == {"ok"}


def test_a_partition_that_rankup_toml_asks_for_and_is_not_there_is_an_error() -> None:
    found = partitions_of("boster")
    assert (found[0].level, found[0].todo) == ("error", "did you mean booster?")


def test_the_partition_that_jobs_go_to_being_down_is_a_warning() -> None:
    found = partitions_of("closed")
    assert (found[0].place, found[0].level) == ("closed (default)", "warning")


def test_a_profile_that_says_something_else_than_slurm_is_a_warning() -> None:
    site = profile.override(GENERIC, {"partitions": {"booster": {"gpus": 4, "cores": 8}}})
    *_, found = partitions_of(None, site)
    assert (found.level, found.place) == ("warning", "profile")
    assert "gpus is 4 in the profile, 2 says Slurm" in found.message


def test_accounts() -> None:
    def judged(
        site: profile.Profile, name: str | None, yours: frozenset[str] | None
    ) -> list[Finding]:
        account = (name, "$SBATCH_ACCOUNT")
        return asked(machine.account, profile=site, account=account, accounts=yours)

    yours = frozenset({"train", "test"})
    assert levels(judged(JURECA, None, yours)) == [("RK508", "warning")]
    assert levels(judged(JURECA, "TRAIN", yours)) == [("RK508", "ok")]
    [wrong] = judged(JURECA, "trian", yours)
    assert (wrong.level, wrong.todo) == ("error", "did you mean train?")
    [unknown] = judged(JURECA, "train", None)
    assert "Slurm does not say" in unknown.message
    assert judged(GENERIC, None, None) == []


def test_internet() -> None:
    def judged(site: profile.Profile, internet: bool | None) -> Finding:
        [found] = asked(machine.internet, profile=site, internet=internet)
        return found

    assert judged(GENERIC, None).level == "warning"
    none = judged(JURECA, False)
    assert none.level == "ok"
    assert "none; dc-gpu-devel have some" in none.message
    assert judged(JURECA, True).level == "ok"
