"""A data set that is an archive, from an imitated server: the real one is not asked."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.login.fetch.request import FetchFailed
from rankup.login.fetch.things import MARKER, NAMED, Archive, Thing, things
from rankup.login.record import Item, Record
from rankup.site.caches import Caches
from rankup.site.config import Needs

from ..web import Web

FILES = {"imagewoof2-320/train/n1/a.JPEG": b"dog", "imagewoof2-320/val/n1/b.JPEG": b"puppy"}


def _caches(tmp_path: Path) -> Caches:
    return Caches(tmp_path / "cache" / "rankup", tmp_path / "cache", (), {})


def _tar(files: dict[str, bytes], *strange: tarfile.TarInfo) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member in strange:
            tar.addfile(member)
    return whole.getvalue()


def _archive(web: Web, data: bytes) -> Archive:
    known = NAMED["imagewoof-320"]
    assert isinstance(known, Archive)
    return replace(
        known, url=web.put("/imagewoof2-320.tgz", data), sha256=hashlib.sha256(data).hexdigest()
    )


def _thing(known: Archive, tmp_path: Path) -> Thing:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NAMED, "imagewoof-320", known)
        [thing] = things(Needs(datasets=("imagewoof-320",)), _caches(tmp_path))
    return thing


def _fetch(known: Archive, tmp_path: Path) -> tuple[Item, ...]:
    record, _ = _thing(known, tmp_path).get(None)
    return record.items


def _member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_an_archive_becomes_a_folder_and_does_not_stay(web: Web, tmp_path: Path) -> None:
    known = _archive(web, _tar(FILES))
    came = _fetch(known, tmp_path)
    folder = tmp_path / "cache" / "rankup" / "datasets" / "imagewoof2-320"
    assert (folder / "train" / "n1" / "a.JPEG").read_bytes() == b"dog"
    assert (folder / "val" / "n1" / "b.JPEG").read_bytes() == b"puppy"
    (item,) = came
    assert (item.path, item.bytes, item.files) == (str(folder), 8, 2)
    assert (item.source, item.sha256) == (known.url, known.sha256)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sorted(left) == [MARKER, "a.JPEG", "b.JPEG"]
    assert _fetch(known, tmp_path) == came
    assert len(web.requests("/imagewoof2-320.tgz")) == 1


def test_two_at_once_download_and_unpack_once(web: Web, tmp_path: Path) -> None:
    known = _archive(web, _tar(FILES))
    thing = _thing(known, tmp_path)
    came: list[Record] = []
    threads = [threading.Thread(target=lambda: came.append(thing.get(None)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(came) == 4
    assert len(web.requests("/imagewoof2-320.tgz")) == 1


@pytest.mark.parametrize(
    "strange",
    [
        _member("imagewoof2-320/../../evil", tarfile.REGTYPE),
        _member("/tmp/rankup-evil", tarfile.REGTYPE),
        _member("imagewoof2-320/train/link", tarfile.SYMTYPE, "/etc"),
        _member("imagewoof2-320/train/link", tarfile.SYMTYPE, "../val"),
        _member("imagewoof2-320/train/hard", tarfile.LNKTYPE, "/etc/hostname"),
        _member("imagewoof2-320/train/pipe", tarfile.FIFOTYPE),
        _member("imagewoof2-320/train/null", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type!r}",
)
def test_what_does_not_belong_into_an_archive_leaves_nothing(
    web: Web, tmp_path: Path, strange: tarfile.TarInfo
) -> None:
    known = _archive(web, _tar(FILES, strange))
    with pytest.raises(FetchFailed, match="not unpacked"):
        _fetch(known, tmp_path)
    assert list((tmp_path / "cache" / "rankup" / "datasets").iterdir()) == []
    assert not (tmp_path / "cache" / "evil").exists()


def test_another_content_a_cut_one_and_no_archive_are_told(web: Web, tmp_path: Path) -> None:
    for data, words in (
        (_tar({"other/x": b"1"}), "holds no folder imagewoof2-320/train"),
        (_tar({"imagewoof2-320/train/x": b"1"}), "holds no folder imagewoof2-320/val"),
        (_tar(FILES)[:60], "cannot be unpacked"),
        (b"<html>sorry</html>" * 100, "cannot be unpacked"),
    ):
        with pytest.raises(FetchFailed, match=words):
            _fetch(_archive(web, data), tmp_path)
        assert list((tmp_path / "cache" / "rankup" / "datasets").iterdir()) == []


def test_what_an_interrupted_unpacking_left_is_made_anew(web: Web, tmp_path: Path) -> None:
    part = tmp_path / "cache" / "rankup" / "datasets" / "imagewoof2-320.part"
    (part / "train").mkdir(parents=True)
    (part / "train" / "half.JPEG").write_bytes(b"ha")
    _fetch(_archive(web, _tar(FILES)), tmp_path)
    assert not part.exists()
    assert not (part.with_suffix("") / "train" / "half.JPEG").exists()


def test_a_folder_of_the_users_own_is_not_touched(web: Web, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "rankup" / "datasets" / "imagewoof2-320"
    folder.mkdir(parents=True)
    (folder / "mine").write_text("x")
    with pytest.raises(FetchFailed, match="is not what rankup has unpacked; remove it"):
        _fetch(_archive(web, _tar(FILES)), tmp_path)
    assert os.listdir(folder) == ["mine"]


def test_the_names_are_pinned() -> None:
    assert sorted(NAMED) == ["imagewoof-320", "wikitext-2", "xsum"]
    for known in NAMED.values():
        if isinstance(known, Archive):
            assert known.url.startswith("https://")
            assert len(known.sha256) == 64
        else:
            assert known.revision is not None
            assert len(known.revision) == 40
