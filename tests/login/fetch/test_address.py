"""Where the file of a URL lies: below its folder, by names without secrets, each for itself."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login.fetch import request as address


def test_the_place_of_a_url_holds_no_secret_and_stays_in_its_folder(tmp_path: Path) -> None:
    url = "https://me:pw@Data.example.org:8443/a/../../etc/%2e%2e/x y.tar.gz?id=1#frag"
    place = address.place(url, tmp_path)
    assert place.is_relative_to(tmp_path)
    assert ".." not in place.parts
    assert place.suffixes == [".tar", ".gz"]
    assert place.relative_to(tmp_path).parts[0] == "data.example.org+8443"
    assert "secret" not in str(address.place("https://h/a.bin;sig=secret?k=secret", tmp_path))


def test_a_plain_url_has_a_plain_place(tmp_path: Path) -> None:
    place = address.place("https://h.org/data/v1.0/train.tar.gz", tmp_path)
    assert place == tmp_path / "h.org" / "data" / "v1.0" / "train.tar.gz"


def test_names_are_short_and_not_hidden(tmp_path: Path) -> None:
    for odd in ("https://h/", "https://h", "https://h/.hidden", f"https://h/{'ä' * 400}.bin?x=1"):
        name = address.place(odd, tmp_path).name
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
        assert address.place(one, tmp_path) != address.place(other, tmp_path), (one, other)


@pytest.mark.parametrize("url", ["http://a..b/x", "https://me:hunter2@[h/x", "ftp://me:hunter2@h"])
def test_what_is_no_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UserError, match="is not a URL that starts with http") as refused:
        address.parse_url(url)
    assert "hunter2" not in str(refused.value)
