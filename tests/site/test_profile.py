"""Profiles: what each site's file says, and what follows from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankup.base.errors import UserError
from rankup.site import profile, rules
from rankup.site.profile import Billing, Partition

JSC = {"jureca-dc", "juwels-booster", "jusuf", "jupiter", "jedi"}


def test_every_site_says_what_its_nodes_are() -> None:
    """What stands in their job scripts is in the golden files of `tests/slurm`."""
    for name in {*profile.names()} - {"generic", "local"}:
        found = profile.load(name)
        nodes = found.shape(None)
        assert (found.name, found.account_required) == (name, True)
        assert nodes is not None
        assert min(nodes.gpus, nodes.cores, nodes.memory_gb, found.node_hour(nodes)) > 0
    assert {*profile.names()} > JSC


@pytest.mark.parametrize("name", ["jupiter", "jedi"])
def test_jupiters_exceptions(name: str) -> None:
    found = profile.load(name)
    assert "GLOO_SOCKET_IFNAME" not in found.environment, "it resolves to IPv6 there"
    words = " ".join((*found.sbatch, *found.srun))
    assert "--exclusive" not in words
    assert "--gpus-per-task" not in words, "NCCL could not see the other GPUs"


@pytest.mark.parametrize("name", ["generic", "local"])
def test_where_only_slurm_knows(name: str) -> None:
    found = profile.load(name)
    assert found.shape(None) is None
    assert found.shape("gpu") is None
    assert (found.partitions, found.partition, found.exclusive) == ({}, None, None)
    assert not found.account_required
    assert not found.mounts
    assert not found.not_mounted


def test_partitions_differ_from_their_site() -> None:
    jureca = profile.load("jureca-dc")
    assert not jureca.internet
    assert jureca.partitions["dc-gpu-devel"].internet
    assert jureca.partitions["dc-gpu-devel"].max_minutes == 120
    assert jureca.partitions["dc-gpu"].internet is False
    h100 = jureca.shape("dc-hwai")
    assert h100 is not None
    assert jureca.node_hour(h100) == h100.cores == 64, "not the 128 of the other nodes"
    lumi = profile.load("lumi-g").partitions
    assert [(lumi[one].max_minutes, lumi[one].max_nodes) for one in sorted(lumi)] == [
        (180, 32),
        (4320, 4),
        (2880, 1024),
    ]
    jupiter = profile.load("jupiter").partitions
    assert jupiter["largebooster"].max_nodes == 5884
    assert profile.load("juwels-booster").partitions["develbooster"].max_minutes == 120


@pytest.mark.parametrize(
    ("unit", "per_node", "per_gpu", "expected"),
    [
        ("core-h", None, 1.0, 48),
        ("node-h", None, 1.0, 1),
        ("GPU-h", None, 1.0, 8),
        ("GPU-h", None, 0.5, 4),
        ("core-h", 96, 1.0, 96),
    ],
)
def test_what_a_node_costs(unit: Any, per_node: Any, per_gpu: float, expected: float) -> None:
    values = {"unit": unit, "per_gpu_hour": per_gpu}
    if per_node:
        values["per_node_hour"] = per_node
    found = profile.parse({"title": "x", "billing": values}, "x", "x.toml")
    assert found.billing == Billing(unit, per_node, per_gpu)
    assert found.node_hour(Partition("p", None, 8, 48, None, None, None)) == expected
    assert found.node_hour(Partition("p", None, 8, 48, None, None, None, 7)) == 7


@pytest.mark.parametrize("name", profile.names())
def test_unsure_facts_are_in_the_file(name: str) -> None:
    found = profile.load(name)
    there = {key for key, _ in rules.dotted(found.values)}
    assert found.unsure <= there, "a fact that is gone cannot be unsure"


def test_the_page_names_every_unsure_fact_and_every_key() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "profiles.md").read_text()
    for name in profile.names():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert set(re.findall(r"`([^`]+)`", line)) == {name, *profile.load(name).unsure}, name
    known = {key for name in profile.names() for key in profile.load(name).values}
    assert [key for key in sorted(known) if f"`{key}`" not in page] == []


def test_an_unknown_profile() -> None:
    with pytest.raises(UserError, match="no profile 'jureca'; did you mean jureca-dc"):
        profile.load("jureca")
    with pytest.raises(
        UserError, match=r"no profile '\.\./profiles/local'; known are: generic, jedi"
    ):
        profile.load("../profiles/local")


@pytest.mark.parametrize("name", sorted(JSC))
def test_folders_at_jsc(name: str) -> None:
    found = profile.load(name)
    mine = {"SCRATCH": "/s/mine", "SCRATCH_abc": "/s/abc", "PROJECT_abc": "/p1/abc", "DATA": "/d"}
    assert profile.scratch_folder(found, mine, "abc") == Path("/s/abc")
    assert profile.scratch_folder(found, mine, "other") == Path("/s/mine")
    assert profile.scratch_folder(found, mine) == Path("/s/mine")
    assert profile.scratch_folder(found, {}, "abc") is None
    assert profile.first_folder(found.project, mine, "abc") == Path("/p1/abc")
    assert profile.first_folder(found.data, mine, "abc") == Path("/d")
    assert found.jutil
    assert found.purge_days == 90


def test_folders_elsewhere() -> None:
    lumi, perlmutter = profile.load("lumi-g"), profile.load("perlmutter")
    assert profile.scratch_folder(lumi, {}, "project_465") == Path("/scratch/project_465")
    assert profile.scratch_folder(lumi, {}) is None
    assert profile.scratch_folder(perlmutter, {"PSCRATCH": "/pscratch/sd/x"}) == Path(
        "/pscratch/sd/x"
    )
    cfs = {"CFS": "/global/cfs/cdirs"}
    assert profile.first_folder(perlmutter.project, cfs, "m1") == Path("/global/cfs/cdirs/m1")
    assert profile.scratch_folder(profile.load("generic"), {"SCRATCH": "/lustre/me"}) == Path(
        "/lustre/me"
    )
    assert profile.scratch_folder(profile.load("local"), {"SCRATCH": "/lustre/me"}) is None


@pytest.mark.parametrize(
    "project", ["../../etc", "a/b", "$HOME", "{project}", "", " ", "a\n", ".."]
)
def test_a_hostile_project_fills_no_template(project: str) -> None:
    assert profile.scratch_folder(profile.load("lumi-g"), {"HOME": "/home/x"}, project) is None


def test_a_folder_is_absolute() -> None:
    assert profile.first_folder(("$A", "$B"), {"A": "here", "B": "/there"}, None) == Path("/there")
    assert profile.first_folder(("$A/x",), {"A": ""}, None) is None, "not /x"


def test_what_compute_nodes_mount(tmp_path: Path) -> None:
    jupiter, jureca = profile.load("jupiter"), profile.load("jureca-dc")
    assert profile.seen_by_nodes(jupiter, Path("/e/scratch/abc/run")) is True
    assert profile.seen_by_nodes(jupiter, Path("/p/project1/abc")) is False
    assert profile.seen_by_nodes(jupiter, Path("/e/../p/project1")) is False
    assert profile.seen_by_nodes(jupiter, Path("/home/me")) is False, "only /e is"
    assert profile.seen_by_nodes(jureca, Path("/p/project1/abc")) is True
    assert profile.seen_by_nodes(jureca, Path("/tmp/x")) is False
    assert profile.seen_by_nodes(jureca, Path("/home/me")) is None, (
        "its list is not sure to be complete"
    )
    assert profile.seen_by_nodes(profile.load("generic"), Path("/tmp/x")) is None
    sub = profile.override(jureca, {"not_mounted": ["/p/arch"]})
    assert profile.seen_by_nodes(sub, Path("/p/arch/x")) is False, "the longer prefix counts"
    assert profile.seen_by_nodes(sub, Path("/p/archive")) is True, "whole names count"
    for key, holds in (("mounts", True), ("not_mounted", False)):
        for folder in ("/p", "/tmp"):
            said = profile.override(jureca, {key: [f"{folder}/"]})
            assert profile.seen_by_nodes(said, Path(folder) / "x") is holds, (
                "what the user says wins"
            )
    # A link from a mounted folder to one that is not.
    seen, unseen = tmp_path / "e", tmp_path / "p"
    seen.mkdir()
    unseen.mkdir()
    (seen / "link").symlink_to(unseen)
    here = {"mounts": [str(seen)], "not_mounted": [str(unseen)]}
    both = profile.override(profile.load("local"), here)
    assert profile.seen_by_nodes(both, seen / "x") is True
    assert profile.seen_by_nodes(both, seen / "link" / "x") is False


def test_profiles_need_the_standard_library_only() -> None:
    program = (
        "import sys; from rankup.site import profile; profile.detect({}, 'x')\n"
        "print([m for m in ('torch', 'numpy', 'typer', 'rich', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
