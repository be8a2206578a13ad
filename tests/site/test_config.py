"""`rankup.toml`: the nearest one counts, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site.config import Config, load


def test_without_a_file(tmp_path: Path) -> None:
    assert load(tmp_path) == Config(tmp_path / "runs")


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "rankup.toml").write_text('runs = "out"')
    assert load(deep).runs == tmp_path / "out", "relative to the file"
    (tmp_path / "a" / "rankup.toml").write_text(f'runs = "{tmp_path}/elsewhere"')
    assert load(deep).runs == tmp_path / "elsewhere"
    (deep / "rankup.toml").write_text("# nothing set")
    assert load(deep).runs == deep / "runs"


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "rankup.toml").write_text('runs = "~/runs"')
    assert load(tmp_path).runs == Path("/home/someone/runs")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'run = "x"', "unknown key 'run'; did you mean runs?"),
        (b"runs = 3", "runs must be a string, found 3"),
        (b"runs = [", "not TOML"),
        (b"runs = 'a'\nruns = 'b'", "not TOML"),
        (b"runs = '\xff'", "not TOML"),
        (b"[runs]\nhere = 1", "runs must be a string"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "rankup.toml").write_bytes(text)
    with pytest.raises(UserError) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/rankup.toml: ")
    assert said in str(refused.value)
