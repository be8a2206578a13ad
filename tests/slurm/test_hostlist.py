"""Host lists: the same names as scontrol's, and never more than asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.slurm.hostlist import compress, expand

EXPANDED = {
    "jwb[0001-0003,0010],login1": ["jwb0001", "jwb0002", "jwb0003", "jwb0010", "login1"],
    "r[0-1]n[1-2]": ["r0n1", "r0n2", "r1n1", "r1n2"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[09-11],b": ["n09", "n10", "n11", "b"],
    "n[99-101]": ["n99", "n100", "n101"],
    "n[1,1]": ["n1", "n1"],
    "n[1-2]x[3]": ["n1x3", "n2x3"],
    "[1-2]": ["1", "2"],
    "a,,b": ["a", "b"],
    "": [],
}


def test_a_host_list_expands_to_its_names() -> None:
    assert {text: expand(text) for text in EXPANDED} == EXPANDED


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs scontrol (slurm-client)")
def test_scontrol_gives_the_same_names(tmp_path: Path) -> None:
    # It asks no controller, but wants a configuration.
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1\n")
    text = ",".join(filter(None, EXPANDED))
    result = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={**os.environ, "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.split() == expand(text), result.stderr


@pytest.mark.parametrize(
    "text", ["n[5-3]", "n[]", "n[1", "n1]", "n[a]", "n[1-]", "n[1-2-3]", "n[[1]]", "n 1", "n[1, 2]"]
)
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host list 'n"):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[0-99999999999]",
        "a[0-60000],b[0-60000]",
        "x[1-9]" * 40,
    ],
)
def test_a_hostile_list_is_refused_without_taking_memory(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more than 65536 names"):
            expand(text)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_neighbours_are_folded_and_the_order_is_kept() -> None:
    hosts = ["jwb0009", "jwb0010", "jwb0012", "login1", "n2", "n1", "gpu-01.local"]
    assert compress(hosts) == "jwb[0009-0010,0012],login1,n[2,1],gpu-01.local"


@pytest.mark.parametrize("host", ["", "a,b", "n[1]", "a b"])
def test_what_is_no_host_name_is_not_folded(host: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        compress([host])


@given(st.lists(st.from_regex(r"[a-z]{0,3}-?[0-9]{0,4}[a-z]?", fullmatch=True).filter(bool)))
def test_names_survive_folding_and_unfolding(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == hosts


@given(st.text(alphabet="n[]-,019 \n٣", max_size=30))
def test_any_text_is_names_or_a_value_error(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert all(names)
    assert len(names) <= 65536
