"""A command line is judged before anything is done; where its URLs lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login.fetch import request
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


def test_the_place_of_a_url_holds_no_secret_and_stays_in_its_folder(tmp_path: Path) -> None:
    url = "https://me:pw@Data.example.org:8443/a/../../etc/%2e%2e/x y.tar.gz?id=1#frag"
    place = request.place(url, tmp_path)
    assert place.is_relative_to(tmp_path)
    assert ".." not in place.parts
    assert place.suffixes == [".tar", ".gz"]
    assert place.relative_to(tmp_path).parts[0] == "data.example.org+8443"
    assert "secret" not in str(request.place("https://h/a.bin;sig=secret?k=secret", tmp_path))


def test_a_plain_url_has_a_plain_place(tmp_path: Path) -> None:
    place = request.place("https://h.org/data/v1.0/train.tar.gz", tmp_path)
    assert place == tmp_path / "h.org" / "data" / "v1.0" / "train.tar.gz"


def test_names_are_short_and_not_hidden(tmp_path: Path) -> None:
    for odd in ("https://h/", "https://h", "https://h/.hidden", f"https://h/{'ä' * 400}.bin?x=1"):
        name = request.place(odd, tmp_path).name
        assert name
        assert not name.startswith(".")
        assert len(name.encode()) < 200


def test_urls_share_no_place(tmp_path: Path) -> None:
    urls = [
        *("https://h/x%20y", "https://h/x_y", "https://h/x%2Fy", "https://h/x/y", "https://h/x//y"),
        *("https://h/d/", "https://h/d/index", "https://h/d", "https://h/", "https://h/index"),
        *("https://h/a%00b", "https://h/a%0ab", "https://h/a%ffb", "https://h/a%feb"),
        *("http://h/x_y", "http://h:80/x_y", "https://h:80/x_y", "https://h_80/x_y"),
        *("https://h/x_y?a=1", "https://h/x_y?a=2", "https://h/x_y;a=1", "https://h/z/../x_y"),
        *("https://h/.x", "https://h/_x", f"https://h/{'x' * 300}", f"https://h/{'x' * 301}"),
    ]
    for one, other in combinations(urls, 2):
        assert request.place(one, tmp_path) != request.place(other, tmp_path), (one, other)


@pytest.mark.parametrize("url", ["http://a..b/x", "https://me:hunter2@[h/x", "ftp://me:hunter2@h"])
def test_what_is_no_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UserError, match="is not a URL that starts with http") as refused:
        request.parse_url(url)
    assert "hunter2" not in str(refused.value)
