"""Fixtures of what runs in the process of a fetched script."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .running import Runner


@contextmanager
def runner(folder: Path) -> Iterator[Runner]:
    """Run scripts of a new project below `folder`."""
    project = folder / "project"
    project.mkdir()
    # A short path: fork servers and queues make sockets there, whose paths have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rankup-", ignore_cleanup_errors=True) as temporary:
        yield Runner(project, folder / "state", Path(temporary))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Runner]:
    """Run a script watched: `run("import torch; …", block=True)`."""
    with runner(tmp_path) as one:
        yield one
