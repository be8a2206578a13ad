"""What a job may ask for, against what Slurm says and what the profile knows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rankup.base.errors import UserError
from rankup.site import profile as profiles
from rankup.site.jobspec import JobSpec
from rankup.site.profile import Profile
from rankup.slurm.limits import Grant, choose_partition, clock, cost, differences, grant
from rankup.slurm.parse import Partition

from .jobscripts import partition

GENERIC = profiles.load("generic")
SPEC = JobSpec()


def _grant(
    wish: JobSpec = SPEC,
    live: Partition | None = None,
    profile: Profile = GENERIC,
    accounts: frozenset[str] | None = None,
) -> Grant:
    return grant(wish, profile, live or partition(), accounts)


# --- which partition


def test_the_partition_asked_for_then_the_profiles_then_slurms_default() -> None:
    live = {
        "devel": partition(name="devel", default=False),
        "booster": partition(default=False),
        "other": partition(name="other", default=True),
    }
    juwels = profiles.load("juwels-booster")
    assert choose_partition("devel", juwels, live).name == "devel"
    assert choose_partition("devel,other", juwels, live).name == "devel"
    assert choose_partition(None, juwels, live).name == "booster"
    assert choose_partition(None, GENERIC, live).name == "other"
    del live["booster"]
    assert choose_partition(None, juwels, live).name == "other"


def test_an_unknown_partition_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(UserError, match=r"--partition boster.*did you mean booster"):
        choose_partition("boster", GENERIC, {"booster": partition()})
    with pytest.raises(UserError, match="--partition x:"):
        choose_partition("booster,x", GENERIC, {"booster": partition()})


def test_without_a_default_one_has_to_be_named() -> None:
    live = {name: partition(name=name, default=False) for name in ("b", "a")}
    with pytest.raises(UserError, match="give --partition, one of: a, b"):
        choose_partition(None, GENERIC, live)


# --- what it gets


def test_a_whole_node_by_default() -> None:
    found = _grant()
    assert (found.nodes, found.ranks, found.gpus, found.cpus) == (1, 2, 2, 8)
    assert (found.minutes, found.exclusive, found.partition) == (60, True, "booster")


def test_a_shared_node_is_shared_out() -> None:
    found = _grant(replace(SPEC, nproc=1), partition(exclusive=False))
    assert (found.ranks, found.gpus, found.cpus, found.exclusive) == (1, 1, 4, False)


def test_nodes_without_gpus_get_a_rank_each() -> None:
    live = partition(gpus=0, exclusive=False)
    found = _grant(live=live)
    assert (found.ranks, found.gpus, found.cpus) == (1, 0, 1)
    assert _grant(replace(SPEC, nproc=4), live).cpus == 4


def test_without_slurms_word_on_gpus_the_profiles_is_taken() -> None:
    juwels = profiles.load("juwels-booster")
    wish = replace(SPEC, account="abc")
    found = _grant(wish, partition(gpus=0, cores=96), juwels)
    assert (found.gpus, found.ranks, found.cpus) == (4, 4, 48), "96 are hardware threads"
    found = _grant(wish, partition(gpus=2, cores=24), juwels)
    assert (found.gpus, found.ranks, found.cpus) == (2, 2, 24), "Slurm's word wins"


@pytest.mark.parametrize(
    ("asked", "default", "most", "expected"),
    [(90, 30, 600, 90), (None, 30, 600, 30), (None, None, 600, 60), (None, None, 20, 20),
     (None, None, None, 60), (5, None, None, 5)],
)  # fmt: skip
def test_the_time_limit(
    asked: int | None, default: int | None, most: int | None, expected: int
) -> None:
    live = partition(default_minutes=default, max_minutes=most)
    assert _grant(replace(SPEC, time=asked and str(asked)), live).minutes == expected


# --- what is refused


@pytest.mark.parametrize(
    ("wish", "live", "words"),
    [
        ({"time": "1441"}, {}, "--time 1-00:01:00 is over the limit of booster, which is 1-00:00"),
        ({"nodes": 4}, {}, "--nodes 4 is more than booster gives a job, which is 3"),
        ({"nodes": 3}, {"max_nodes": 2}, "--nodes 3 is more than booster gives a job, which is 2"),
        ({"nodes": 1}, {"min_nodes": 2}, "--nodes 1 is less than booster takes, which is 2"),
        ({}, {"takes_jobs": False}, "partition booster does not take jobs now"),
        ({"qos": "hihg"}, {"allow_qos": frozenset(("high",))}, "--qos hihg is not allowed in boo"),
        ({"nproc": 3}, {}, "--nproc 3 asks for more ranks than the 2 GPU(s) of a node"),
        ({"nproc": 1}, {}, "leaves 1 of the 2 GPUs of each node unused, and you pay for 2"),
        ({"account": "x"}, {"allow_accounts": frozenset(("y",))}, "--account x may not use boo"),
        ({"account": "x"}, {"deny_accounts": frozenset(("x",))}, "--account x may not use boo"),
    ],
)
def test_what_slurm_would_refuse_or_let_wait_is_refused(
    wish: dict[str, object], live: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        _grant(replace(SPEC, **wish), partition(**live))  # type: ignore[arg-type]


def test_all_reasons_are_said_at_once() -> None:
    with pytest.raises(UserError) as raised:
        _grant(replace(SPEC, nodes=9, time="9999", nproc=1))
    assert str(raised.value).count("\n  - ") == 3


def test_what_just_fits_passes() -> None:
    wish = replace(SPEC, nodes=3, time="1440", nproc=2, qos="high", account="y")
    live = partition(
        allow_qos=frozenset(("high",)), allow_accounts=frozenset(("y",)), min_nodes=3, max_nodes=3
    )
    assert _grant(wish, live, accounts=frozenset(("y", "z"))).nodes == 3


def test_idle_gpus_are_granted_when_allowed_and_where_nodes_are_shared() -> None:
    found = _grant(replace(SPEC, nproc=1, allow_idle_gpus=True))
    assert (found.ranks, found.gpus, found.cpus) == (1, 2, 8), "the whole node is billed"
    assert _grant(replace(SPEC, nproc=1), partition(exclusive=False)).gpus == 1


def test_a_site_that_bills_needs_an_account() -> None:
    jusuf = profiles.load("jusuf")
    with pytest.raises(UserError, match="JUSUF bills an account: give --account, one of: a, b"):
        _grant(profile=jusuf, accounts=frozenset("ab"))
    with pytest.raises(UserError, match=r"give --account; `jutil user projects` lists yours$"):
        _grant(profile=jusuf)
    with pytest.raises(UserError, match=r"give --account$"):
        _grant(profile=replace(jusuf, jutil=False))
    with pytest.raises(UserError, match="--account abd is not one of yours; did you mean abc"):
        _grant(replace(SPEC, account="abd"), accounts=frozenset(("abc",)))
    assert _grant(replace(SPEC, account="abd"), accounts=None).ranks == 2, "not known: no word"


@pytest.mark.parametrize("account", ["abc", "ABC", "Abc"])
def test_an_account_is_the_same_in_small_and_capital_letters(account: str) -> None:
    wish, mine = replace(SPEC, account=account), frozenset(("aBC", "d"))
    allowed = partition(allow_accounts=frozenset(("ABc",)))
    assert _grant(wish, allowed, accounts=mine).ranks == 2
    with pytest.raises(UserError, match=r"--account abc may not use booster$"):
        _grant(wish, partition(deny_accounts=frozenset(("ABc",))), accounts=mine)


def test_a_partition_that_only_starts_jobs_later_takes_them() -> None:
    assert _grant(live=partition(up=False)).ranks == 2


# --- what it costs


@pytest.mark.parametrize(
    ("site", "nodes", "expected"),
    [
        ("jureca-dc", 2, "at most 512 core-h per attempt (2 nodes x 2:00 h, JURECA-DC)"),
        ("juwels-booster", 1, "at most 96 core-h per attempt (1 node x 2:00 h, JUWELS Booster)"),
        ("jupiter", 2, "at most 1,152 core-h per attempt (2 nodes x 2:00 h, JUPITER)"),
        ("perlmutter", 3, "at most 6 node-h per attempt (3 nodes x 2:00 h, Perlmutter)"),
        ("lumi-g", 1, "at most 8 GPU-h per attempt (1 node x 2:00 h, LUMI-G)"),
    ],
)
def test_the_cost_of_whole_nodes_in_the_sites_unit(site: str, nodes: int, expected: str) -> None:
    profile = profiles.load(site)
    shape = profile.shape(None)
    assert shape is not None
    live = partition(name=shape.name, gpus=shape.gpus, cores=shape.cores, max_minutes=None)
    wish = replace(SPEC, nodes=nodes, time="120", account="abc")
    assert cost(_grant(wish, live, profile), profile) == expected


def test_the_cost_of_a_part_of_a_node_and_of_one_without_gpus() -> None:
    half = _grant(replace(SPEC, nproc=1, time="30"), partition(exclusive=False))
    assert cost(half, GENERIC) == (
        "at most 0.5 GPU-h per attempt (1 node x 0:30 h, this Slurm cluster)"
    )
    cpu = _grant(replace(SPEC, nproc=3), partition(gpus=0, exclusive=False))
    assert (
        cost(cpu, GENERIC) == "at most 3 core-h per attempt (1 node x 1:00 h, this Slurm cluster)"
    )


@pytest.mark.parametrize(
    ("minutes", "expected"), [(1, "0:01"), (59, "0:59"), (60, "1:00"), (1505, "25:05")]
)
def test_hours_are_shown_as_a_clock_does(minutes: int, expected: str) -> None:
    assert clock(minutes) == expected


# --- the profile against the machine


def test_differences_of_profile_and_machine_are_said() -> None:
    juwels = profiles.load("juwels-booster")
    live = {
        "booster": partition(gpus=4),
        "develbooster": partition(name="develbooster", gpus=4, max_minutes=60),
    }
    assert differences(juwels, live) == [
        "partition develbooster: max_minutes is 120 in the profile, 60 says Slurm",
        "partition largebooster: it is in the profile and not on this machine",
    ]
