"""What several tests of packs are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from .made import tree


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("source") / "tree", 150)
