"""Folders of plain files as a container."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.data.containers import Choice, files
from rankup.data.index import Index
from rankup.data.spans import Spans

Tree = Mapping[str, bytes] | Mapping[bytes, bytes]


def write(root: Path, tree: Tree) -> Path:
    for name, data in tree.items():
        path = os.path.join(os.fsencode(root), name.encode() if isinstance(name, str) else name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return root


def read(index: Index, root: Path) -> dict[str, tuple[bytes, int]]:
    spans = Spans(root, index.files, index.sizes, "pread")
    field = index.field()
    assert field.file is not None
    found = {}
    for row in range(len(index)):
        data = spans.read(int(field.file[row]), int(field.offset[row]), int(field.length[row]))
        found[index.path(row)] = (
            bytes(data),
            -1 if index.labels is None else int(index.labels[row]),
        )
    return found


def test_splits_and_classes(tmp_path: Path) -> None:
    tree: Tree = {
        "val/cat/1.jpg": b"v",
        "train/dog/2.jpg": b"two",
        "train/cat/deep/er/1.jpg": b"one",
        "train/dog/empty.jpg": b"",
        "test/9.jpg": b"?",
    }
    index = files.scan(write(tmp_path, tree), Choice())
    assert index.classes == ("cat", "dog")
    assert [(s.name, s.start, s.stop, s.folder) for s in index.splits] == [
        ("train", 0, 3, "train"),
        ("val", 3, 4, "val"),
        ("test", 4, 5, "test"),
    ]
    assert read(index, tmp_path) == {
        "train/cat/deep/er/1.jpg": (b"one", 0),
        "train/dog/2.jpg": (b"two", 1),
        "train/dog/empty.jpg": (b"", 1),
        "val/cat/1.jpg": (b"v", 0),
        "test/9.jpg": (b"?", -1),
    }


def test_names_of_any_bytes(tmp_path: Path) -> None:
    names = [b"c/\xff\xfe", "c/ü 日本".encode(), b"c/new\nline", b"c/a\\b"]
    tree = {name: b"%d" % row for row, name in enumerate(names)}
    index = files.scan(write(tmp_path, tree), Choice())
    assert list(index.keys) == sorted(names)
    assert sorted(data for data, _ in read(index, tmp_path).values()) == [b"0", b"1", b"2", b"3"]


def test_what_file_managers_leave_is_skipped_and_counted(tmp_path: Path) -> None:
    tree = {
        "c/1": b"1",
        "c/.DS_Store": b"",
        "c/._1": b"",
        "c/Thumbs.db": b"",
        ".git/config": b"",
        ".git/HEAD": b"",
        "__MACOSX/c/1": b"",
    }
    index = files.scan(write(tmp_path, tree), Choice())
    assert list(index.keys) == [b"c/1"]
    assert index.facts["skipped"] == 5


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"c/0": b"zero", "f/2": b"two"})
    (root / "c" / "1").symlink_to("../f/2")
    (root / "d").symlink_to(root / "f")
    (root / "e").symlink_to("d")  # twice the same folder is no circle
    (tmp_path / "link").symlink_to("root")
    for path in (root, tmp_path / "link"):
        assert read(files.scan(path, Choice()), path) == {
            "train/c/0": (b"zero", 0),
            "train/c/1": (b"two", 0),
            "train/d/2": (b"two", 1),
            "train/e/2": (b"two", 2),
            "train/f/2": (b"two", 3),
        }


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    # What begins as its name does lies beside it all the same.
    write(tmp_path / "root2", {"1": b"one", "f/2": b"two"})
    root = write(tmp_path / "root", {"c/0": b"zero"})
    (root / "c" / "1").symlink_to(tmp_path / "root2" / "1")
    (root / "d").symlink_to("../root2/f")
    with pytest.raises(UserError, match="2 files or folders cannot be packed") as caught:
        files.scan(root, Choice())
    real = tmp_path.resolve()
    assert f"root/c/1 is a link out of it, to {real}/root2/1: copy that" in str(caught.value)
    assert f"root/d is a link out of it, to {real}/root2/f: copy that" in str(caught.value)


def test_circles_of_links_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a/1": b"", "b/1": b""})
    (tmp_path / "a" / "to_b").symlink_to("../b")
    (tmp_path / "b" / "to_a").symlink_to("../a")
    with pytest.raises(UserError, match="a/to_b/to_a is a link to a folder that it lies in"):
        files.scan(tmp_path, Choice())
    (tmp_path / "b" / "to_a").unlink()
    (tmp_path / "b" / "self").symlink_to("self")
    with pytest.raises(UserError, match="b/self cannot be read"):
        files.scan(tmp_path, Choice())


def test_what_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"c/1": b""})
    os.mkfifo(tmp_path / "c" / "pipe")
    (tmp_path / "c" / "dead").symlink_to("nowhere")
    (tmp_path / "c" / "device").symlink_to("/dev/null")
    monkeypatch.chdir(tmp_path / "c")  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        with pytest.raises(UserError) as caught:
            files.scan(tmp_path, Choice())
    message = str(caught.value)
    assert "4 files or folders cannot be packed" in message
    for line in ("a pipe", "a link out of it", "a link to nothing", "a socket"):
        assert f" is {line}" in message


def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"c/open": b"", "c/closed": b"", "folder/1": b""})
    (tmp_path / "c" / "closed").chmod(0o600)
    # Root may read everything; the system's answer to others is played here.
    monkeypatch.setattr(os, "access", lambda path, mode: not bytes(path).endswith(b"closed"))
    scandir = os.scandir

    def refuse(path: bytes) -> os._ScandirIterator[bytes]:
        if path.endswith(b"folder"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError) as caught:
        files.scan(tmp_path, Choice())
    assert "c/closed cannot be read: no permission" in str(caught.value)
    assert "folder: Permission denied" in str(caught.value)
    assert "2 files" in str(caught.value)


def test_a_name_that_windows_would_take_for_a_path(tmp_path: Path) -> None:
    write(tmp_path, {"c/x\\..\\..\\up": b""})
    with pytest.raises(UserError, match="path elsewhere on Windows"):
        files.scan(tmp_path, Choice())


@pytest.mark.parametrize("inside", ["", "train/"])
def test_a_readme_beside_class_folders_is_refused(tmp_path: Path, inside: str) -> None:
    tree = {f"{inside}cat/1": b"", f"{inside}dog/1": b"", f"{inside}README": b""}
    with pytest.raises(UserError, match="2 folders, and beside them README"):
        files.scan(write(tmp_path, tree), Choice())


def test_splits_beside_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="labels"):
        files.scan(write(tmp_path, {"train/a/1": b"", "val/a/1": b"", "labels/1": b""}), Choice())
