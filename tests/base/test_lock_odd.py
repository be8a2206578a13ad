"""What stands in a lock's place, and cannot be read or makes no sense, holds nobody up for ever."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankup.base import holder, lock
from rankup.base.lock import LockFailed, Pace

from ..login.others import as_another_user
from ..login.others import shared as shared
from .locks import PACE, PATIENT, file_of, left_by_another, quiet

_WAITS = """
import time
from rankup.base.lock import Pace, held
(target.parent / "there").touch()
start = time.monotonic()
with held(target, print, Pace(0.05, 1.0, 0.01)):
    print(time.monotonic() - start)
"""


def test_a_torn_lock_is_somebodys_until_it_is_old(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    path = file_of(target)
    path.write_text('{"token": "x"')
    assert not lock._stale(path, PACE)
    with lock.held(target, quiet, PACE):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_is_killed_while_it_makes_a_lock_holds_nobody_up(tmp_path: Path) -> None:
    program = """
import json, os, signal, sys
from pathlib import Path
from rankup.base import holder, lock

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
        assert not lock._create_unlinked(file_of(target), holder.myself())
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


def test_a_lock_that_may_not_be_read_is_waited_for_until_it_is_old(shared: Path) -> None:
    target = shared / "a.bin"
    renewed = [time.monotonic()]
    path = left_by_another(target, host="another boot")
    path.chmod(0)
    stop = threading.Event()

    def renew() -> None:
        """Until the other one is there: Python may take longer to start than a lock is valid."""
        while not ((shared / "there").exists() or stop.wait(PACE.renew)):
            renewed.append(time.monotonic())
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        said = as_another_user(_WAITS, target)
    finally:
        stop.set()
        thread.join()
    assert "a.bin: waiting for another process" in said
    assert float(said.split()[-1]) > 0
    assert time.monotonic() - renewed[-1] > 0.8 * PACE.stale


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
        {"pid": 0},
        {"pid": -1},
        {"start": None},
        {"host": 1},
        {"user": []},
        {"since": "x"},
        {"since": float("nan")},
    ],
)
def test_a_lock_that_says_nonsense_is_nobodys_until_it_is_old(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    target = tmp_path / "a.bin"
    path = left_by_another(target, **changes)
    found = lock._look(path)
    assert found is not None
    assert found[0] is None
    assert not lock._stale(path, PACE)
    os.utime(path, (1, 1))
    with lock.held(target, quiet, PACE):
        pass


def test_who_waits_for_a_silent_holder_is_told_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot", node="other", pid=7, user="me")
    now = path.stat().st_mtime
    os.utime(path, (now - 20, now - 20))
    said: list[str] = []
    # The time goes on once it was told.
    monkeypatch.setattr(lock, "_file_system_time", lambda path: now + (1 if said else 0))
    with lock.held(target, said.append, Pace(renew=5, stale=20.5, poll=0.01)):
        pass
    assert said == [
        "a.bin: waiting for process 7 of me on other, silent for 20 s; taken over once it is 20.5 s"
    ]


def test_a_lock_that_cannot_be_seen_is_asked_for_at_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system whose memory of a folder is old, a file may be there for some calls only."""
    target = tmp_path / "a.bin"
    left_by_another(target)
    asked: list[Path] = []

    def unseen(path: Path) -> None:
        asked.append(path)
        if len(asked) == 5:
            path.unlink()

    with monkeypatch.context() as patched:
        patched.setattr(lock, "_look", unseen)
        start = time.monotonic()
        thread = threading.Thread(target=lambda: _enter(target, Pace(60, 60, 0.1)))
        thread.start()
        thread.join(20)
    assert time.monotonic() - start >= 0.5


def _enter(target: Path, pace: Pace) -> None:
    with lock.held(target, quiet, pace):
        pass
