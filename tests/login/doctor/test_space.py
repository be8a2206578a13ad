"""What is left on file systems, and what compute nodes see of them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankup.login.doctor import codes, space
from rankup.login.doctor.space import Folder, Space
from rankup.site import profile
from rankup.site.caches import caches
from rankup.site.config import Config

JURECA = profile.load("jureca-dc")
JUPITER = profile.load("jupiter")
GENERIC = profile.load("generic")
GB = 10**9


@pytest.mark.parametrize(
    ("one", "level", "part"),
    [
        (Space(("$HOME",), Path("/h"), 100 * GB, 60 * GB, 1000, 900), "ok", "60 GB of 100 GB"),
        (Space(("$HOME",), Path("/h"), 100 * GB, 0, 1000, 900), "error", "full"),
        (Space(("$HOME",), Path("/h"), 100 * GB, 60 * GB, 1000, 0), "error", "no file more"),
        (Space(("$HOME",), Path("/h"), 100 * GB, 2 * GB, 1000, 900), "warning", "nearly full"),
        (Space(("$HOME",), Path("/h"), 10**16, 10**14, 0, 0), "ok", "100 TB"),
        (Space(("$HOME",), Path("/h"), 100 * GB, 60 * GB, 10**6, 99), "warning", "99 files"),
        (Space(("project",), Path("/p"), 100 * GB, 0, 0, 0), "warning", "full"),
        (Space(("runs",), Path("/r"), GB, GB, 0, 0, read_only=True), "error", "read-only"),
        (Space(("data",), Path("/d"), problem="Stale file handle"), "warning", "Stale"),
    ],
)
def test_space(one: Space, level: str, part: str) -> None:
    [found] = space.check_space([one])
    assert (found.code, found.level) == (codes.SPACE, level)
    assert part in found.message


def test_a_real_folder_is_measured_and_one_to_be_made_by_its_parent(tmp_path: Path) -> None:
    here = space.measure(Folder("runs", tmp_path / "not" / "yet", made=True))
    assert (here.path, here.problem) == (tmp_path, "")
    assert 0 < here.free <= here.total
    gone = space.measure(Folder("scratch", tmp_path / "gone"))
    assert gone.problem == os.strerror(2)


def test_folders_on_one_file_system_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    spaces = [
        space.measure(Folder("$HOME", tmp_path)),
        space.measure(Folder("runs", tmp_path / "a")),
    ]
    [one] = space.grouped(spaces)
    assert one.names == ("$HOME", "runs")


def test_what_compute_nodes_do_not_mount_is_an_error() -> None:
    found = space.check_mounted(
        JUPITER,
        [Folder("runs", Path("/p/scratch/x")), Folder("this folder", Path("/e/project1/x"))],
    )
    assert [(one.level, one.place) for one in found] == [("error", "runs"), ("ok", "mounts")]
    assert "JUPITER do not mount it" in found[0].message


def test_a_folder_that_every_node_has_for_itself_is_a_warning() -> None:
    [found] = space.check_mounted(GENERIC, [Folder("this folder", Path("/tmp/x"))])
    assert found.level == "warning"


def test_what_is_not_known_says_how_to_find_out() -> None:
    [found] = space.check_mounted(GENERIC, [Folder("this folder", Path("/arch/my x"))])
    assert (found.level, found.todo) == ("ok", "`srun -N1 -n1 ls -d '/arch/my x'`")


def test_without_the_project_s_variables_jutil_is_named() -> None:
    [found] = space.check_project(JURECA, {}, None)
    assert "jutil env activate -p PROJECT" in found.todo
    assert (
        space.check_project(JURECA, {"PROJECT": "/p/project1/x", "SCRATCH": "/p/s/x"}, None) == []
    )
    assert space.check_project(GENERIC, {}, None) == []


def test_the_runs_folder_is_the_one_that_run_takes(tmp_path: Path) -> None:
    def runs(config: Config) -> Path:
        env = {"SCRATCH": "/p/scratch/x"}
        found = space.folders(config, JURECA, caches(config, JURECA, env), env, tmp_path)
        return {one.name: one.path for one in found}["runs"]

    assert runs(Config(runs=tmp_path / "runs")) == Path("/p/scratch/x")
    assert runs(Config(runs=tmp_path / "runs", runs_set=True)) == tmp_path / "runs"
    (tmp_path / "runs").mkdir()
    assert runs(Config(runs=tmp_path / "runs")) == tmp_path / "runs"


def test_little_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = SimpleNamespace(f_blocks=16384, f_bavail=16384, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: docker)
    [found] = space.check_shared_memory(space.shared_memory())
    assert (found.level, found.code) == ("warning", codes.SHARED_MEMORY)
    assert "67.1 MB of 67.1 MB" in found.message
