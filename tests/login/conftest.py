"""Fixtures of the login node's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import RunRankup
from .hub_server import Hub
from .stage import Stage
from .web import Web, serving

_CACHES = (
    "RANKUP_CACHE",
    "XDG_CACHE_HOME",
    "HUGGINGFACE_HUB_CACHE",
    "TORCH_HOME",
    "FASTAI_HOME",
    "TRITON_CACHE_DIR",
    "PIP_CACHE_DIR",
    "UV_CACHE_DIR",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def nobodys_settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches, tokens and proxies of whoever runs the tests are not theirs.

    Tests of the real package index (`slow`, in `env`) reach it as that person does.
    """
    if request.path.name == "test_real_index.py":
        return
    for name in list(os.environ):
        of_a_hub = name.startswith(("HF_", "TRANSFORMERS_"))
        if of_a_hub or name in _CACHES or name.lower() in _PROXIES:
            monkeypatch.delenv(name)


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server on loopback, empty at first."""
    with serving() as server:
        yield server


@pytest.fixture
def hub(web: Web) -> Hub:
    """An imitated hub on `web`, empty at first."""
    return Hub(web)


@pytest.fixture
def stage(tmp_path: Path, web: Web, rankup_here: RunRankup) -> Stage:
    """An empty project of a user with an empty home; the command runs in this process."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    return Stage(project, home, web, rankup_here)
