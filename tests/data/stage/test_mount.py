"""SquashFS images mounted for a job: by what, found again, and gone when the job is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankup.base.errors import UserError
from rankup.data.stage import mount
from rankup.data.stage.staging import release, stage
from rankup.site import mounts
from tests.conftest import RunRankup
from tests.slurm.fixtures import require

from .made import until

TOOLS = ("squashfuse_ll", "squashfuse")


def _why_not() -> str:
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        return "needs to be root with /dev/fuse"
    missing = [name for name in (*TOOLS, "mksquashfs") if shutil.which(name) is None]
    return f"needs {', '.join(missing)} (Debian: squashfuse, squashfs-tools)" if missing else ""


@pytest.fixture(autouse=True)
def _able() -> None:
    require(_why_not(), os.environ)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies and mounts go; nothing is mounted below it when the test is over."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(folder))
    for name in ("SLURM_JOB_ID", "RANKUP_STAGE_JOB", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    left = _below(tmp_path)
    for point in left:
        subprocess.run(["umount", "-l", point], check=False, timeout=120)
    assert left == []


@pytest.fixture
def image(tmp_path: Path) -> Path:
    tree = tmp_path / "tree" / "a folder"
    tree.mkdir(parents=True)
    (tree / "größe.txt").write_text("what it holds")
    out = tmp_path / "my image.sqsh"
    words = ["mksquashfs", str(tmp_path / "tree"), str(out), "-noappend", "-no-progress"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return out


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The only tool that is there for mounting."""
    name: str = request.param
    _only(monkeypatch, tmp_path, name)
    return name


def _only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("fusermount3", "fusermount", "umount", *names):
        found = shutil.which(name)
        if found is not None:
            (programs / Path(found).name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))


def _below(folder: Path) -> list[str]:
    return [one.point for one in mounts.table() if one.point.startswith(f"{folder}/")]


def _seen(point: Path) -> str:
    return (point / "a folder" / "größe.txt").read_text()


@pytest.mark.parametrize("by", TOOLS, indirect=True)
def test_it_is_mounted_found_again_and_unmounted(home: Path, image: Path, by: str) -> None:
    said: list[str] = []
    mounted = mount.mount(image, say=said.append)
    assert _seen(mounted) == "what it holds"
    with pytest.raises(OSError):
        (mounted / "new").touch()
    assert mounted.is_relative_to(home)
    assert f"by {by}, where it lies; through FUSE, which costs CPU" in said[0]
    assert str(mounted) in said[0]
    assert mount.mount(image, say=said.append) == mounted
    assert len(said) == 1
    assert _below(home) == [str(mounted)]
    assert release() == [f"{mounted} is unmounted"]
    assert not mounted.exists()
    assert release() == []


@pytest.mark.parametrize("by", TOOLS, indirect=True)
def test_what_is_in_use_goes_when_its_reader_does(home: Path, image: Path, by: str) -> None:
    mounted = mount.mount(image)
    with (mounted / "a folder" / "größe.txt").open() as file:
        assert release() == [f"{mounted} is unmounted"]
        assert _below(home) == []
        assert file.read() == "what it holds"


@pytest.mark.parametrize("by", ["squashfuse_ll"], indirect=True)
def test_a_dead_process_of_fuse_is_found(home: Path, image: Path, by: str) -> None:
    """As Slurm leaves it, which kills all that a step has started."""
    mounted = mount.mount(image)
    _kill(str(mounted))
    with pytest.raises(OSError):
        os.listdir(mounted)
    mount.mount(image)
    assert _seen(mounted) == "what it holds"
    _kill(str(mounted))
    release()
    assert _below(home) == []
    assert not mounted.exists()


def _kill(point: str) -> None:
    for process in psutil.process_iter(["cmdline"]):
        words: list[str] = process.info["cmdline"] or []
        if point in words and "squashfuse" in words[0]:
            process.kill()

    def gone() -> bool:
        try:
            os.listdir(point)
        except OSError:
            return True
        return False

    until(gone)


def test_without_a_tool_the_packages_are_named(
    home: Path, image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _only(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"squashfuse is not installed.*apt install squashfuse"):
        mount.mount(image)
    assert [one.name for one in (home / f"rankup-{os.getuid()}").iterdir()] == [".lock"]


def test_only_an_image_is_mounted(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "a.h5"
    other.write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(UserError, match=r"no SquashFS image.*rankup pack SOURCE NAME.sqsh"):
        mount.mount(other)
    with pytest.raises(UserError, match=r"none\.sqsh cannot be mounted: No such file"):
        mount.mount(tmp_path / "none.sqsh")
    with pytest.raises(UserError, match="Is a directory"):
        mount.mount(tmp_path)


def test_another_place(home: Path, image: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    point = mount.mount(image, to=there)
    assert point.is_relative_to(there)
    assert _seen(point) == "what it holds"
    release(to=there)
    assert not point.exists()
    with pytest.raises(UserError, match="is no folder"):
        mount.mount(image, to=there / "none")


def test_each_job_has_its_own_and_loses_no_other(home: Path, image: Path) -> None:
    first, second = (mount.mount(image, job=f"job-{job}.0") for job in (17, 18))
    assert first != second
    assert release("job-17.0") == [f"{first} is unmounted"]
    assert _seen(second) == "what it holds"
    assert release("job-18.0") == [f"{second} is unmounted"]


def test_the_staged_copy_is_what_is_mounted(home: Path, image: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed.sqsh"
    shutil.copy(image, packed)
    stage(packed, quiet=True, reserve=0)
    said: list[str] = []
    mounted = mount.mount(packed, say=said.append)
    assert ", its staged copy;" in said[0]
    assert _seen(mounted) == "what it holds"
    assert len(release()) == 2


@pytest.mark.slow
def test_the_command_prints_the_folder_and_nothing_else(
    home: Path, image: Path, tmp_path: Path, run_rankup: RunRankup
) -> None:
    env = {"RANKUP_STAGE_DIR": str(home), "SLURM_JOB_ID": "4711"}
    done = run_rankup(["stage", image.name, "--mount"], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    point = Path(done.stdout.removesuffix("\n"))
    assert _seen(point) == "what it holds"
    assert "by squashfuse" in done.stderr
    told = run_rankup(["stage", "--list"], cwd=tmp_path, env=env)
    assert str(point) in told.stdout
    done = run_rankup(["stage", "--release"], cwd=tmp_path, env=env)
    assert f"{point} is unmounted" in done.stdout
    assert _below(home) == []
