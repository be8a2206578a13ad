"""One holder at a time, by files alone; one that has ended or stands still is replaced once."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankup.base import holder, lock
from rankup.base.lock import Holder, LockFailed, Pace

from .locks import PACE, PATIENT, file_of, left_by_another, quiet

_HOLD = """
import sys, time
from pathlib import Path
from rankup.base.lock import Pace, held
with held(Path(sys.argv[1]), print, Pace(0.05, 1.0, 0.01)) as lock:
    print("held", flush=True)
    sys.stdin.readline()
    lock.check()
print("released", flush=True)
"""
_COUNT = """
import sys, time
from pathlib import Path
from rankup.base.lock import Pace, held
target = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with held(target, lambda line: None, Pace(0.05, 30.0, 0.001)):
        count = int(target.read_text() or 0)
        time.sleep(0.002)
        target.write_text(str(count + 1))
"""


def _start(target: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_processes_take_turns(tmp_path: Path) -> None:
    target = tmp_path / "count"
    target.write_text("")
    processes = [
        subprocess.Popen([sys.executable, "-c", _COUNT, str(target), "25"]) for _ in range(4)
    ]
    try:
        assert [process.wait(60) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert target.read_text() == "100"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_waiter_says_whom_it_waits_for(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        process.communicate("\n", timeout=20)

    with lock.held(target, say, PATIENT):
        assert process.returncode == 0
    assert len(said) == 1
    assert said[0].startswith(f"a.bin: waiting for process {process.pid} of ")
    assert os.uname().nodename in said[0]


def test_who_does_not_wait_is_told_who_holds_it_and_since_when(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    content = file_of(target).read_text()
    try:
        with (
            pytest.raises(lock.Taken) as caught,
            lock.held(target, quiet, PATIENT, wait=False, doing="packing"),
        ):
            pass
        said = str(caught.value)
        assert said.startswith(f"{target}: process {process.pid} of ")
        assert f" on {os.uname().nodename} is packing it since " in said
        assert said.endswith(
            f"{time.localtime().tm_year}-{time.strftime('%m-%d')}; wait for its end"
        )
        assert file_of(target).read_text() == content
        process.kill()
        process.wait(20)
        with lock.held(target, quiet, Pace(stale=600, poll=0.01), wait=False):  # nobody's any more
            assert json.loads(file_of(target).read_text())["pid"] == os.getpid()
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_who_does_not_wait_for_a_silent_holder_is_told_when_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot", node="other", pid=7, user="me", since=0)
    now = path.stat().st_mtime
    os.utime(path, (now - 20, now - 20))
    monkeypatch.setattr(lock, "_file_system_time", lambda path: now)
    words = (
        "process 7 of me on other is working on it; wait for its end, or, as it has been silent "
        "for 20 s and may be gone, run it again once that is 60 s"
    )
    with pytest.raises(lock.Taken, match=words), lock.held(target, quiet, wait=False):
        pass


def test_the_lock_of_a_killed_process_of_this_host_is_taken_at_once(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    process.send_signal(signal.SIGKILL)  # not waited for: a zombie has ended, too
    start = time.monotonic()
    with lock.held(target, quiet, Pace(renew=5, stale=600, poll=0.01)):
        assert time.monotonic() - start < 5
    process.communicate(timeout=20)
    assert list(tmp_path.iterdir()) == []


def test_a_process_number_that_was_given_again_is_not_the_holder(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    left_by_another(target, pid=os.getpid(), start=1)
    with lock.held(target, quiet, Pace(stale=600, poll=0.01)):
        pass


def test_a_live_holder_is_never_replaced_however_long_it_takes(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    path = file_of(target)
    content = path.read_text()
    entered = threading.Event()
    pace = Pace(0.05, 3.0, 0.01)  # the holder may well stand still for a second

    def wait() -> None:
        with lock.held(target, quiet, pace):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        time.sleep(1.5 * pace.stale)
        assert not entered.is_set()
        assert path.read_text() == content
    finally:
        process.communicate("\n", timeout=20)
        thread.join(20)
    assert entered.is_set()
    assert process.returncode == 0


def test_a_lock_of_another_host_is_taken_only_when_it_is_no_longer_renewed(
    tmp_path: Path,
) -> None:
    target = tmp_path / "a.bin"
    start = time.monotonic()
    left_by_another(target, host="another boot", node="other")
    with lock.held(target, quiet, PACE):
        assert time.monotonic() - start >= 0.9 * PACE.stale
    path = left_by_another(target, host="another boot", node="other")
    os.utime(path, (1, 1))
    with lock.held(target, quiet, Pace(stale=600, poll=0.01)):
        pass


def test_the_time_is_the_file_systems_not_this_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is an hour ahead makes nothing stale."""
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot")
    monkeypatch.setattr(time, "time", lambda: path.stat().st_mtime + 3600)
    assert not lock._stale(path, PACE)
    os.utime(path, (path.stat().st_mtime - 2, path.stat().st_mtime - 2))
    assert lock._stale(path, PACE)


