"""Invariant 4, old or new: a kill or a full disk never leaves half a file."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankup.base.files import cut_json_lines, fsync_directory, write_atomic, write_json

WRITES_FOREVER = """
import sys
from pathlib import Path
from rankup.base.files import write_atomic
path, number = Path(sys.argv[1]), 0
while True:
    number += 1
    write_atomic(path, f"{number:08d}" * 100_000)
    if number == 1:
        print("going", flush=True)
"""

WRITES_ONTO_A_FULL_DISK = """
import errno, resource, sys
from pathlib import Path
from rankup.base.files import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_atomic(Path(sys.argv[1]), b"new" * 10_000)
except OSError as error:
    sys.exit(0 if error.errno == errno.EFBIG else 3)
sys.exit(4)
"""


def test_writes_text_bytes_and_json(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "grün\n")
    assert path.read_bytes() == "grün\n".encode()
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    write_json(path, {"a": [1, "ü"]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [1, "ü"]}
    assert path.read_bytes().endswith(b"}\n")
    fsync_directory(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, object())
    assert json.loads(path.read_text()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomic(tmp_path / "taken", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("kills", [5, pytest.param(15, marks=pytest.mark.slow)])
def test_old_or_new_after_kill_9_at_any_moment(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "file"
    path.write_text("00000000" * 100_000)
    draw = random.Random(0)
    for _ in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES_FOREVER, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"going\n"
            time.sleep(draw.uniform(0, 0.05))
            writer.kill()
            assert writer.wait(timeout=60) == -signal.SIGKILL
        after = path.read_text()
        assert len(after) == 800_000
        assert after == after[:8] * 100_000, "a mixture of two writes"
        assert int(after[:8]) >= 1, "the first write was complete before the kill"


def test_old_file_after_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    child = [sys.executable, "-c", WRITES_ONTO_A_FULL_DISK, str(path)]
    assert subprocess.run(child, timeout=60, check=False).returncode == 0
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


LINES = [b'{"step": 0}\n', b'{"step": 1}\n', b'{"step": 2}\n']


@pytest.mark.parametrize(
    ("content", "kept", "unreadable"),
    [
        (b"", 0, 0),
        (b"".join(LINES), 2, 0),
        (b"".join(LINES[:2]), 2, 0),
        (b'{"step": 0}\n{"ste', 1, 0),  # torn in the middle
        (b'{"step": 0}\n{"step": 1}', 1, 0),  # torn just before the end of the line
        (b'{"step": 0}\n{"st\n{"step": 1}\n', 2, 1),  # torn, and written on by a later life
        (b'{"step": 0}\n[1]\n{"step": 1}\n', 2, 1),
        (b'{"step": 0}\n\xff\xfe\n{"step": 1}\n', 2, 1),
        (b'{"step": 0}\n\n{"step": 1}\n', 2, 1),
        (b'{"step": 0}\n' + bytes(64), 1, 0),  # a journal replayed after a power cut leaves zeros
        (b'{"step": 0}\n{"step": 2}\n{"step": 1}\n', 2, 0),
    ],
)
def test_cut_json_lines(tmp_path: Path, content: bytes, kept: int, unreadable: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    assert cut_json_lines(path, lambda record: record["step"] < 2) == unreadable
    assert path.read_bytes() == b"".join(LINES[:kept])
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_cut_json_lines_leaves_a_missing_file_missing(tmp_path: Path) -> None:
    cut_json_lines(tmp_path / "metrics.jsonl", lambda record: True)
    assert list(tmp_path.iterdir()) == []
