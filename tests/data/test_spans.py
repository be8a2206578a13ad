"""The reader of bytes: both its ways, and files that are not what they were."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.data.errors import BadContainer
from rankup.data.index import Strings
from rankup.data.spans import VARIABLE, How, Spans, way

from .sparse import sparse as sparse

WAYS: list[How] = ["mmap", "pread"]


def _spans(root: Path, how: How, *names: bytes, sizes: list[int] | None = None) -> Spans:
    return Spans(root, Strings.of(names), np.array(sizes or [], np.int64), how)


@pytest.mark.parametrize("how", WAYS)
def test_bytes_are_those_of_the_file(tmp_path: Path, how: How) -> None:
    data = os.urandom(70_000)
    (tmp_path / "b").write_bytes(data)
    (tmp_path / "e").write_bytes(b"")
    spans = _spans(tmp_path, how, b"b", b"e", sizes=[70_000, 0])
    for offset, length in ((0, 70_000), (0, 0), (1, 4097), (69_999, 1), (70_000, 0)):
        assert bytes(spans.read(0, offset, length)) == data[offset : offset + length]
    assert bytes(spans.read(1, 0, 0)) == b""
    again = pickle.loads(pickle.dumps(spans))
    assert bytes(again.read(0, 5, 7)) == data[5:12]
    alone = Spans(tmp_path / "b", Strings.of([b""]), np.array([70_000]), how)
    assert bytes(alone.read(0, 5, 7)) == data[5:12]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 11), (11, 0), (10, 1), (-1, 1), (0, -1), (2**62, 2**62), (-(2**63), 5)],
)
def test_a_place_outside_the_file_is_refused(
    tmp_path: Path, how: How, offset: int, length: int
) -> None:
    (tmp_path / "b").write_bytes(bytes(10))
    with pytest.raises(BadContainer, match="cut short, or its index is damaged"):
        _spans(tmp_path, how, b"b").read(0, offset, length)


@pytest.mark.parametrize("how", WAYS)
def test_what_is_no_such_file_is_refused(tmp_path: Path, how: How) -> None:
    (tmp_path / "b").write_bytes(bytes(10))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    spans = _spans(tmp_path, how, b"b", b"gone", b"pipe", b"folder", sizes=[11, 1, 0, 0])
    with pytest.raises(BadContainer, match="has 10 bytes, and had 11"):
        spans.read(0, 0, 1)
    with pytest.raises(FileNotFoundError):
        spans.read(1, 0, 1)
    with pytest.raises(BadContainer, match="no file"):
        spans.read(2, 0, 0)
    with pytest.raises(BadContainer, match="no file"):
        spans.read(3, 0, 0)
    with pytest.raises(BadContainer, match="4 files"):
        spans.read(4, 0, 0)


def test_a_file_cut_short_while_it_is_open_is_an_error_by_position(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(100))
    spans = _spans(tmp_path, "pread", b"b")
    spans.read(0, 0, 100)
    os.truncate(tmp_path / "b", 40)
    with pytest.raises(BadContainer, match="while it was read"):
        spans.read(0, 0, 100)


def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(100))
    before = len(os.listdir("/proc/self/fd"))
    spans = _spans(tmp_path, "pread", b"b")
    for _ in range(2):  # what is closed may be read again
        spans.read(0, 0, 1)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        spans.close()
        assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(BadContainer):
        _spans(tmp_path, "pread", b"b", sizes=[1]).read(0, 0, 1)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_more_than_two_gibibytes_are_read_at_once(sparse: Path) -> None:
    """The kernel gives 2 GiB at most for one call. The file is sparse."""
    size = (2 << 30) + 5000
    with (sparse / "b").open("wb") as file:
        file.seek(size - 3)
        file.write(b"end")
    # In a process of its own: its memory is given back.
    program = (
        "import sys, numpy; from pathlib import Path\n"
        "from rankup.data.spans import Spans; from rankup.data.index import Strings\n"
        "for how in sys.argv[2:]:\n"
        f" spans = Spans(Path(sys.argv[1]), Strings.of([b'']), numpy.array([{size}]), how)\n"
        f" data = spans.read(0, 0, {size})\n"
        f" print(len(data), bytes(data[-3:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, sparse / "b", *WAYS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{size} b'end'\n" * len(WAYS), "")


def test_the_way_is_as_asked_as_set_or_as_the_file_system_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert way(tmp_path, "pread") == "pread"
    monkeypatch.setenv(VARIABLE, "pread")
    assert way(tmp_path) == "pread"
    assert way(tmp_path, "mmap") == "mmap"
    with pytest.raises(UserError, match="auto, mmap or pread"):
        way(tmp_path, "nonsense")
    monkeypatch.delenv(VARIABLE)
    for kind, expected in (
        ("ext4", "mmap"),
        ("tmpfs", "mmap"),
        ("gpfs", "pread"),
        ("lustre", "pread"),
        ("nfs4", "pread"),
        ("fuse.squashfuse", "pread"),
        ("", "mmap"),
    ):
        monkeypatch.setattr("rankup.data.spans.mounts.kind_of", lambda path, kind=kind: kind)
        assert way(tmp_path) == expected
