"""What stands in a lock's place, and cannot be read or makes no sense, holds nobody up for ever."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.base import lock
from rankup.base.lock import LockFailed, Pace

from ..login.others import as_another_user
from ..login.others import shared as shared
from .locks import PACE, PATIENT, file_of, left_by_another, quiet

_ASKS = """
from rankup.base.lock import Pace, Taken, held
try:
    with held(target, print, Pace(stale=1800, poll=0.01), wait=False):
        print("mine")
except Taken as taken:
    print(taken)
"""
# Nobody falls silent for so long, and a test makes one older by hand.
LONG = Pace(stale=1800, poll=0.01)


def _only_once_it_is_old(target: Path) -> None:
    """What lies there is somebody's, until it was not renewed for too long."""
    with pytest.raises(lock.Taken), lock.held(target, quiet, LONG, wait=False):
        pass
    os.utime(file_of(target), (1, 1))
    with lock.held(target, quiet, LONG):
        pass
    assert list(target.parent.iterdir()) == []


def test_a_torn_lock_is_somebodys_until_it_is_old(tmp_path: Path) -> None:
    file_of(tmp_path / "a.bin").write_text('{"token": "x"')
    _only_once_it_is_old(tmp_path / "a.bin")


def test_who_is_killed_while_it_makes_a_lock_holds_nobody_up(tmp_path: Path) -> None:
    program = """
import json, os, signal, sys
from pathlib import Path
from rankup.base import lock

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

json.dump = killed
with lock.held(Path(sys.argv[1]), print):
    pass
"""
    target = tmp_path / "a.bin"
    ended = subprocess.run([sys.executable, "-c", program, str(target)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    (begun,) = tmp_path.iterdir()
    assert begun.name.startswith(f"{file_of(target).name}.")
    with lock.held(target, quiet, wait=False):
        pass
    assert list(tmp_path.iterdir()) == [begun]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_a_file_has_one_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    target = tmp_path / "a.bin"
    with lock.held(target, quiet, PATIENT) as one:
        assert [path.name for path in tmp_path.iterdir()] == [".a.bin.lock"]
        with pytest.raises(lock.Taken), lock.held(target, quiet, PATIENT, wait=False):
            pass
        one.check()
    assert list(tmp_path.iterdir()) == []


def test_one_name_more_that_the_file_system_made_when_first_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS does where its first answer is lost."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    with lock.held(tmp_path / "a.bin", quiet, PACE, wait=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_can_be_read_by_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with lock.held(tmp_path / "a.bin", quiet, PACE):
            assert file_of(tmp_path / "a.bin").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_lock_that_may_not_be_read_is_anothers_until_it_is_old(shared: Path) -> None:
    target = shared / "a.bin"
    path = left_by_another(target, host="another boot")
    path.chmod(0)
    assert "another process is working on it" in as_another_user(_ASKS, target)
    os.utime(path, (1, 1))
    assert as_another_user(_ASKS, target) == "mine\n"


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    path = file_of(tmp_path / "a.bin")
    path.symlink_to(tmp_path / "none")
    with (
        pytest.raises(LockFailed, match="a link to nowhere, and no lock; remove it"),
        lock.held(tmp_path / "a.bin", quiet, PACE),
    ):
        pass


def test_a_folder_in_the_place_of_the_lock_is_named(tmp_path: Path) -> None:
    file_of(tmp_path / "a.bin").mkdir()
    with (
        pytest.raises(LockFailed, match=r"\.a\.bin\.lock is a folder, and no lock; remove it"),
        lock.held(tmp_path / "a.bin", quiet, PACE),
    ):
        pass


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "1"},
        {"pid": -1},
        {"start": None},
        {"host": 1},
        {"user": []},
        {"since": float("nan")},
    ],
)
def test_a_lock_that_says_nonsense_is_nobodys_until_it_is_old(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    left_by_another(tmp_path / "a.bin", **changes)
    _only_once_it_is_old(tmp_path / "a.bin")


def test_who_waits_for_a_silent_holder_is_told_until_when(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot", node="other", pid=7, user="me")
    os.utime(path, (path.stat().st_mtime - 200,) * 2)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        os.utime(path, (1, 1))  # the time goes on

    with lock.held(target, say, LONG):
        pass
    [line] = said
    assert re.fullmatch(
        r"a\.bin: waiting for process 7 of me on other, silent for 2\d\d s; "
        "taken over once it is 1800 s",
        line,
    )
