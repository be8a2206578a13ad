"""Images that we write: other tools read them, and our index finds every byte in them."""

from __future__ import annotations

import csv
import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rankup.base.errors import UserError
from rankup.data.containers.squashfs import LABELS, Member, indexed, members, write
from rankup.data.errors import BadContainer
from rankup.data.index import Field, Index, Split, Strings, folders
from rankup.data.stage.mount import files_of

from .squashfs_made import (
    BLOCK,
    contents,
    needs_fuse,
    needs_tools,
    odd_files,
    packed,
    photos,
    refused,
    same,
    source_of,
    tree,
)
from .squashfs_made import unmounted as unmounted

pytestmark = pytest.mark.usefixtures("unmounted")


def test_photos_come_back_through_every_tool(data_root: Path | None, tmp_path: Path) -> None:
    files = photos(data_root)
    image = tmp_path / "photos.sqsh"
    index = packed(image, files)
    assert (index.fields[0].offset >= 0).all()
    same(contents(image, index), files)
    subprocess.run(
        ["unsquashfs", "-quiet", "-no-progress", "-d", str(tmp_path / "out"), str(image)],
        check=True,
        timeout=60,
        capture_output=True,
    )
    same(tree(tmp_path / "out"), files)
    needs_fuse()
    at = files_of(image)
    same(tree(at), files)
    assert {path.stat().st_mtime for path in at.rglob("*")} == {0}


def test_every_file_lies_in_one_piece(tmp_path: Path) -> None:
    """Also zeros, duplicates, empty files, files of many blocks, and names of any length."""
    long = "/".join(["d" * 200] * 3)
    files = odd_files(BLOCK) | {
        f"train/{long}/{'f' * 256}": b"long",
        f"train/{'x' * 100}/y": b"split at the limit of the old header",
        "train/a/" + "n" * (100 - len("train/a/")): b"exactly",
        "train/a/-rf *;\n\\ \"'": b"odd",
        os.fsdecode(b"train/a/latin \xe9\xff"): b"no UTF-8",
    }
    image = tmp_path / "i.sqsh"
    index = packed(image, files)
    assert (index.fields[0].offset >= 0).all()
    same(contents(image, index), files)
    same(contents(image), files)


