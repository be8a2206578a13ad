"""Fixtures of what runs in the process of a fetched script."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .running import Runner


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Runner]:
    """Run a script watched: `run("import torch; …", mode="proof")`."""
    project = tmp_path / "project"
    project.mkdir()
    # A short path: fork servers and queues make sockets there, whose paths have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rankup-", ignore_cleanup_errors=True) as temporary:
        yield Runner(project, tmp_path / "state", Path(temporary))