def test_of_many_that_find_a_lock_stale_one_replaces_it(tmp_path: Path) -> None:
    """At each moment at most one is inside, also in the moment of the removal."""
    for _ in range(10):
        target = tmp_path / "a.bin"
        os.utime(left_by_another(target, host="another boot"), (1, 1))
        inside: list[int] = []
        most: list[int] = []

        def work(inside: list[int] = inside, most: list[int] = most, path: Path = target) -> None:
            with lock.held(path, quiet, Pace(0.05, 30.0, 0.001)):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert most == [1] * 8
        assert list(tmp_path.iterdir()) == []


def test_what_took_the_place_of_a_stale_lock_is_not_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two that found it stale comes when the first has a lock of its own there."""
    path = left_by_another(tmp_path / "a.bin", host="another boot")
    old = lock._look(path)
    assert old is not None
    fresh = json.dumps(dataclasses.asdict(holder.myself()))
    path.write_text(fresh)
    assert not lock._break(path, old[0], PACE)
    assert path.read_text() == fresh

    def replaced_meanwhile(path: Path, pace: Pace) -> bool:
        path.write_text(fresh)
        return True

    path = left_by_another(tmp_path / "b.bin", host="another boot")
    old = lock._look(path)
    assert old is not None
    monkeypatch.setattr(lock, "_stale", replaced_meanwhile)
    lock._break(path, old[0], PACE)
    assert path.read_text() == fresh
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.bin.lock", ".b.bin.lock"]


def test_a_removal_that_was_killed_is_removed_itself(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    os.utime(left_by_another(target, host="another boot"), (1, 1))
    removal = file_of(target).with_name(f"{file_of(target).name}.removal")
    removal.touch()
    os.utime(removal, (1, 1))
    with lock.held(target, quiet, PACE):
        pass
    assert list(tmp_path.iterdir()) == []


def test_who_stood_still_for_too_long_writes_no_more(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    process.send_signal(signal.SIGSTOP)
    try:
        # Of another host it could not be seen that it only stands still.
        path = file_of(target)
        words = json.loads(path.read_text())
        path.write_text(json.dumps({**words, "host": "another boot"}))
        with lock.held(target, quiet, PACE):
            mine = path.read_text()
            process.send_signal(signal.SIGCONT)
            process.communicate("\n", timeout=20)
            assert process.returncode != 0  # `check` raised
            assert path.read_text() == mine  # and its end did not let others in
    finally:
        process.kill()
        process.wait()


def test_check_raises_after_a_loss(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with lock.held(target, quiet, PACE) as held:
        held.check()
        left_by_another(target)
        _until(lambda: _lost(held))
    assert file_of(target).exists()


def _lost(held: lock.Held) -> bool:
    try:
        held.check()
    except LockFailed as failure:
        return "stood still" in str(failure)
    return False


def test_holders_are_compared_whole() -> None:
    me = holder.myself()
    assert me != holder.myself()  # of two locks of one process, too
    assert Holder(**json.loads(json.dumps(dataclasses.asdict(me)))) == me


def test_who_could_not_renew_a_lock_for_too_long_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system was away: whether another one has taken over cannot be seen."""
    target = tmp_path / "a.bin"
    real = lock._look

    def away(path: Path) -> tuple[Holder | None, float] | None:
        raise OSError(errno.EIO, "Input/output error")

    with lock.held(target, quiet, PACE) as held:
        held.check()
        monkeypatch.setattr(lock, "_look", away)
        _until(lambda: _raises(held, "could not be renewed for more than 1 s"))
        monkeypatch.setattr(lock, "_look", real)
        _until(lambda: not _raises(held, ""))  # it is back, and nobody had come
    assert list(tmp_path.iterdir()) == []


def _raises(held: lock.Held, words: str) -> bool:
    try:
        held.check()
    except lock.LockLost as lost:
        return words in str(lost)
    return False


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to pass")
