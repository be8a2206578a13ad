"""A command line is judged before anything is done, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login.fetch.request import Request

URL = "https://example.org/a.tgz"


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_the_limits_of_a_run_are_read_as_people_write_them() -> None:
    assert Request(time="90s").seconds == 90
    assert Request(time="30m").seconds == 1800
    assert Request(time="2h").seconds == 7200
    assert Request().memory_bytes is None
    assert Request(memory=1.5).memory_bytes == 1_500_000_000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sha256": ("a" * 64,)}, "--sha256 belongs to a --url: 1 of the one, 0 of the other"),
        ({"urls": (URL,), "to": ("a", "b")}, "--to belongs to a --url"),
        ({"urls": (URL,), "sha256": ("abc",)}, "expected 64 hexadecimal digits"),
        ({"urls": ("example.org/a",)}, "starts with http:// or https://"),
        ({"urls": ("https://h:port/a",)}, "names a host"),
        ({"urls": ("https://h/\x1b[2J",)}, "names a host"),
        ({"urls": (URL,), "to": (".",)}, "--to . is a folder; name the file in it"),
        ({"no_run": True}, "--no-run needs a script"),
        ({"only_proof": True}, "--only-proof needs a script"),
        ({"script": "none.py"}, "no script 'none.py' in"),
        ({"script": "wikitext-2"}, "by name it is --dataset"),
        ({"time": "soon"}, "--time 'soon'"),
        ({"memory": 0.0}, "--memory 0 is no amount"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(Request(), **wrong).check()  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_reading_and_proving_exclude_each_other(script: str) -> None:
    with pytest.raises(UserError, match="give one of them"):
        Request(script=script, no_run=True, only_proof=True).check()
