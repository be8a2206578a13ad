"""Fixtures of the login node's tests."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankup.site.caches import VARIABLES as CACHE_VARIABLES

from ..conftest import RunRankup
from .hub_server import Hub
from .stage import Stage
from .web import Web, serving

CHECKOUT = Path(__file__).resolve().parents[2]
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
        if of_a_hub or name in CACHE_VARIABLES or name.lower() in _PROXIES:
            monkeypatch.delenv(name)


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server on loopback, empty at first."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a BERT of some 20 kB, as `save_pretrained` of transformers writes them."""
    folder = tmp_path_factory.mktemp("tiny-model")
    command = [sys.executable, "-m", "tests.login.tiny_model", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=120)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def hub(web: Web, tiny_model: dict[str, bytes]) -> Hub:
    """An imitated hub on `web` with the model org/tiny-model and data sets of three formats.

    org/tiny: Parquet, 40 rows of text and label. org/lines: JSON lines, 9 rows of text.
    org/words: text, configurations `small` and `large`.
    """
    hub = Hub(web)
    hub.add("model", "org/tiny-model", tiny_model)
    hub.add(
        "dataset",
        "org/tiny",
        {"README.md": b"# tiny\n", "data/train-00000-of-00001.parquet": _parquet(40)},
    )
    lines = "".join(json.dumps({"text": f"line {i}"}) + "\n" for i in range(9))
    hub.add("dataset", "org/lines", {"README.md": b"# lines\n", "train.jsonl": lines.encode()})
    hub.add(
        "dataset",
        "org/words",
        {
            "README.md": _TWO_CONFIGURATIONS,
            "small/train.txt": b"a\nb\n",
            "small/test.txt": b"c\n",
            "large/train.txt": b"a\nb\nc\nd\n",
        },
    )
    return hub


@pytest.fixture
def stage(tmp_path: Path, web: Web, rankup_here: RunRankup) -> Stage:
    """An empty project of a user with an empty home; the command runs in this process."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    return Stage(project, home, web, rankup_here)


def _parquet(rows: int) -> bytes:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    columns = {"text": [f"sample {i}" for i in range(rows)], "label": [i % 2 for i in range(rows)]}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


_TWO_CONFIGURATIONS = b"""---
configs:
- config_name: small
  data_files:
  - split: train
    path: small/train.txt
  - split: test
    path: small/test.txt
- config_name: large
  data_files:
  - split: train
    path: large/train.txt
---
"""
