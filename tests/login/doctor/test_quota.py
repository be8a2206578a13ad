"""Quotas, from what the commands of real sites print."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.findings import Finding
from rankup.login.doctor import folders, quota
from rankup.login.doctor.quota import Quota
from rankup.site.mounts import Mount
from tests.login.doctor.known import asked

RECORDED = Path(__file__).with_name("recorded")


def parsed(name: str) -> list[Quota]:
    return quota.parse(name.partition("-")[0], (RECORDED / f"{name}.txt").read_text())


def judged(found: list[Quota], late: list[str]) -> list[Finding]:
    return asked(folders.quotas, quotas=(found, late))


def test_lustre_in_kilobytes() -> None:
    [one] = parsed("lfs-plain")
    assert (one.name, one.whose, one.said_by) == ("/scratch", "project", "lfs")
    assert (one.used, one.limit) == (1234567 * 1024, 5242880 * 1024)
    assert (one.files, one.limit_files) == (5678, 1000000)


def test_lustre_with_a_long_name_and_more_lines_below() -> None:
    [one] = parsed("lfs-wrapped")
    assert one.name == "/home/site/n/somebody"
    assert (one.limit, one.files, one.limit_files) == (104857600 * 1024, 908722, 1048576)


def test_lustre_over_its_quota_and_not_accurate() -> None:
    over, vague = parsed("lfs-over")
    assert over.used == 5242880 * 1024
    assert (vague.used, vague.files) == (1041408 * 1024, 0)
    [finding] = judged([over], [])
    assert finding.level == "error"
    assert "at its limit" in finding.message


def test_gpfs_by_the_names_of_its_columns() -> None:
    found = parsed("mmlsquota-colons")
    assert [(one.name, one.whose) for one in found] == [
        ("home", "user"),
        ("home", "group"),
        ("scratch training2543", "project"),
    ]
    assert (found[0].used, found[0].limit) == (1024 * 10485760, 1024 * 20971520)
    assert found[2].files == 3925347


def test_nfs_and_ext4() -> None:
    [one] = parsed("quota-wide")
    assert (one.name, one.limit) == ("server:/home", 15360 * 1024)


def test_jutil() -> None:
    scratch, project = parsed("jutil-json")
    assert (scratch.name, scratch.files, scratch.limit_files) == ("/p/scratch/x", 3925347, 4000000)
    assert project.used == 11500000000 * 1000


@pytest.mark.parametrize(
    ("one", "level"),
    [
        (Quota("/h", "user", 5, 10, 5, 10, "lfs"), "ok"),
        (Quota("/h", "user", 95, 100, 5, 10, "lfs"), "warning"),
        (Quota("/h", "user", 5, 100, 9, 10, "lfs"), "warning"),
        (Quota("/h", "user", 105, 100, 5, 10, "lfs"), "error"),
        (Quota("/h", "user", 5, 0, 10, 10, "lfs"), "error"),
    ],
)
def test_levels(one: Quota, level: str) -> None:
    [found] = judged([one], [])
    assert found.level == level
    assert "says lfs" in found.message


@given(st.text() | st.text("ab09/:*[]. -\n"))
def test_no_text_is_too_strange(text: str) -> None:
    for command in ("lfs", "mmlsquota", "quota", "jutil"):
        judged(quota.parse(command, text), [])


def test_each_kind_of_file_system_has_its_command() -> None:
    def words(kind: str) -> list[list[str]]:
        mount = Mount("/dev/project1", "/p", kind)
        return quota.command(mount, "/p/x", "me", "proj")

    lustre = Mount("o2ib:/fs", "/p", "lustre")
    both = quota.command(lustre, "/p/x", "me", "proj", 4711)
    assert both[1] == ["lfs", "quota", "-p", "4711", "/p/x"]
    assert words("lustre") == [["lfs", "quota", "-u", "me", "/p/x"]]
    assert words("gpfs")[1] == ["mmlsquota", "-Y", "-j", "proj", "project1"]
    assert words("nfs4") == [["quota", "-u", "-w", "-p"]]
    assert words("tmpfs") == []


def test_the_project_that_a_folder_counts_to(tmp_path: Path) -> None:
    # Only root could give it one; that the kernel is asked in its own terms shows all the same.
    assert quota.project_number(str(tmp_path)) == 0
    assert quota.project_number(str(tmp_path / "none")) == 0


def test_the_quotas_of_one_folder_in_lines(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    jutil = programs / "jutil"
    jutil.write_text(f"#!/bin/sh\ncat {RECORDED}/jutil-json.txt\n")
    jutil.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    said = [
        line
        for line in quota.lines(tmp_path, "proj", environment, 120.0)
        if line.endswith("says jutil)")
    ]
    assert len(said) == 2
    assert said[0].startswith("/p/scratch/x: ")
    assert ", 3.93M of 4M files (project, says jutil)" in said[0]
    jutil.write_text("#!/bin/sh\nsleep 600\n")
    late = "`jutil project dataquota -p proj -o json -U KB` did not answer in time"
    assert late in quota.lines(tmp_path, "proj", environment, 0.5)
    assert quota.lines(tmp_path, None, {"PATH": str(tmp_path)}) == []
