"""Partitions as Slurm describes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.slurm.parse import gpus_of, partitions

from .fake import recorded


def test_limits_are_read_as_recorded() -> None:
    found = partitions(recorded("22.05.8/partitions.txt"), recorded("22.05.8/sinfo.txt"))
    assert list(found) == ["booster", "devel", "closed", "private"]
    booster, devel = found["booster"], found["devel"]
    assert (booster.default, booster.exclusive, booster.up) == (True, True, True)
    assert (booster.max_minutes, booster.default_minutes, booster.max_nodes) == (1440, None, None)
    assert (booster.total_nodes, booster.gpus, booster.cores, booster.memory_mb) == (3, 2, 8, 8000)
    assert (devel.max_minutes, devel.default_minutes, devel.max_nodes) == (10, 5, 1)
    assert (devel.default, devel.exclusive) == (False, False)
    assert not found["closed"].up
    assert found["closed"].max_minutes is None
    assert found["private"].allow_accounts == frozenset(("a", "b"))
    assert booster.allow_accounts is None


def test_newer_versions_and_mixed_nodes_are_read() -> None:
    found = partitions(recorded("24.05/partitions.txt"), recorded("24.05/sinfo.txt"))
    gpu = found["dc-gpu"]
    assert (gpu.max_nodes, gpu.min_nodes, gpu.total_nodes, gpu.exclusive) == (24, 1, 17, True)
    assert gpu.deny_accounts == frozenset(("old", "test"))
    assert gpu.allow_qos == frozenset(("normal", "nocont"))
    # The smallest of the nodes with GPUs; the one without has less of all.
    assert (gpu.gpus, gpu.cores, gpu.memory_mb) == (4, 128, 256000)
    assert gpu.idle_nodes == 4 + 2 + 1  # neither the one that is silent nor the reserved one
    empty = found["drained"]
    assert (empty.up, empty.total_nodes, empty.gpus, empty.max_minutes) == (False, 0, 0, None)


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", 0),
        ("gpu:2", 2),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:4(S:1,3,5,7),craynetwork:4", 4),
        ("gpu:a100:3,gpu:h100:2(S:0)", 5),
        ("shard:h100:64,gpu:h100:4", 4),
        ("mygpu:7", 0),
        ("gpu:mi250:8,bandwidth:lustre:no_consume:4G", 8),
    ],
)
def test_gpus_are_counted_in_every_form(gres: str, expected: int) -> None:
    assert gpus_of(gres) == expected


@pytest.mark.parametrize(
    ("state", "up", "takes"),
    [
        ("UP", True, True),
        ("DOWN", False, True),
        ("DRAIN", False, False),
        ("INACTIVE", False, False),
    ],
)
def test_a_partition_that_is_down_takes_jobs_all_the_same(
    state: str, up: bool, takes: bool
) -> None:
    one = partitions(f"PartitionName=p State={state}", "")["p"]
    assert (one.up, one.takes_jobs) == (up, takes)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_read_without_an_error(shown: str, nodes: str) -> None:
    assert isinstance(partitions(f"PartitionName=p {shown}", f"p|{nodes}"), dict)
