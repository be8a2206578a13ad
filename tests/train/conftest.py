"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import crash


@pytest.fixture(scope="package")
def forks() -> Iterator[None]:
    """Processes that start with torch imported, see `crash.py`."""
    crash.preload()
    yield
    crash.stop_server()
