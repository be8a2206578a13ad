"""Tars of other programs, and what is refused in them."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
import webdataset

from rankup.base.errors import UserError
from rankup.data.containers import Choice, tar
from rankup.data.errors import BadContainer
from rankup.data.index import Index
from tests.data.containers.tar_made import content, foreign

LONG = "d" * 60 + "/" + "e" * 60 + "/" + "n" * 99 + ".jpg"
FILES = [
    *[("a/1.jpg", b"one"), ("a/2.jpg", b""), ("b/3.jpg", b"x" * 512), ("b/é.jpg", b"y" * 513)],
    (LONG, b"long"),
]


def scanned(path: Path, **choice: object) -> tuple[dict[str, bytes], Index]:
    """Key -> bytes of the only field, and the index."""
    index = tar.scan(path, Choice(**choice))  # type: ignore[arg-type]
    keys = [index.keys.text(row) for row in range(len(index))]
    return dict(zip(keys, content(index, path), strict=True)), index


def refused(path: Path, match: str) -> None:
    with pytest.raises(BadContainer, match=match):
        tar.scan(path, Choice())


def with_header(path: Path, at: int, header: dict[int, bytes]) -> None:
    """Change a header and make its sum right again."""
    data = bytearray(path.read_bytes())
    for offset, value in header.items():
        data[at + offset : at + offset + len(value)] = value
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tarfile_writes_what_we_read(tmp_path: Path, form: int) -> None:
    found, index = scanned(foreign(tmp_path / "x.tar", FILES, form))
    assert found == dict(FILES)
    assert index.classes == ("a", "b", "d" * 60)
    assert index.files[0] == b""
    assert index.sizes.tolist() == [(tmp_path / "x.tar").stat().st_size]


@pytest.mark.parametrize("form", ["gnu", "oldgnu", "pax", "ustar", "v7"])
def test_gnu_tar_writes_what_we_read(tmp_path: Path, form: str) -> None:
    # The oldest have no room for the long name.
    files = [one for one in FILES if form not in ("v7", "ustar") or len(one[0]) < 90]
    for name, data in files:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    out = tmp_path / "x.tar"
    done = ["tar", f"--format={form}", "-C", tmp_path / "in", "-cf", out, "."]
    subprocess.run(done, check=True, timeout=60)
    found, index = scanned(out)
    assert found == dict(files)
    assert index.facts["skipped"]["folders"] >= 3


def test_webdataset_writes_what_we_read(tmp_path: Path) -> None:
    photos = [random.Random(row).randbytes(900) for row in range(7)]
    with webdataset.TarWriter(str(tmp_path / "t-train-000.tar")) as writer:
        for row, photo in enumerate(photos):
            writer.write({"__key__": f"{row:04}", "jpg": photo, "cls": row % 3, "json": {"a": row}})
    index = tar.scan(tmp_path, Choice())
    assert [one.name for one in index.splits] == ["train"]
    assert [one.name for one in index.fields] == ["jpg", "json"]
    assert content(index, tmp_path, "jpg") == photos
    assert content(index, tmp_path, "json")[3] == b'{"a": 3}'
    assert index.labels is not None
    assert index.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    lone = tar.scan(tmp_path, Choice(fields=("jpg",)))
    assert [one.name for one in lone.fields] == ["jpg"]


def test_labels_may_be_names_and_in_another_member(tmp_path: Path) -> None:
    files = [("0.jpg", b"a"), ("0.name", b"dog\n"), ("1.jpg", b"b"), ("1.name", b"cat")]
    index = tar.scan(foreign(tmp_path / "x.tar", files), Choice(label="name"))
    assert index.classes == ("cat", "dog")
    assert index.labels is not None
    assert index.labels.tolist() == [1, 0]
    files = [("0.jpg", b"a"), ("0.cls", b"-7")]
    refused(foreign(tmp_path / "y.tar", files), "a label is -7")
    files = [("0.jpg", b"a"), ("0.cls", b"1" * 65)]
    with pytest.raises(UserError, match="65 bytes"):
        tar.scan(foreign(tmp_path / "z.tar", files), Choice())


def test_splits_by_folder_inside_and_by_name_outside(tmp_path: Path) -> None:
    inside = [("s/train/a/1.jpg", b"1"), ("s/val/a/2.jpg", b"2"), ("s/readme.csv", b"3")]
    _, index = scanned(foreign(tmp_path / "x.tar", inside))
    assert [(s.name, s.folder) for s in index.splits] == [("train", "s/train"), ("val", "s/val")]
    assert index.facts["skipped"] == {"outside of samples": 1}
    shards = tmp_path / "shards"
    (shards / "test").mkdir(parents=True)
    foreign(shards / "imagenet-validation-00.tar", [("a/0.jpg", b"v")])
    foreign(shards / "imagenet_train-01.tar", [("a/0.jpg", b"t1")])
    foreign(shards / "imagenet_train-00.tar", [("a/0.jpg", b"t0")])
    foreign(shards / "test" / "7.tar", [("a/0.jpg", b"e")])
    index = tar.scan(shards, Choice())
    assert [one.name for one in index.splits] == ["train", "validation", "test"]
    assert list(index.keys) == [
        *(b"imagenet_train-00/a/0.jpg", b"imagenet_train-01/a/0.jpg", b"a/0.jpg", b"a/0.jpg"),
    ]
    assert content(index, shards) == [b"t0", b"t1", b"v", b"e"]


@pytest.mark.parametrize("again", ["a/1", "./a//1"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, again: str) -> None:
    files = [("a/1", b"one"), ("a/2", b"2"), (again, b"other")]
    with pytest.raises(UserError, match="has 'a/1' twice, and one sample of that name would be"):
        scanned(foreign(tmp_path / "x.tar", files))


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    files = [("a/1", b"1"), ("a/._1", b"x"), (".git/x", b"x"), ("__MACOSX/a/1", b"x")]
    files += [("a/Thumbs.db", b"x"), ("a/holidayThumbs.db", b"2"), ("a/mydesktop.ini", b"3")]
    found, index = scanned(foreign(tmp_path / "x.tar", files))
    assert found == {"a/1": b"1", "a/holidayThumbs.db": b"2", "a/mydesktop.ini": b"3"}
    assert index.facts["skipped"] == {"hidden": 4}


def _special(path: Path, **about: object) -> Path:
    with tarfile.open(path, "w") as archive:
        first = tarfile.TarInfo("a/1")
        first.size = 3
        archive.addfile(first, io.BytesIO(b"one"))
        info = tarfile.TarInfo("a/2")
        for name, value in about.items():
            setattr(info, name, value)
        archive.addfile(info)
    return path


def test_links_within_the_tar(tmp_path: Path) -> None:
    hard = _special(tmp_path / "hard.tar", type=tarfile.LNKTYPE, linkname="a/1")
    found, _ = scanned(hard)
    assert found == {"a/1": b"one", "a/2": b"one"}
    again = _special(tmp_path / "again.tar", type=tarfile.LNKTYPE, linkname="a/1", name="a/1")
    assert scanned(again)[0] == {"a/1": b"one"}
    soft = _special(tmp_path / "soft.tar", type=tarfile.SYMTYPE, linkname="../a/1")
    found, index = scanned(soft)
    assert found == {"a/1": b"one"}
    assert index.facts["skipped"] == {"symbolic links": 1}


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "b/../../../x"])
def test_links_out_of_the_tar_lead_nowhere(tmp_path: Path, target: str) -> None:
    path = _special(tmp_path / "x.tar", type=tarfile.SYMTYPE, linkname=target)
    found, index = scanned(path)
    assert (found, index.facts["skipped"]) == ({"a/1": b"one"}, {"symbolic links": 1})
    path = _special(tmp_path / "x.tar", type=tarfile.LNKTYPE, linkname=target)
    refused(path, "does not come before")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *[(tarfile.CHRTYPE, "a device"), (tarfile.BLKTYPE, "a device"), (tarfile.FIFOTYPE, "pipe")],
        *[(tarfile.GNUTYPE_SPARSE, "sparse"), (b"M", "of type")],
    ],
)
def test_what_is_no_file_is_refused(tmp_path: Path, kind: bytes, what: str) -> None:
    path = _special(tmp_path / "x.tar")
    with_header(path, 1024, {156: kind})
    refused(path, what)


def test_sparse_files_of_gnu_tar_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for form in ("gnu", "pax"):
        out = tmp_path / f"{form}.tar"
        done = ["tar", f"--format={form}", "--sparse", "-C", tmp_path, "-cf", out, "hole"]
        subprocess.run(done, check=True, timeout=60)
        refused(out, "sparse")


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../../b", "..", "a\\..\\..\\b"])
def test_names_out_of_the_tree_are_refused(tmp_path: Path, name: str) -> None:
    refused(foreign(tmp_path / "x.tar", [("a/1", b"1"), (name, b"2")]), "relative path")


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    whole = foreign(tmp_path / "whole.tar", [("a/1", b"1" * 600), ("a/2", b"2")]).read_bytes()
    path = tmp_path / "x.tar"
    for size in (
        b"77777777777\0",
        b"\x80" + bytes(3) + struct.pack(">q", 1 << 50),
        b"\xff" * 12,
        b"\x80\x7f" + bytes(10),
        b"-0000000001\0",
        b"0x000000010\0",
        b"99999999999\0",
    ):
        path.write_bytes(whole)
        with_header(path, 0, {124: size})
        refused(path, "damaged")
    path.write_bytes(whole)
    with_header(path, 0, {124: b"\x80" + bytes(3) + struct.pack(">q", 600)})
    assert len(tar.scan(path, Choice())) == 2


@pytest.mark.parametrize(
    "records",
    [
        *[b"99999 path=x\n", b"11 path=x\n", b"-5 path=x\n", b"0 path=x\n", b"9 path\n", b"x"],
        *[b"11 size=-5\n", b"12 size=1e3\n", b"30 size=1000000000000000000000\n"],
    ],
)
def test_damaged_pax_headers_are_refused_or_harmless(tmp_path: Path, records: bytes) -> None:
    path = foreign(tmp_path / "x.tar", [("é/1", b"1")])
    data = bytearray(path.read_bytes())
    data[512:1024] = records.ljust(512, b"\0")
    path.write_bytes(data)
    with_header(path, 0, {124: b"%011o" % len(records)})
    _whole(path)


def test_a_header_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("é/1", b"1")])
    with path.open("ab") as file:
        file.truncate(1 << 33)  # sparse
    for kind in (b"x", b"L", b"g"):
        with path.open("r+b") as file:
            header = bytearray(file.read(512))
            header[124:136] = b"%011o\0" % (1 << 32)
            header[156:157] = kind
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
            file.seek(0)
            file.write(header)
        tracemalloc.start()
        refused(path, "an extension header of 4294967")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 16 << 20


def test_a_tar_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = foreign(tmp_path / "x.tar", FILES).read_bytes()
    end = len(whole.rstrip(b"\0"))
    end += -end % 512
    path = tmp_path / "cut.tar"
    for size in [*range(0, end + 1024, 512), 1, 511, 700, end - 1]:
        path.write_bytes(whole[:size])
        refused(path, "cut short|no tar")
    path.write_bytes(whole[: end + 1024])
    assert len(tar.scan(path, Choice())) == len(FILES)


def test_a_hole_in_the_middle_hides_nothing(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", FILES)
    data = bytearray(path.read_bytes())
    data[1024:1536] = bytes(512)  # the second header
    path.write_bytes(data)
    refused(path, "follows the block of zeros")


def test_a_changed_header_is_found(tmp_path: Path) -> None:
    path = foreign(tmp_path / "x.tar", [("a/1.jpg", b"1" * 100), ("a/2.jpg", b"2")])
    whole = path.read_bytes()
    for at in range(0, 512, 7):
        for change in (1, 128, 255):
            data = bytearray(whole)
            data[1024 + at] ^= change
            path.write_bytes(data)
            try:
                tar.scan(path, Choice())
            except BadContainer:
                continue
            # Of the field with the sum, spaces and zeros around the digits mean nothing.
            assert 148 <= at < 156


@pytest.mark.parametrize("form", ["gz", "bz2", "xz"])
def test_compressed_tars_are_refused_with_advice(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.tar.{form}"
    with tarfile.open(path, f"w:{form}") as archive:  # type: ignore[call-overload]
        archive.addfile(tarfile.TarInfo("a"))
    refused(path, "compressed as a whole.* -d")


def test_other_things_that_are_no_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(random.Random(1).randbytes(4000))
    refused(tmp_path / "x.tar", "no tar, or a damaged")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", r"no file that ends with \.tar")
    inner = foreign(tmp_path / "n01.tar", [("1.jpg", b"1")]).read_bytes()
    nested = foreign(tmp_path / "n.tar", [("n01.tar", inner), ("n02.tar", inner)])
    refused(nested, "a tar of 2 tars")


def _whole(path: Path) -> None:
    """Scan; all that is found lies in the file."""
    try:
        index = tar.scan(path, Choice())
    except UserError:
        return
    size = path.stat().st_size
    for field in index.fields:
        assert (field.offset >= 512).all()
        assert (field.length >= 0).all()
        assert (field.offset + field.length <= size).all()


def _damaged(whole: bytes, draw: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        kind = draw.randrange(4)
        at = draw.randrange(len(data) // 512 or 1) * 512
        if kind == 0:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[draw.randrange(len(data)) :]
            data += bytes(draw.choice([0, 1024]))
        elif kind == 2:
            from_ = draw.randrange(len(data) // 512 or 1) * 512
            data[at : at + 512] = data[from_ : from_ + 512]
        else:
            place = draw.choice([0, 100, 124, 148, 156, 157, 257, 345])
            data[at + place : at + place + 4] = draw.randbytes(4)
        if len(data) >= at + 512 and draw.random() < 0.7:  # with a sum that is right
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
        data = data or bytearray(1)
    return bytes(data)


@pytest.mark.parametrize("rounds", [150, pytest.param(2_000, marks=pytest.mark.slow)])
def test_damage_of_any_kind_is_refused_or_harmless(tmp_path: Path, rounds: int) -> None:
    draw = random.Random(rounds)
    labelled = [(f"{row}.{end}", b"1") for row in range(3) for end in ("jpg", "cls")]
    wholes = [
        foreign(tmp_path / "a", FILES).read_bytes(),
        foreign(tmp_path / "b", FILES, tarfile.GNU_FORMAT).read_bytes(),
        foreign(tmp_path / "c", labelled).read_bytes(),
        _special(tmp_path / "d", type=tarfile.LNKTYPE, linkname="a/1").read_bytes(),
    ]
    path = tmp_path / "x.tar"
    for _ in range(rounds):
        path.write_bytes(_damaged(draw.choice(wholes), draw))
        _whole(path)
