"""This Python and the project's environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rankup.login.doctor import codes, python
from rankup.login.doctor.python import Python

HERE = Python("3.12.1", Path("/v/bin/python"), Path("/v"), True, None)


def fresh(folder: Path) -> str:
    return ""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an environment."""
    programs = tmp_path / "env" / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").touch()
    (tmp_path / "env" / "activate.sh").touch()
    return tmp_path


def inside(project: Path) -> Python:
    return Python("3.12.1", Path("/x"), project / "env" / "venv", True, None)


def test_this_python_is_named() -> None:
    found = python.this({})
    assert (found.executable, found.prefix) == (Path(sys.executable), Path(sys.prefix))
    assert python.check_python(found)[0].level == "ok"


def test_another_environment_that_is_active_is_a_warning() -> None:
    other = python.this({"CONDA_PREFIX": "/opt/conda"})
    [found] = python.check_python(other)
    assert (found.code, found.level) == (codes.PYTHON, "warning")
    assert "/opt/conda" in found.message


def test_the_active_one_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sys.prefix)
    found = python.this({"VIRTUAL_ENV": str(tmp_path / "link")})
    assert python.check_python(found)[0].level == "ok"


def test_an_environment_that_is_active_is_fine(project: Path) -> None:
    [found] = python.check_environment(project, inside(project), fresh)
    assert (found.code, found.level) == (codes.ENVIRONMENT, "ok")


def test_one_that_is_there_and_not_active_is_a_warning(project: Path) -> None:
    [found] = python.check_environment(project, HERE, fresh)
    assert found.level == "warning"
    assert "not active" in found.message


def test_one_that_was_never_made_says_the_command(project: Path) -> None:
    os.rename(project / "env" / "venv", project / "gone")
    [found] = python.check_environment(project, HERE, fresh)
    assert found.todo == f"rankup env create {project / 'env'}"


def test_one_that_is_older_than_its_files_is_a_warning(project: Path) -> None:
    old = "env is older than its modules.sh"
    [found] = python.check_environment(project, inside(project), lambda folder: old)
    assert (found.level, found.message) == ("warning", old)
    assert found.todo == f"rankup env create {project / 'env'}"


def test_one_of_another_name_is_known_by_its_files(project: Path, tmp_path: Path) -> None:
    os.rename(project / "env", project / "other")
    own = Python("3.12.1", Path("/x"), project / "other" / "venv", True, None)
    [found] = python.check_environment(project, own, fresh)
    assert (found.level, found.message) == ("ok", f"{project / 'other'} is active")


def test_what_jobs_get_instead_has_to_be_there(tmp_path: Path) -> None:
    assert python.check_job({}) == []
    [gone] = python.check_job({"environment": str(tmp_path / "none.sh")})
    assert (gone.level, gone.code) == ("error", codes.ENVIRONMENT)
    [other] = python.check_job({"container": "docker://some/image"})
    assert other.level == "ok"
    assert "docker://some/image" in other.message
