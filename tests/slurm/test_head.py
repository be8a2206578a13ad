"""The address all nodes meet at: the part of the job script that finds it, with fake commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from .jobscripts import ONE, Bash, Ran


@pytest.fixture
def bash(tmp_path: Path) -> Bash:
    found = Bash(tmp_path)
    found.program("timeout", "exit 1")  # nobody sits at the port; the addresses are not there
    return found


def _meet(bash: Bash, hosts: str, node_addr: str = "", suffix: str = "") -> Ran:
    """Run a job on n1 and n2 where names resolve as `hosts` says: `n1=10.0.0.1 10.0.0.2`, lines."""
    folder = bash.notes.parent / "run"
    folder.mkdir()
    job = replace(
        ONE, nodes=2, run_dir=str(folder), work_dir=str(folder), host_suffix=suffix, gpus=0
    )
    settings = {"FAKE_NODEADDR": node_addr} if node_addr else {}
    return bash.run(job, FAKE_HOSTS=hosts, FAKE_NO_PREFLIGHT="1", **settings)


def _address(ran: Ran) -> str:
    """The address that torchrun was told on every node."""
    assert ran.code == 0, ran.output
    found = {
        word.removeprefix("--master-addr=")
        for words in ran.torchrun
        for word in words
        if word.startswith("--master-addr=")
    }
    assert len(ran.torchrun) == 2
    assert len(found) == 1
    return found.pop()


def test_the_name_with_the_suffix_wins(bash: Bash) -> None:
    assert _address(_meet(bash, "n1=10.0.0.1\nn1i=10.0.0.2", suffix="i")) == "10.0.0.2"
    assert (bash.notes / "getent").read_text() == "n1i\n"


def test_where_the_suffix_does_not_resolve_the_plain_name_is_taken_and_it_is_said(
    bash: Bash,
) -> None:
    ran = _meet(bash, "n1=12.127.0.1", suffix="i")
    assert _address(ran) == "12.127.0.1", "which only looks like loopback"
    assert "n1i does not resolve; trying n1" in ran.output


def test_the_first_of_several_addresses_that_is_no_loopback(bash: Bash) -> None:
    hosts = "n1=127.0.1.1 10.0.0.7 10.0.0.8\nn1i=10.0.0.2"
    assert _address(_meet(bash, hosts)) == "10.0.0.7"
    assert (bash.notes / "getent").read_text() == "n1\n", "without a suffix no other name"


@pytest.mark.parametrize(
    ("hosts", "node_addr", "expected"),
    [
        ("n1=127.0.0.1\nn1i=127.255.255.254", "10.0.0.9", "10.0.0.9"),
        ("", "127.0.0.11", "127.0.0.11"),
        ("node-one.cluster=10.0.0.5", "node-one.cluster", "10.0.0.5"),
    ],
    ids=["loopback refused", "slurm's own as it is", "slurm's own by name"],
)
def test_slurms_own_address_comes_last(
    bash: Bash, hosts: str, node_addr: str, expected: str
) -> None:
    assert _address(_meet(bash, hosts, node_addr=node_addr, suffix="i")) == expected


def test_without_any_address_the_job_ends_and_says_why(bash: Bash) -> None:
    ran = _meet(bash, "n1=127.0.1.1\nhead=127.0.0.1", node_addr="head")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "no address for n1: neither the resolver nor Slurm's NodeAddr has one" in ran.output
    assert "localhost" not in ran.output
    assert not (bash.notes / "srun.0").exists()


def test_a_port_where_somebody_sits_is_passed_over(bash: Bash) -> None:
    # "Connected" at the first two ports.
    bash.program("timeout", 'case "$*" in *4242* | *4243*) exit 0 ;; esac; exit 1')
    ran = _meet(bash, "n1=10.0.0.1")
    assert all("--master-port=14244" in words for words in ran.torchrun)
