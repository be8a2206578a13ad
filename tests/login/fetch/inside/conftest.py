"""Fixtures of what runs in the process of a fetched script."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import Runner


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a script watched: `run("import torch; …", mode="proof")`."""
    project = tmp_path / "project"
    project.mkdir()
    return Runner(project, tmp_path / "state")
