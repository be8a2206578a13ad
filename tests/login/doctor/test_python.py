"""This Python, the project's environment, and the torch that jobs get."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankup.base.findings import Finding
from rankup.login.doctor import facts, python
from rankup.login.doctor.facts import Python, Torch
from rankup.site import profile
from rankup.site.config import Config
from tests.login.doctor.known import asked

JURECA = profile.load("jureca-dc")
JUPITER = profile.load("jupiter")
LUMI = profile.load("lumi-g")
GENERIC = profile.load("generic")
LOCAL = profile.load("local")
HERE = Python("3.12.1", Path("/v/bin/python"), Path("/v"), True, None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an environment."""
    programs = tmp_path / "env" / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").touch()
    (tmp_path / "env" / "activate.sh").touch()
    return tmp_path


def judged(
    this: Python,
    project: Path = Path("/no"),
    job: Mapping[str, Any] | None = None,
    here: str = "x86_64",
    site: profile.Profile = LOCAL,
) -> list[Finding]:
    config = Config(job=job or {})
    return asked(
        python.python, python=this, project=project, config=config, architecture=here, profile=site
    )


def environment(project: Path, this: Python, job: Mapping[str, Any] | None = None) -> list[Finding]:
    return judged(this, project, job)[1:]


def inside(project: Path) -> Python:
    return Python("3.12.1", Path("/x"), project / "env" / "venv", True, None)


def test_this_python_is_named() -> None:
    found = facts.this_python({})
    assert (found.executable, found.prefix) == (Path(sys.executable), Path(sys.prefix))
    assert judged(found)[0].level == "ok"


def test_another_environment_that_is_active_is_a_warning() -> None:
    other = facts.this_python({"CONDA_PREFIX": "/opt/conda"})
    [found] = judged(other)
    assert (found.code, found.level) == ("RK518", "warning")
    assert "/opt/conda" in found.message


def test_the_active_one_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sys.prefix)
    found = facts.this_python({"VIRTUAL_ENV": str(tmp_path / "link")})
    assert judged(found)[0].level == "ok"


def test_an_environment_that_is_active_is_fine(project: Path) -> None:
    [found] = environment(project, inside(project))
    assert (found.code, found.level) == ("RK518", "ok")


def test_one_that_is_there_and_not_active_is_a_warning(project: Path) -> None:
    [found] = environment(project, HERE)
    assert found.level == "warning"
    assert "not active" in found.message


def test_one_that_was_never_made_says_the_command(project: Path) -> None:
    os.rename(project / "env" / "venv", project / "gone")
    [found] = environment(project, HERE)
    assert found.todo == f"rankup env create {project / 'env'}"


def test_one_that_is_older_than_its_files_is_a_warning(project: Path) -> None:
    (project / "env" / "venv" / ".made").write_text("kind=wheels\n")
    [found] = environment(project, inside(project))
    assert (found.level, found.message) == ("warning", f"{project / 'env'} is not finished")
    assert found.todo == f"rankup env create {project / 'env'}"


def test_one_of_another_name_is_known_by_its_files(project: Path, tmp_path: Path) -> None:
    os.rename(project / "env", project / "other")
    own = Python("3.12.1", Path("/x"), project / "other" / "venv", True, None)
    [found] = environment(project, own)
    assert (found.level, found.message) == ("ok", f"{project / 'other'} is active")


def test_what_jobs_get_instead_has_to_be_there(tmp_path: Path) -> None:
    assert environment(tmp_path, HERE) == []
    [gone] = environment(tmp_path, HERE, job={"environment": str(tmp_path / "none.sh")})
    assert (gone.level, gone.code) == ("error", "RK518")
    [other] = environment(tmp_path, HERE, job={"container": "docker://some/image"})
    assert other.level == "ok"
    assert "docker://some/image" in other.message


def make_torch(
    site: Path, version: str = "2.8.0+cu128", cuda: str | None = "12.8", hip: str | None = None
) -> Path:
    """A torch as far as it can be seen without importing it."""
    info = site / f"torch-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (site / "torch" / "version.py").write_text(
        "from typing import Optional\n"
        f"__version__ = {version!r}\ndebug = False\ncuda: Optional[str] = {cuda!r}\n"
        f"hip: Optional[str] = {hip!r}\n"
    )
    return site


def test_a_build_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_torch(tmp_path, "2.8.0+rocm6.4", None, "6.4")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert facts.torches() == [Torch(tmp_path, "2.8.0+rocm6.4")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "torch" / "__init__.py").unlink()  # a pip that was killed
    assert facts.torches() == []


def test_the_real_torch_is_read_and_not_imported() -> None:
    assert facts.torches()[0].version == importlib.metadata.version("torch")


def test_one_that_only_a_finder_knows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_torch(tmp_path / "checkout")
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(site / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [one.folder for one in facts.torches()] == [site]


def torch(*found: Torch) -> Finding:
    [finding] = asked(python.torch, torches=list(found))
    return finding


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.6.0", "error"),
        ("1.13.1+cu117", "error"),
        ("2.7.1", "warning"),
        ("2.8.0", "ok"),
        ("2.10.0a0+git12ab", "ok"),
        ("", "error"),
    ],
)
def test_too_old_for_fsdp2(version: str, level: str) -> None:
    found = torch(Torch(Path("/m"), version))
    assert (found.code, found.level) == ("RK520", level)
    if level == "error" and version:
        assert found.todo.startswith("remove the module")
        assert "which wants 2.7" in found.message
        assert "torch>=2.8 in requirements.txt" in found.todo
    assert torch().level == "warning"


def test_twice_on_the_path_says_which_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = make_torch(tmp_path / "venv")
    module = make_torch(tmp_path / "module", "2.5.1")
    monkeypatch.setattr(sys, "path", [str(venv), str(module), str(venv)])
    [_, found] = asked(python.torch, torches=facts.torches())
    assert (found.code, found.level) == ("RK520", "warning")
    assert f"2.8.0+cu128 in {venv} is taken, behind it 2.5.1 in {module}" in found.message


@pytest.mark.parametrize(
    ("here", "site", "wrong"),
    [
        ("x86_64", JURECA, False),
        ("x86_64", JUPITER, True),
        ("aarch64", JUPITER, False),
        ("aarch64", JURECA, True),
        ("aarch64", LOCAL, False),
    ],
)
def test_processors_of_compute_nodes(here: str, site: profile.Profile, wrong: bool) -> None:
    found = judged(HERE, here=here, site=site)[1:]
    assert [(one.code, one.level) for one in found] == ([("RK518", "error")] if wrong else [])
