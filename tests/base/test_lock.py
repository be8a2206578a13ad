"""One holder at a time, by files alone; one that has ended or stands still is replaced once."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankup.base import lock
from rankup.base.lock import LockFailed, Pace

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
        subprocess.Popen([sys.executable, "-c", _COUNT, str(target), "20"]) for _ in range(3)
    ]
    try:
        assert [process.wait(120) for process in processes] == [0] * 3
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert target.read_text() == "60"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_waiter_says_whom_it_waits_for(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    made = file_of(target).stat().st_mtime_ns
    _until(lambda: file_of(target).stat().st_mtime_ns > made)  # it is renewed
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        process.communicate("\n", timeout=60)

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
        assert re.search(r" since .*\d{4}-\d\d-\d\d; wait for its end\. If", said)
        assert file_of(target).read_text() == content
        process.kill()
        process.wait(60)
        with lock.held(target, quiet, Pace(stale=600, poll=0.01), wait=False):  # nobody's any more
            assert json.loads(file_of(target).read_text())["pid"] == os.getpid()
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_who_does_not_wait_for_a_silent_holder_is_told_when_to_come_again(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot", node="other", pid=7, user="me", since=0)
    now = path.stat().st_mtime
    os.utime(path, (now - 200, now - 200))
    words = (
        "process 7 of me on other is working on it; wait for its end, or, as it has been silent "
        r"for 2\d\d s and may be gone, run it again once that is 900 s"
    )
    with (
        pytest.raises(lock.Taken, match=words),
        lock.held(target, quiet, Pace(stale=900), wait=False),
    ):
        pass


def test_the_lock_of_a_killed_process_of_this_host_is_taken_at_once(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    process.send_signal(signal.SIGKILL)  # not waited for: a zombie has ended, too
    with lock.held(target, quiet, Pace(renew=5, stale=3600, poll=0.01)):
        pass
    process.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_process_number_that_was_given_again_is_not_the_holder(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    left_by_another(target, pid=os.getpid(), start=1)
    with lock.held(target, quiet, Pace(stale=600, poll=0.01)):
        pass


@pytest.mark.slow
def test_a_live_holder_is_never_replaced_however_long_it_takes(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    process = _start(target)
    path = file_of(target)
    content, first = path.read_text(), path.stat().st_mtime
    entered = threading.Event()
    pace = Pace(0.05, 5.0, 0.01)  # the holder may well stand still for seconds

    def wait() -> None:
        with lock.held(target, quiet, pace):
            entered.set()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        _until(lambda: path.stat().st_mtime > first + 1.2 * pace.stale)
        assert not entered.is_set()
        assert path.read_text() == content
    finally:
        process.communicate("\n", timeout=60)
        thread.join(60)
    assert entered.is_set()
    assert process.returncode == 0


def test_a_lock_of_another_host_is_taken_only_when_it_is_no_longer_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file system's time: a clock that is an hour ahead makes nothing stale."""
    target = tmp_path / "a.bin"
    path = left_by_another(target, host="another boot", node="other")
    pace = Pace(stale=1800, poll=0.01)
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    with pytest.raises(lock.Taken), lock.held(target, quiet, pace, wait=False):
        pass
    os.utime(path, (path.stat().st_mtime - 1900,) * 2)
    with lock.held(target, quiet, pace):
        pass


def test_of_many_that_find_a_lock_stale_one_replaces_it(tmp_path: Path) -> None:
    """At each moment at most one is inside, also in the moment of the removal."""
    for _ in range(5):
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
            thread.join(60)
        assert most == [1] * 8
        assert list(tmp_path.iterdir()) == []


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
            process.communicate("\n", timeout=60)
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


def test_who_could_not_renew_a_lock_for_too_long_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system was away: whether another one has taken over cannot be seen."""

    def away(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with lock.held(tmp_path / "a.bin", quiet, PACE) as held:
        held.check()
        with monkeypatch.context() as patch:
            patch.setattr(os, "utime", away)
            _until(lambda: _raises(held, "could not be renewed for more than 1 s"))
        _until(lambda: not _raises(held, ""))  # it is back, and nobody had come
    assert list(tmp_path.iterdir()) == []


def _raises(held: lock.Held, words: str) -> bool:
    try:
        held.check()
    except lock.LockLost as lost:
        return words in str(lost)
    return False


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to pass")


def test_a_lock_whose_time_is_in_the_future_is_taken_once_it_stands_still(tmp_path: Path) -> None:
    target = tmp_path / "a"
    path = left_by_another(target, host="another")
    os.utime(path, (time.time() + 9999, time.time() + 9999))
    said: list[str] = []
    with lock.held(target, said.append, PACE):
        assert file_of(target).exists()
    assert "with a time in the future; taken over if it stays so for 1 s" in said[0]
    assert not path.exists()


def test_who_does_not_wait_is_told_of_the_lock_and_the_way_out(tmp_path: Path) -> None:
    target = tmp_path / "a"
    path = left_by_another(target, host="another")
    os.utime(path, (time.time() + 9999, time.time() + 9999))
    with (
        pytest.raises(lock.Taken, match=f"remove its lock, {re.escape(str(path))}"),
        lock.held(target, quiet, PACE, wait=False),
    ):
        pass
    assert path.exists()
    path.unlink()
    with lock.held(target, quiet, PACE, wait=False):
        pass
