"""`[fetch]` in rankup.toml: what a project needs; what is wrong is named by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.site.config import Url, load

SHA = "AB" * 32


def test_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text(
        f"""
[fetch]
cache = "caches"
datasets = ["wikitext-2", "org/name:config@abc"]
models = ["gpt2"]
scripts = ["train.py --epochs 1"]
[[fetch.urls]]
url = "https://example.org/a.zip"
sha256 = "{SHA}"
to = "data/a.zip"
[[fetch.urls]]
url = "http://example.org/b"
"""
    )
    needs = load(tmp_path).fetch
    assert needs
    assert needs.cache == tmp_path / "caches"
    assert needs.datasets == ("wikitext-2", "org/name:config@abc")
    assert (needs.models, needs.scripts) == (("gpt2",), ("train.py --epochs 1",))
    assert needs.urls == (
        Url("https://example.org/a.zip", SHA.lower(), tmp_path / "data" / "a.zip"),
        Url("http://example.org/b"),
    )


def test_a_cache_alone_is_no_need(tmp_path: Path) -> None:
    (tmp_path / "rankup.toml").write_text("[fetch]\ncache = '/c'")
    assert not load(tmp_path).fetch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fetch = 1", "fetch must be a table, found 1"),
        ("[fetch]\ndataset = []", "unknown key 'fetch.dataset'; did you mean datasets?"),
        ("[fetch]\nmodels = 'gpt2'", "fetch.models must be a list of strings"),
        ("[[fetch.urls]]\nsha256 = '00'", "fetch.urls[0].sha256 must be 64 hexadecimal digits"),
        ("[[fetch.urls]]\nto = 'x'", "fetch.urls[0]: url is missing"),
        ("[[fetch.urls]]\nurl = 'http://a/b\\n'", "must be a URL that starts with http"),
        ("[[fetch.urls]]\nurl = 'http://h:99999/x'", "names a host, found 'http://...'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rankup.toml").write_text(text.replace("'", '"') if "\\n" in text else text)
    with pytest.raises(UserError) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path}/rankup.toml: ")
    assert said in str(refused.value)
