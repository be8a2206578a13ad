"""One browser for all tests of the report."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .browser import Browser, chromium


@pytest.fixture(scope="session")
def browser(no_process_outlives_the_session: None) -> Iterator[Browser]:
    with chromium() as running:
        yield running
