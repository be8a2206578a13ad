"""`[site]` of `rankup.toml` laid over a profile: table by table, and read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.site import profile
from rankup.site.profile import Billing, Partition


def test_override_lays_tables_over_tables() -> None:
    below = profile.load("jureca-dc")
    above = profile.override(
        below,
        {
            "host_suffix": "",
            "environment": {"NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": ""},
            "node": {"memory_gb": 500},
            "partitions": {"dc-gpu": {"max_nodes": 30}, "new": {"gpus": 8}},
            "mounts": ["/p", "/q"],
            "billing": {"per_node_hour": 130.5},
        },
    )
    assert above.host_suffix == ""
    assert above.environment == {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "INFO"}
    assert above.partitions["dc-gpu"] == Partition("dc-gpu", 1440, 4, 128, 500, 30, False)
    assert above.partitions["new"] == Partition("new", 1440, 8, 128, 500, None, False)
    assert set(above.partitions) == {*below.partitions, "new"}
    assert above.mounts == ("/p", "/q")
    assert above.billing == Billing("core-h", 130.5, 1.0)
    assert below.unsure - above.unsure == {"mounts", "partitions.dc-gpu.max_nodes"}
    assert above.name == "jureca-dc"
    assert profile.override(above, {}) == above
    again = profile.override(above, {"partition": "", "unsure": ["mounts"]})
    assert again.partition is None
    assert again.unsure == {"mounts"}
    assert profile.load("jureca-dc") == below, "nothing was changed in place"


def test_a_fact_stays_unsure_beside_one_that_is_said() -> None:
    said = {"partitions": {"dc-hwai": {"cores": 48}}}
    above = profile.override(profile.load("jureca-dc"), said)
    assert "partitions.dc-hwai" in above.unsure
    assert "partitions.dc-hwai.memory_gb" in above.unsure
    assert "partitions.dc-hwai.cores" not in above.unsure


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"hostsuffix": "i"}, "unknown key 'site.hostsuffix'; did you mean host_suffix?"),
        (
            {"host_suffix": 3},
            "site.host_suffix must be a string of one line, empty for none, found",
        ),
        ({"partitions": {"b": {"gpu": 4}}}, "'site.partitions.b.gpu'; did you mean gpus?"),
        ({"partitions": {"a b": {}}}, "site.partitions: 'a b' is not a name without spaces"),
        (
            {"partitions": {"b": {"gpus": "4"}}},
            "site.partitions.b.gpus must be a whole number of 0",
        ),
        ({"partitions": {"b": {"gpus": 4}}}, "site.partitions.b.cores is missing"),
        ({"node": {"gpus": -1}}, "site.node.gpus must be a whole number of 0 or more, found -1"),
        ({"environment": {"A B": "x"}}, "site.environment: 'A B' is not the name of an"),
        ({"environment": {"A": "x\ny"}}, "site.environment.A must be a string of one line"),
        ({"sbatch": "--x"}, "site.sbatch must be a list of options that start with -, found '--x'"),
        ({"srun": ["-x\n#SBATCH -y"]}, "site.srun must be a list of options"),
        ({"mounts": ["p"]}, "site.mounts must be a list of absolute paths, found ['p']"),
        ({"exclusive": "yes"}, "site.exclusive must be true or false, found 'yes'"),
        ({"devices": "gpu"}, "site.devices must be 'cuda', 'rocm' or 'cpu', found 'gpu'"),
        ({"billing": {"unit": "EUR"}}, "site.billing.unit must be 'core-h', 'node-h' or 'GPU-h'"),
        ({"billing": {"per_node_hour": 0}}, "per_node_hour must be a number above 0, found 0"),
        ({"billing": {"per_node_hour": float("nan")}}, "must be a number above 0, found nan"),
        ({"purge_days": 0}, "site.purge_days must be a whole number of 1 or more, found 0"),
        ({"detect": {"login": ["("]}}, "site.detect.login must be a list of regular expressions"),
        ({"title": "x" * 500}, None),
        ({"purge_days": "x" * 500}, "xxx..."),
    ],
)
def test_a_broken_override_is_named(values: dict[str, Any], said: str | None) -> None:
    below = profile.load("generic")
    if said is None:
        assert profile.override(below, values).title == values["title"]
        return
    with pytest.raises(UserError) as refused:
        profile.override(below, values, "/x/rankup.toml")
    assert str(refused.value).startswith("/x/rankup.toml: ")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_profile_file_is_read_as_strictly() -> None:
    with pytest.raises(UserError, match=r"^x\.toml: title is missing"):
        profile.parse({}, "x", "x.toml")
    with pytest.raises(UserError, match=r"^x\.toml: unknown key 'titel'; did you mean title"):
        profile.parse({"titel": "X"}, "x", "x.toml")
    with pytest.raises(UserError, match=r"^x\.toml: partitions\.b\.gpus is missing"):
        profile.parse({"title": "X", "partitions": {"b": {}}}, "x", "x.toml")
