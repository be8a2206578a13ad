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
        word.removeprefix("--rdzv-endpoint=").rpartition(":")[0]
        for words in ran.torchrun
        for word in words
        if word.startswith("--rdzv-endpoint=")
    }
    assert len(ran.torchrun) == 2
    assert len(found) == 1
    address = found.pop()
    assert f"--local-addr={address}" in ran.torchrun[0]
    assert not [word for word in ran.torchrun[1] if word.startswith("--local-addr")]
    return address


def test_the_name_with_the_suffix_wins(bash: Bash) -> None:
    assert _address(_meet(bash, "n1=10.0.0.1\nn1i=10.0.0.2", suffix="i")) == "10.0.0.2"
    assert (bash.notes / "getent").read_text() == "n1i\n"


def test_where_the_suffix_does_not_resolve_the_plain_name_is_taken_and_it_is_said(
    bash: Bash,
) -> None:
    ran = _meet(bash, "n1=10.0.0.1", suffix="i")
    assert _address(ran) == "10.0.0.1"
    assert "n1i does not resolve; trying n1" in ran.output


def test_without_a_suffix_no_other_name_is_tried(bash: Bash) -> None:
    assert _address(_meet(bash, "n1=10.0.0.1\nn1i=10.0.0.2")) == "10.0.0.1"
    assert (bash.notes / "getent").read_text() == "n1\n"


def test_the_first_of_several_addresses_that_is_no_loopback(bash: Bash) -> None:
    assert _address(_meet(bash, "n1=127.0.1.1 10.0.0.7 10.0.0.8")) == "10.0.0.7"


@pytest.mark.parametrize("loopback", ["127.0.0.1", "127.0.1.1", "127.255.255.254"])
def test_a_loopback_answer_of_the_resolver_is_refused(bash: Bash, loopback: str) -> None:
    ran = _meet(bash, f"n1={loopback}\nn1i={loopback}", node_addr="10.0.0.9", suffix="i")
    assert _address(ran) == "10.0.0.9"


def test_an_address_that_only_looks_like_loopback_is_taken(bash: Bash) -> None:
    assert _address(_meet(bash, "n1=12.127.0.1")) == "12.127.0.1"


@pytest.mark.parametrize("address", ["10.0.0.9", "127.0.0.11"])
def test_slurms_own_address_is_taken_as_it_is(bash: Bash, address: str) -> None:
    assert _address(_meet(bash, "", node_addr=address)) == address


def test_a_name_in_slurms_address_is_resolved(bash: Bash) -> None:
    ran = _meet(bash, "node-one.cluster=10.0.0.5", node_addr="node-one.cluster")
    assert _address(ran) == "10.0.0.5"


@pytest.mark.parametrize("hosts", ["", "n1=127.0.1.1", "n1=127.0.1.1\nhead=127.0.0.1"])
def test_without_any_address_the_job_ends_and_says_why(bash: Bash, hosts: str) -> None:
    ran = _meet(bash, hosts, node_addr="head")
    assert (ran.code, ran.torchrun) == (1, ())
    assert "no address for n1: neither the resolver nor Slurm's NodeAddr has one" in ran.output
    assert "localhost" not in ran.output
    assert not (bash.notes / "srun.0").exists()


def test_a_port_where_somebody_sits_is_passed_over(bash: Bash) -> None:
    # "Connected" at the first two ports.
    bash.program("timeout", 'case "$*" in *4242* | *4243*) exit 0 ;; esac; exit 1')
    ran = _meet(bash, "n1=10.0.0.1")
    assert all("--rdzv-endpoint=10.0.0.1:14244" in words for words in ran.torchrun)
