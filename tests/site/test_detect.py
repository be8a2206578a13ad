"""Which machine this is: every site by every clue, and the order of the clues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site.config import Config
from rankup.site.profile import choose, detect, on_login_node

NAMED = {
    "jurecadc": "jureca-dc",
    "juwelsbooster": "juwels-booster",
    "jupiter": "jupiter",
    "jedi": "jedi",
    "jusuf": "jusuf",
}
LOGIN = {
    "jrlogin05.jureca": "jureca-dc",
    "jwlogin22.juwels": "juwels-booster",
    "jpbl-s01-02": "jupiter",
    "jpbl-s01-01-interconnect-1.jupiter.internal": "jupiter",
    "jsfl02": "jusuf",
    "jlogin01.jedi.internal": "jedi",
    "uan01": "lumi-g",
}
COMPUTE = {
    "jrc0450": "jureca-dc",
    "jrc0450.jureca": "jureca-dc",
    "jwb0001": "juwels-booster",
    "jwb0001.juwels": "juwels-booster",
    "jpbo-045-12.jupiter.internal": "jupiter",
    "jpbo-045-12": "jupiter",
    "jsfc013": "jusuf",
}
NO_FILE = Path("/nowhere/systemname")


@pytest.fixture
def unasked() -> Callable[[], str | None]:
    """A controller that must not be asked: it may take seconds to answer."""

    def ask() -> str | None:
        pytest.fail("the controller was asked although the site was clear")

    return ask


@pytest.mark.parametrize(("word", "name"), NAMED.items())
def test_by_systemname(
    word: str, name: str, tmp_path: Path, unasked: Callable[[], str | None]
) -> None:
    found, clue = detect({"SYSTEMNAME": word}, "x", NO_FILE, unasked)
    assert (found.name, clue) == (name, f"$SYSTEMNAME={word}")
    file = tmp_path / "systemname"
    file.write_text(f"{word}\n")
    found, clue = detect({}, "x", file, unasked)
    assert (found.name, clue) == (name, f"{file}: {word}")
    found, clue = detect({"LMOD_SYSTEM_NAME": word}, "x", NO_FILE, unasked)
    assert (found.name, clue) == (name, f"$LMOD_SYSTEM_NAME={word}")


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("NERSC_HOST", "perlmutter", "perlmutter"),
        ("LUMI_STACK_NAME", "LUMI", "lumi-g"),
        ("SLURM_CLUSTER_NAME", "perlmutter", "perlmutter"),
        ("SLURM_CLUSTER_NAME", "lumi", "lumi-g"),
        ("SLURM_CLUSTER_NAME", "jureca", "jureca-dc"),
        ("SLURM_CLUSTER_NAME", "jusuf", "jusuf"),
        ("SLURM_CLUSTER_NAME", "jupiter", "jupiter"),
        ("CLUSTER", "jedi", "jedi"),
    ],
)
def test_by_the_environment(
    variable: str, value: str, name: str, unasked: Callable[[], str | None]
) -> None:
    found, clue = detect({variable: value}, "nid001234", NO_FILE, unasked)
    assert (found.name, clue) == (name, f"${variable}={value}")


@pytest.mark.parametrize(("host", "name"), [*LOGIN.items(), *COMPUTE.items()])
def test_by_the_host_name(host: str, name: str, unasked: Callable[[], str | None]) -> None:
    found, clue = detect({}, host, NO_FILE, unasked)
    assert (found.name, clue) == (name, f"host name {host}")


@pytest.mark.parametrize(
    "host", ["nid001234", "login01", "jwlogin05.juwels", "jwc0001", "myjrc0001", "jrc", "jwb1x", ""]
)
def test_a_name_that_fits_no_site_or_two_says_nothing(host: str) -> None:
    assert detect({}, host, NO_FILE)[0].name == "local"


def test_the_order_of_the_clues(tmp_path: Path) -> None:
    file = tmp_path / "systemname"
    file.write_text("jusuf")
    everything = {
        "SYSTEMNAME": "jupiter",
        "NERSC_HOST": "perlmutter",
        "CLUSTER": "jedi",
        "SLURM_CLUSTER_NAME": "lumi",
        "LMOD_SYSTEM_NAME": "jurecadc",
    }
    left = dict(everything)
    order = [detect(left, "jwb0001", file)[0].name]
    del left["SYSTEMNAME"]
    order.append(detect(left, "jwb0001", file)[0].name)
    for variable in list(left):
        order.append(detect(left, "jwb0001", NO_FILE)[0].name)
        del left[variable]
    order.append(detect({}, "jwb0001", NO_FILE, lambda: "lumi")[0].name)
    order.append(detect({}, "x", NO_FILE, lambda: "lumi")[0].name)
    assert order == [
        "jupiter",
        "jusuf",
        "perlmutter",
        "jedi",
        "lumi-g",
        "jureca-dc",
        "juwels-booster",
        "lumi-g",
    ]


def test_an_unknown_word_leaves_it_to_the_next_clue() -> None:
    assert detect({"SYSTEMNAME": "hdfml"}, "jrc0001", NO_FILE)[0].name == "jureca-dc"
    cluster = {"SYSTEMNAME": "juwels", "SLURM_CLUSTER_NAME": "juwels"}
    assert detect(cluster, "jwc01n001", NO_FILE)[0].name == "generic", "JUWELS Cluster"
    assert detect({"SYSTEMNAME": ""}, "x", NO_FILE)[0].name == "local"


def test_by_the_controller() -> None:
    found, clue = detect({}, "nid001234", NO_FILE, lambda: "perlmutter")
    assert (found.name, clue) == ("perlmutter", "Slurm's ClusterName=perlmutter")
    found, clue = detect({}, "x", NO_FILE, lambda: "mine")
    assert (found.name, clue) == ("generic", "Slurm is here (ClusterName=mine)")
    assert detect({}, "x", NO_FILE, lambda: "")[0].name == "generic"


def test_neither_a_site_nor_slurm() -> None:
    found, clue = detect({}, "laptop", NO_FILE, lambda: None)
    assert (found.name, clue) == ("local", "no known site and no Slurm")
    found, clue = detect({"SLURM_JOB_ID": "7"}, "n1", NO_FILE)
    assert (found.name, clue) == ("generic", "Slurm is here ($SLURM_JOB_ID=7)")


@pytest.mark.parametrize("host", [*LOGIN])
def test_login_nodes(host: str) -> None:
    assert on_login_node({}, host, NO_FILE)
    assert not on_login_node({"SLURM_JOB_ID": "3"}, host, NO_FILE), "salloc stays there"


@pytest.mark.parametrize("host", [*COMPUTE, "laptop", "login01"])
def test_no_login_nodes(host: str) -> None:
    assert not on_login_node({}, host, NO_FILE)


def test_login_nodes_whose_name_is_common(tmp_path: Path) -> None:
    assert on_login_node({"NERSC_HOST": "perlmutter"}, "login12", NO_FILE)
    assert not on_login_node({"NERSC_HOST": "perlmutter"}, "nid001234", NO_FILE)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert on_login_node({"PATH": str(tmp_path)}, "login01.cluster", NO_FILE)
    assert not on_login_node({"PATH": str(tmp_path)}, "n0001", NO_FILE)


def test_rankup_toml_has_the_last_word() -> None:
    file = Path("/x/rankup.toml")
    found, clue = choose(
        Config(profile="jusuf", site={"host_suffix": "x"}, file=file),
        {"SYSTEMNAME": "jupiter"},
        "jwb0001",
        NO_FILE,
    )
    assert (found.name, found.host_suffix, clue) == ("jusuf", "x", "/x/rankup.toml: profile")
    found, clue = choose(Config(), {"SYSTEMNAME": "jupiter"}, "x", NO_FILE)
    assert (found.name, clue) == ("jupiter", "$SYSTEMNAME=jupiter")
    found, _ = choose(Config(site={"title": "Y"}, file=file), {}, "x", NO_FILE, lambda: "")
    assert (found.name, found.title) == ("generic", "Y")
    broken = Config(site={"partitions": {"b": {"gpus": 1}}}, file=file)
    with pytest.raises(UserError, match=r"^/x/rankup\.toml: site\.partitions\.b\.cores is missing"):
        choose(broken, {}, "x", NO_FILE, lambda: "")
