"""A cache that several users share: what one has left, another can go on with or begin anew."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from rankup.login.fetch.download import Patience, download
from rankup.login.fetch.request import FetchFailed

from ..others import as_another_user
from ..others import shared as shared
from ..web import Web

DATA = bytes(range(256)) * 400
SUM = hashlib.sha256(DATA).hexdigest()
_DOWNLOAD = """
from rankup.login.fetch.download import Patience, download
print(download(sys.argv[3], target, patience=Patience(pauses=())).sha256)
"""
_UNPACK = """
from rankup.login.fetch.things import NAMED, Archive, things
from rankup.site.caches import Caches
from rankup.site.config import Needs
caches = Caches(target, target, (), {})
NAMED["d"] = Archive(sys.argv[3], sys.argv[4], "d", ("train",))
things(Needs(datasets=("d",)), caches)[0].get(None)
"""


def _cut_off(web: Web, target: Path) -> str:
    """A download that came to its first 1000 bytes; the URL, which gives all of it from now on."""
    url = web.put("/a.bin", DATA, cut=1000)
    with pytest.raises(FetchFailed):
        download(url, target, patience=Patience(pauses=()))
    web.put("/a.bin", DATA)
    web.forget()
    return url


def test_another_user_goes_on_with_what_can_be_read(web: Web, shared: Path) -> None:
    target = shared / "a.bin"
    url = _cut_off(web, target)
    (shared / "a.bin.part").chmod(0o444)
    assert SUM in as_another_user(_DOWNLOAD, target, url)
    assert [asked.headers.get("range") for asked in web.requests("/a.bin")] == ["bytes=1000-"]
    assert sorted(path.name for path in shared.iterdir()) == ["a.bin"]


def test_another_user_begins_anew_where_nothing_can_be_read(web: Web, shared: Path) -> None:
    target = shared / "a.bin"
    url = _cut_off(web, target)
    (shared / "a.bin.part").chmod(0)
    assert SUM in as_another_user(_DOWNLOAD, target, url)
    assert [asked.headers.get("range") for asked in web.requests("/a.bin")] == [None]
    assert sorted(path.name for path in shared.iterdir()) == ["a.bin"]


def test_what_is_begun_anew_is_another_file_than_the_one_before(web: Web, tmp_path: Path) -> None:
    """A process that lost its lock without knowing may still write into the old one."""
    target = tmp_path / "a.bin"
    url = _cut_off(web, target)
    web.put("/a.bin", DATA[::-1])
    with (tmp_path / "a.bin.part").open("r+b", buffering=0) as old:
        download(url, target)
        old.write(b"displaced")
    assert target.read_bytes() == DATA[::-1]


def test_what_another_user_has_half_unpacked_is_moved_aside(web: Web, shared: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("d/train/x")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"dog"))
    data = packed.getvalue()
    half = shared / "datasets" / "d.part" / "train"
    half.mkdir(parents=True)
    (shared / "datasets").chmod(0o777)
    (half / "y").write_bytes(b"ha")
    half.chmod(0o555)  # nothing in it can be removed
    url, sha256 = web.put("/d.tar", data), hashlib.sha256(data).hexdigest()
    as_another_user(_UNPACK, shared, url, sha256)
    assert [path.name for path in (shared / "datasets" / "d" / "train").iterdir()] == ["x"]
    assert not (shared / "datasets" / "d.part").exists()
