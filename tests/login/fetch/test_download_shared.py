"""A cache that several users share: what one has left, another can go on with or begin anew."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from rankup.login.fetch.download import Patience, download
from rankup.login.fetch.http import Version
from rankup.login.fetch.part import Part
from rankup.login.fetch.result import FetchFailed

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
from rankup.base import lock
from rankup.login.fetch.unpack import unpack
archive = target.with_name("d.tar")
with lock.held(target, print) as held:
    print(unpack(archive, target, ("train",), held, "0" * 64).files)
"""


def _cut_off(web: Web, target: Path) -> str:
    """A download that came to its first 1000 bytes; the URL, which gives all of it from now on."""
    url = web.put("/a.bin", DATA, cut=1000)
    with pytest.raises(FetchFailed):
        download(url, target, patience=Patience(pauses=()), say=lambda line: None)
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


def test_what_is_begun_anew_is_another_file_than_the_one_before(tmp_path: Path) -> None:
    """A process that lost its lock without knowing may still write into the old one."""
    part = Part(tmp_path / "a.bin", "https://h/a.bin", trusted=True)
    part.begin(Version('"1"'), 10)
    with part.path.open("r+b", buffering=0) as old:
        part.begin(Version('"2"'), 10)
        old.write(b"displaced")
    assert part.path.read_bytes() == b""


def test_what_another_user_has_half_unpacked_is_moved_aside(shared: Path) -> None:
    with tarfile.open(shared / "d.tar", "w") as tar:
        member = tarfile.TarInfo("d/train/x")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"dog"))
    (shared / "d.tar").chmod(0o644)
    half = shared / "d.part" / "train"
    half.mkdir(parents=True)
    (half / "y").write_bytes(b"ha")
    half.chmod(0o555)  # nothing in it can be removed
    assert as_another_user(_UNPACK, shared / "d").strip() == "1"
    assert [path.name for path in (shared / "d" / "train").iterdir()] == ["x"]
    assert not (shared / "d.part").exists()
