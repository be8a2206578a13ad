"""A folder for large sparse files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[Path]:
    """In memory where it can be, where holes take no room: on a disk they are cached as read."""
    if not _MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        yield Path(folder)
