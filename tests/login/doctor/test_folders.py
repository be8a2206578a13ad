"""What is left on file systems, where caches lie, and what compute nodes see of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import facts, folders
from rankup.login.doctor.deadline import Deadline
from rankup.login.doctor.facts import Facts, Folder, Space
from rankup.site import profile
from rankup.site.caches import caches
from rankup.site.config import Config, Needs
from rankup.slurm.client import Client
from tests.login.doctor.known import asked

JURECA = profile.load("jureca-dc")
JUPITER = profile.load("jupiter")
GENERIC = profile.load("generic")
GB = 10**9
HOME = Path("/p/home/jusers/me")


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
        (Space(("scratch",), Path("/s"), GB * 100, GB * 60), "ok", "unused for 90 days"),
        (Space(("data",), Path("/d"), problem="Stale file handle"), "warning", "Stale"),
    ],
)
def test_space(one: Space, level: str, part: str) -> None:
    [found] = asked(folders.space, spaces=[one], profile=JURECA)
    assert (found.code, found.level) == ("RK512", level)
    assert part in found.message


def test_a_real_folder_is_measured_and_one_to_be_made_by_its_parent(tmp_path: Path) -> None:
    here = facts.measure(Folder("runs", tmp_path / "not" / "yet", made=True))
    assert (here.path, here.problem) == (tmp_path, "")
    assert 0 < here.free <= here.total
    gone = facts.measure(Folder("scratch", tmp_path / "gone"))
    assert gone.problem == os.strerror(2)


def test_folders_on_one_file_system_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    spaces = [
        facts.measure(Folder("$HOME", tmp_path)),
        facts.measure(Folder("runs", tmp_path / "a")),
    ]
    [one] = folders.grouped(spaces)
    assert one.names == ("$HOME", "runs")


def mounted(site: profile.Profile, *needed: Folder) -> list[Finding]:
    python = facts.Python("3.12", Path("/"), needed[-1].path, True, None)
    return asked(
        folders.mounts,
        profile=site,
        folders=needed[:-1],
        python=python,
        script=Path(),
        here=Path("/here"),
    )


def test_what_compute_nodes_do_not_mount_is_an_error() -> None:
    mine = Folder("this folder", Path("/e/project1/x"))
    found = mounted(JUPITER, Folder("runs", Path("/p/scratch/x")), mine, mine)
    assert [(one.level, one.place) for one in found] == [("error", "runs"), ("ok", "mounts")]
    assert "JUPITER do not mount it" in found[0].message
    assert found[1].message == "compute nodes mount: this folder, Python"


def test_a_folder_that_every_node_has_for_itself_is_a_warning() -> None:
    [found, _] = mounted(GENERIC, Folder("this folder", Path("/tmp/x")), Folder("", Path("/v")))
    assert found.level == "warning"


def test_what_is_not_known_says_how_to_find_out() -> None:
    mine = Folder("this folder", Path("/arch/my x"))
    [found] = mounted(GENERIC, mine, mine)
    assert (found.level, found.todo) == ("ok", "`srun -N1 -n1 ls -d '/arch/my x'`")


def test_the_runs_folder_is_the_one_that_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"SYSTEMNAME": "jurecadc", "SCRATCH": "/p/scratch/x", "PATH": ""}

    def runs() -> Path:
        found = Facts(Deadline(120), Client(environment=environment))
        return {one.name: one.path for one in found.folders}["runs"]

    assert runs() == Path("/p/scratch/x")
    (tmp_path / "rankup.toml").write_text("runs = 'mine'\n")
    assert runs() == tmp_path / "mine"
    (tmp_path / "rankup.toml").unlink()
    (tmp_path / "runs").mkdir()
    assert runs() == tmp_path / "runs"


def judged(
    site: profile.Profile,
    environment: Mapping[str, str],
    config: Config | None = None,
    home: Path = HOME,
) -> list[Finding]:
    known = caches(config or Config(), site, environment, home)
    return asked(folders.caches, profile=site, caches=known, home=home)


def test_in_the_project_they_are_fine() -> None:
    [found] = judged(JURECA, {"PROJECT": "/p/project1/x"})
    assert found.level == "ok"
    assert "Hugging Face" in found.message
    assert "rankup sets it" in found.message


def test_home_is_warned_of_with_what_to_set() -> None:
    [found] = judged(JURECA, {})
    assert (found.code, found.level) == ("RK515", "warning")
    assert "~/.cache/huggingface" in found.message
    assert found.todo.startswith("jutil env activate -p PROJECT; or in rankup.toml: [fetch] cache")


def test_a_variable_that_leads_into_home_has_to_go_first() -> None:
    warning, fine = judged(JURECA, {"PROJECT": "/p/project1/x", "HF_HOME": f"{HOME}/hf"})
    assert (warning.level, fine.level) == ("warning", "ok")
    assert "Hugging Face ~/hf (set in your environment)" in warning.message
    assert warning.todo == "unset HF_HOME"


def test_a_cache_that_compute_nodes_do_not_see_is_an_error() -> None:
    found = judged(
        JURECA, {"PROJECT": "/p/project1/x", "HF_HOME": "/tmp/hf", "UV_CACHE_DIR": "/tmp/uv"}
    )
    [error] = [one for one in found if one.level == "error"]
    assert "do not mount Hugging Face /tmp/hf (set in your environment)" in error.message
    assert "uv" not in error.message  # jobs build nothing with it


def test_what_rankup_itself_fetches_counts_too() -> None:
    config = Config(fetch=Needs(cache=Path("/tmp/cache")))
    [error, _] = judged(JURECA, {"PROJECT": "/p/project1/x"}, config)
    assert error.level == "error"
    assert "do not mount Hugging Face, torch.hub, fastai, rankup in /tmp/cache" in error.message


def test_a_link_out_of_home_is_not_home(tmp_path: Path) -> None:
    home, big = tmp_path / "home", tmp_path / "big"
    home.mkdir()
    big.mkdir()
    (home / ".cache").symlink_to(big)
    found = judged(GENERIC, {}, home=home)
    [warning] = [one for one in found if one.level == "warning"]
    assert "Hugging Face" not in warning.message
    assert "Triton" in warning.message