def test_two_images_are_the_same_with_any_number_of_processors(tmp_path: Path) -> None:
    files = odd_files(BLOCK // 4) | {f"train/c/{n}": b"%d" % n * n for n in range(500)}
    found = set()
    for number, processors in enumerate((1, 2, 5)):
        packed(tmp_path / str(number), files, processors)
        found.add((tmp_path / str(number)).read_bytes())
    (image,) = found
    assert image[8:12] == bytes(4)  # the second in which it was made


def test_several_fields_and_arrays(tmp_path: Path) -> None:
    """Bytes get their field's name, and arrays are what numpy.load reads."""
    needs_tools()
    keys = [b"0001", b"0002", b"a/0003", b"0001", b"0009"]
    texts = [b"one", b"", b"three", b"four", b"five" * 1000]
    values = np.arange(5 * 2 * 3, dtype=">i4").reshape(5, 2, 3)
    values[1:3] = 0
    none = np.zeros(5, np.int64)
    lengths = np.array([*map(len, texts)], np.int64)
    source = Index(
        "parquet",
        Strings.of([b""]),
        (Split("train", 0, 3, ""), Split("val", 3, 5, ""), Split("test", 5, 5, "")),
        Strings.of(keys),
        (
            Field("txt", none, lengths, hash=np.arange(5, dtype=np.uint64)),
            Field("png", none, lengths),
            Field("box", none, np.full(5, 24), dtype=">i4", shape=(2, 3)),
        ),
    )
    assert folders(source.splits) == [b"train/", b"val/", b"test/"]

    def chunks(field: int, row: int) -> list[bytes]:
        return [values[row].tobytes() if field == 2 else texts[row][:2], texts[row][2:]][
            : 1 if field == 2 else 2
        ]

    image = tmp_path / "i.sqsh"
    write(members(source, chunks), image)
    index = indexed(source, image)
    data = image.read_bytes()
    for field in index.fields:
        raws = [values[row].tobytes() for row in range(5)] if field.dtype else texts
        for row, raw in enumerate(raws):
            offset, length = int(field.offset[row]), int(field.length[row])
            assert data[offset : offset + length] == raw
    assert (index.keys, index.splits, index.container) == (source.keys, source.splits, "squashfs")
    assert index.fields[0].hash is source.fields[0].hash
    subprocess.run(
        ["unsquashfs", "-quiet", "-d", str(tmp_path / "out"), str(image)],
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert (tmp_path / "out/train/a/0003.txt").read_bytes() == b"three"
    assert (tmp_path / "out/val/0009.png").read_bytes() == b"five" * 1000
    for name, rows in (("train", values[:3]), ("val", values[3:]), ("test", values[5:])):
        loaded = np.load(tmp_path / "out" / name / "box.npy")
        np.testing.assert_array_equal(loaded, rows)
        again = io.BytesIO()
        np.save(again, rows)
        assert (tmp_path / "out" / name / "box.npy").read_bytes() == again.getvalue()


def test_labels_of_a_list_are_in_the_image_as_a_hidden_list(tmp_path: Path) -> None:
    needs_tools()
    files = {"train/1.jpg": b"1", "train/2, two.jpg": b"2", "val/3.jpg": b"3"}
    image = tmp_path / "i.sqsh"
    source, data = source_of(files, [1, 0, -1], ["cat", 'a "dog"'])
    write(members(source, lambda _, row: [data[row]]), image)
    index = indexed(source, image)
    assert index.labels is source.labels
    assert index.classes == source.classes
    same(contents(image), files)
    text = (files_of(image) / LABELS.decode()).read_text()
    assert list(csv.reader(io.StringIO(text))) == [
        ["path", "label"],
        ["train/1.jpg", 'a "dog"'],
        ["train/2, two.jpg", "cat"],
    ]


def test_labels_that_folders_tell_need_no_list(tmp_path: Path) -> None:
    needs_tools()
    source, data = source_of({"train/cat/1": b"1", "val/dog/2": b"2"}, [0, 1], ["cat", "dog"])
    names = [one.path for one in members(source, lambda _, row: [data[row]])]
    assert names == [b"train/cat/1", b"val/dog/2"]


def test_what_mksquashfs_leaves_out_or_orders_otherwise_is_refused(tmp_path: Path) -> None:
    needs_tools()
    source, data = source_of({"train/1": b"11", "train/2": b"22", "train/3": b"3"})
    image = tmp_path / "i.sqsh"
    twice = [Member(b"train/1", 2, (b"11",)), Member(b"train/2", 2, (b"22",))]
    write([*twice, Member(b"train/1", 1, (b"3",))], image)
    with pytest.raises(BadContainer, match="ends at byte 100, not 101; two samples"):
        indexed(source, image)
    hashes = np.array([[xxhash.xxh3_64_intdigest(one) for one in data]], np.uint64)
    write(reversed([*twice, Member(b"train/3", 1, (b"3",))]), image)
    with pytest.raises(BadContainer, match="train/1 lies elsewhere"):
        indexed(source, image, hashes)


def broken() -> Iterator[bytes]:
    yield b"x" * 1000
    raise OSError(errno.EIO, "the source is gone")


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ([Member(b"a", 3, (b"12",))], UserError, "'a' has less than the 3 bytes it had at first"),
        ([Member(b"a", 3, (b"12", b"34"))], UserError, "'a' has more than the 3 bytes"),
        ([Member(b"a", 1, (b"1",))] * 2, UserError, "two samples would become the file 'a'"),
        ([Member(b"a", 9000, broken())], OSError, "the source is gone"),
        ([Member(b"a/" + b"n" * 257, 0, ())], UserError, "a name of more than 256 bytes"),
        (
            [Member(b"a", 1, (b"1",)), Member(b"a/b", 1, (b"1",))],
            UserError,
            "mksquashfs failed.*a exists in the tar file as a non-directory",
        ),
    ],
    ids=["less", "more", "twice", "source", "long", "file and folder"],
)
def test_what_cannot_be_written_leaves_nothing(
    tmp_path: Path, files: list[Member], error: type[Exception], words: str
) -> None:
    needs_tools()
    image = tmp_path / "i.sqsh"
    image.write_bytes(b"an old one")
    with pytest.raises(error, match=f"(?s){words}"):
        write(files, image)
    refused([image])
    assert not [one for one in psutil.Process().children() if one.name() == "mksquashfs"]


