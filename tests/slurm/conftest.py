"""What the tests of job scripts share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.slurm.script import JobScript

from .jobscripts import ONE, Bash


@pytest.fixture(autouse=True)
def one_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fake nodes meet at an address and a port that the job's number fixes: one test at a time,
    over all processes of this user that run tests."""
    if "bash" not in request.fixturenames:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"rankup-job-scripts-{os.getuid()}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def bash(tmp_path: Path) -> Bash:
    """Runs job scripts with fake Slurm commands."""
    return Bash(tmp_path)


@pytest.fixture
def job(tmp_path: Path) -> JobScript:
    """A job of one node in folders that are there."""
    (tmp_path / "run").mkdir()
    return replace(ONE, run_dir=str(tmp_path / "run"), work_dir=str(tmp_path))
