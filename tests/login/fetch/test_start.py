"""What is said while a script runs, and where on the line."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from rankup.login.fetch.start import Follow
from rankup.sandbox.events import Journal

FRESH = "import os; os.write(2, {before!r}); from rankup.login.fetch.start import fresh_line; "
FRESH += "fresh_line(); os.write(2, b'said')"


@pytest.mark.parametrize(("before", "after"), [(b"0%|  |", b"0%|  |\nsaid"), (b"x\n", b"x\nsaid")])
def test_a_line_in_a_file_begins_where_the_last_one_has_ended(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    with (tmp_path / "err").open("wb") as err:
        words = [sys.executable, "-c", FRESH.format(before=before)]
        subprocess.run(words, stderr=err, check=True, timeout=60)
    assert (tmp_path / "err").read_bytes() == after


@pytest.mark.parametrize("before", [b"0%|  |", b""])
def test_on_a_terminal_the_cursor_is_in_the_first_column_of_a_line_of_its_own(
    before: bytes,
) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    words = [sys.executable, "-c", FRESH.format(before=before)]
    subprocess.run(words, stderr=theirs, check=True, timeout=60)
    got = os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)
    # 39 blanks after 6 characters go on in the next line; after none they stay in this one.
    assert got == before + b" " * 39 + b"\rsaid"


def test_what_cannot_be_watched_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "problem", "time": 1, "pid": 1, "what": "x", "error": "y"}\n')
    assert not Follow(Journal(file), Path, quiet=False)()
    assert capsys.readouterr().err == "rankup: not watched: x: y\n"
    Follow(Journal(file), Path, quiet=True)()
    assert capsys.readouterr().err == ""
