"""What a job asks for, against a cluster: partition, cost, and what is said about it."""

from __future__ import annotations

import pytest

from rankup.base.errors import UserError
from rankup.launch import submit
from rankup.site.config import Config
from rankup.site.jobspec import JobSpec
from tests.slurm.jobscripts import Site, partition

CONFIG = Config(profile="generic")


def test_a_partition_is_named_only_where_somebody_names_one() -> None:
    site = Site(live={"gpu": partition(name="gpu"), "dc-gpu": partition(name="dc-gpu", gpus=4)})
    assert submit.plan(site, CONFIG, JobSpec()).options.partition is None
    named = submit.plan(site, CONFIG, JobSpec(partition="dc-gpu"))
    assert (named.options.partition, named.granted.gpus) == ("dc-gpu", 4)
    jureca = submit.plan(site, Config(profile="jureca-dc"), JobSpec(account="abc"))
    assert jureca.options.partition == "dc-gpu", "the profile's"


def test_options_of_sbatch_against_the_job_script_are_refused() -> None:
    with pytest.raises(UserError, match="use --nodes"):
        submit.plan(Site(), CONFIG, JobSpec(sbatch=("--nodes=4",)))


@pytest.mark.parametrize(
    ("options", "live", "note"),
    [
        ({}, {}, "time limit 01:00:00 by default; --time sets it"),
        ({}, {"default_minutes": 5}, "time limit 00:05:00 by default"),
        ({"time": "3:30"}, {}, "Slurm reads --time 3:30 as minutes and seconds"),
        ({"time": "3h30m"}, {"up": False}, "partition booster takes jobs and starts none now"),
    ],
)
def test_what_is_easily_missed_is_noted(
    options: dict[str, str], live: dict[str, object], note: str
) -> None:
    site = Site(live={"booster": partition(**live)})
    [found] = submit.plan(site, CONFIG, JobSpec(**options)).notes  # type: ignore[arg-type]
    assert note in found


def test_what_is_asked_for_in_full_is_noted_by_nothing() -> None:
    assert submit.plan(Site(), CONFIG, JobSpec(time="2h")).notes == ()


def test_a_job_that_will_wait_is_noted() -> None:
    busy = Site(live={"booster": partition(idle_nodes=1)})
    [found] = submit.plan(busy, CONFIG, JobSpec(time="2h", nodes=2)).notes
    assert found == "note: 1 node is idle in booster now, so the job will wait"


def test_where_constraint_and_qos_choose_the_default_partitions_limits_mean_nothing() -> None:
    small = Site(live={"debug": partition(name="debug", max_minutes=30, max_nodes=1)})
    options = JobSpec(account="m1_g", time="2h", nodes=8)
    found = submit.plan(small, Config(profile="perlmutter"), options)
    assert (found.granted.nodes, found.granted.minutes) == (8, 120)
    assert found.options.partition is None
    with pytest.raises(UserError, match="over the limit of debug"):
        submit.plan(small, CONFIG, options)
