"""Images of other tools: every compression, and every way in which a file can lie in one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, squashfs
from rankup.data.errors import BadContainer

from ..sparse import sparse as sparse
from .squashfs_made import contents, fill, mksquashfs, odd_files, same

BLOCK = 4096


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each."""
    return fill(tmp_path_factory.mktemp("odd") / "tree", odd_files(BLOCK))


@pytest.mark.parametrize(
    "options",
    [
        ["-comp", "gzip"],
        ["-comp", "xz"],
        ["-comp", "zstd"],
        ["-comp", "lz4"],
        ["-comp", "gzip", "-noI", "-always-use-fragments"],
        ["-noD", "-noF"],
        ["-noD", "-noF", "-no-fragments", "-no-sparse"],
        ["-no-duplicates", "-no-exports", "-no-xattrs"],
    ],
    ids="_".join,
)
def test_every_form_of_an_image_gives_the_same_bytes(
    odd: Path, tmp_path: Path, options: list[str]
) -> None:
    image = mksquashfs(odd, tmp_path / "i.sqsh", "-b", str(BLOCK), *options)
    index = squashfs.scan(image, Choice())
    same(contents(image, index), odd_files(BLOCK))
    assert [(one.name, one.folder) for one in index.splits] == [("train", "train"), ("val", "val")]
    assert index.classes == ("a", "b")
    assert index.labels is not None
    of_b = [index.keys[row].startswith(b"b/") for row in range(len(index))]
    assert index.labels.tolist() == list(map(int, of_b))
    assert index.facts["block"] == BLOCK


def through_fallback(image: Path) -> set[str]:
    index = squashfs.scan(image, Choice())
    rows = np.flatnonzero(index.fields[0].offset < 0).tolist()
    return {index.path(row) for row in rows}


def test_what_is_stored_as_it_is_lies_in_one_piece(odd: Path, tmp_path: Path) -> None:
    plain = ["-b", str(BLOCK), "-noD", "-noF"]
    sparse = {"train/b/zeros.bin", "train/b/zeros and tail.bin", "train/b/hole.bin"}
    image = mksquashfs(odd, tmp_path / "1", *plain, "-no-fragments")
    assert through_fallback(image) == sparse
    image = mksquashfs(odd, tmp_path / "2", *plain, "-no-fragments", "-no-sparse")
    assert through_fallback(image) == set()
    # Whole files in a fragment still lie in one piece, but not blocks that end in one.
    image = mksquashfs(odd, tmp_path / "3", *plain, "-tailends")
    assert through_fallback(image) == {
        *sparse,
        "train/a/noise.bin",
        "train/a/same as noise.bin",
    }


def test_hard_links_are_samples_and_links_within_are_counted(tmp_path: Path) -> None:
    root = fill(tmp_path / "tree", {"a/one": b"first", "b/two": b"second", ".git/x": b"hidden"})
    (root / "b" / "again").hardlink_to(root / "a" / "one")
    (root / "b" / "link").symlink_to("../a/one")
    (root / "Thumbs.db").write_bytes(b"left")
    image = mksquashfs(root, tmp_path / "i.sqsh")
    index = squashfs.scan(image, Choice(split="all"))
    same(
        contents(image, index),
        {"all/a/one": b"first", "all/b/two": b"second", "all/b/again": b"first"},
    )
    assert (index.facts["symlinks"], index.facts["skipped"]) == (1, 2)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../etc/passwd", "c/../../../x"])
def test_a_link_out_of_the_image_is_refused(tmp_path: Path, target: str) -> None:
    root = fill(tmp_path / "tree", {"a/one": b"first"})
    (root / "a" / "link").symlink_to(target)
    image = mksquashfs(root, tmp_path / "i.sqsh")
    with pytest.raises(BadContainer, match=r"link 'a/link' leads out of it"):
        squashfs.scan(image, Choice())


@pytest.mark.parametrize(
    ("pseudo", "kind"),
    [
        ("a/dev c 666 0 0 1 3", "a character device"),
        ("a/dev b 666 0 0 8 0", "a block device"),
        ("a/dev i 666 0 0 f", "a pipe"),
        ("a/dev i 666 0 0 s", "a socket"),
    ],
)
def test_a_device_is_refused(tmp_path: Path, pseudo: str, kind: str) -> None:
    root = fill(tmp_path / "tree", {"a/one": b"first"})
    image = mksquashfs(root, tmp_path / "i.sqsh", "-p", pseudo)
    with pytest.raises(BadContainer, match=f"'a/dev' is {kind}"):
        squashfs.scan(image, Choice())


def test_lzo_is_refused_by_name(tmp_path: Path) -> None:
    root = fill(tmp_path / "tree", {"a/one": b"first"})
    image = mksquashfs(root, tmp_path / "i.sqsh", "-comp", "lzo")
    with pytest.raises(UserError, match="lzo, which rankup cannot read"):
        squashfs.scan(image, Choice())


def test_the_fallback_travels_and_survives_a_fork(odd: Path, tmp_path: Path) -> None:
    image = mksquashfs(odd, tmp_path / "i.sqsh", "-b", str(BLOCK))
    index = squashfs.scan(image, Choice())
    field = index.fields[0]
    rows = np.flatnonzero(field.offset < 0).tolist()
    wanted = odd_files(BLOCK)
    behind = squashfs.fallback(index, image)
    first = b"".join(behind.chunks("data", ~int(field.offset[rows[0]])))
    assert first == wanted[index.path(rows[0])]
    copy = pickle.loads(pickle.dumps(behind))
    child = os.fork()
    if not child:  # both read the same descriptor at the same time
        right = all(
            b"".join(behind.chunks("data", ~int(field.offset[row]))) == wanted[index.path(row)]
            for row in rows
        )
        os._exit(0 if right else 1)
    for row in rows:
        for one in (behind, copy):
            assert b"".join(one.chunks("data", ~int(field.offset[row]))) == wanted[index.path(row)]
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_files_of_more_than_4_gib(sparse: Path) -> None:
    """Sparse here, so that the image is small: sizes and places have more than 32 bits."""
    root = fill(sparse / "tree", {"a/small": b"small", "b/last": b"last"})
    with (root / "a" / "huge").open("wb") as file:
        file.seek((4 << 30) + 3)
        file.write(b"end")
    image = mksquashfs(root, sparse / "i.sqsh", "-b", "1M")
    index = squashfs.scan(image, Choice())
    row = index.keys.find(b"a/huge")
    assert row is not None
    offset, length = int(index.fields[0].offset[row]), int(index.fields[0].length[row])
    assert (offset < 0, length) == (True, (4 << 30) + 6)
    behind = squashfs.fallback(index, image)
    done, last = 0, b""
    for chunk in behind.chunks("data", ~offset):
        assert done + len(chunk) > 4 << 30 or not np.frombuffer(chunk, np.uint8).any()
        done, last = done + len(chunk), bytes(chunk[-3:])
    assert (done, last) == (length, b"end")
