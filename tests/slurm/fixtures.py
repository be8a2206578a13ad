"""The fixture `slurm`: a real cluster, as new for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest

from .cluster import Cluster, why_not


@pytest.fixture(scope="session")
def slurm_session(no_process_outlives_the_session: None) -> Iterator[Cluster]:
    """The one cluster of the session; tests take `slurm`."""
    require(why_not(), os.environ)
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def slurm(slurm_session: Cluster) -> Iterator[Cluster]:
    """A cluster of three idle nodes and an empty queue, made so again after the test."""
    yield slurm_session
    slurm_session.settle()


def require(missing: str, environment: Mapping[str, str]) -> None:
    """Skip the test when something is missing; in CI fail it: there the real thing is tried."""
    if missing and environment.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