def test_without_mksquashfs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"(?s)no mksquashfs on PATH.*squashfs-tools.*module"):
        write([], tmp_path / "i.sqsh")
    old = tmp_path / "mksquashfs"
    old.write_text("#!/bin/sh\necho 'mksquashfs version 4.4-git.1 (2021/03/05)'; exit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(UserError, match=r"is version 4\.4, and only 4\.5 and later"):
        write([], tmp_path / "i.sqsh")


@pytest.mark.slow
def test_mksquashfs_ends_with_a_pack_that_is_killed(tmp_path: Path) -> None:
    needs_tools()
    image = tmp_path / "i.sqsh"
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from rankup.data.containers.squashfs import Member, write\n"
        "def slow():\n"
        "    yield bytes(1 << 20)\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(1000)\n"
        "write([Member(b'a', 5 << 20, slow())], Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(image)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        _, alive = psutil.wait_procs([child], timeout=60)
        assert alive == []
    finally:
        process.kill()
        process.wait()
        process.stdout and process.stdout.close()


_SIZES = st.one_of(st.integers(0, 3), st.integers(-2, 2).map(lambda n: 3 * 4096 + n))


@pytest.mark.slow
@given(st.dictionaries(st.integers(0, 20), st.tuples(_SIZES, st.sampled_from(b"\0x")), max_size=12))
def test_sizes_around_a_block(
    tmp_path_factory: pytest.TempPathFactory, drawn: dict[int, tuple[int, int]]
) -> None:
    files = {f"train/c{n % 3}/{n}": bytes([byte]) * size for n, (size, byte) in drawn.items()}
    image = tmp_path_factory.mktemp("sizes") / "i.sqsh"
    index = packed(image, files, block=4096)
    assert (index.fields[0].offset >= 0).all()
    same(contents(image, index), files)
    same(contents(image), files)


@pytest.mark.slow
def test_a_sample_and_an_image_of_more_than_4_gib(tmp_path: Path) -> None:
    needs_tools()
    chunk = os.urandom(4 << 20)
    huge = (4 << 30) + 5
    source = Index(
        "files",
        Strings.of([b""]),
        (Split("train", 0, 3, "train"),),
        Strings.of([b"a", b"b", b"c"]),
        (Field("data", np.zeros(3, np.int64), np.array([7, huge, 5])),),
    )

    def chunks(_: int, row: int) -> Iterator[bytes]:
        if row != 1:
            yield b"before!" if row == 0 else b"after"
            return
        for _ in range(1 << 10):
            yield chunk
        yield b"12345"

    image = tmp_path / "i.sqsh"
    write(members(source, chunks), image, processors=2)
    try:
        index = indexed(source, image)
        field = index.fields[0]
        assert int(field.offset[2]) > 4 << 30
        with image.open("rb") as file:
            for row, (skip, wanted) in enumerate([(0, b"before!"), (4 << 30, b"12345")]):
                file.seek(int(field.offset[row]) + skip)
                assert file.read(len(wanted)) == wanted
            file.seek(int(field.offset[2]))
            assert file.read(5) == b"after"
    finally:
        image.unlink()
