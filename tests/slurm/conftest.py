"""What the tests of job scripts share."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
