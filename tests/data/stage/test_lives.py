"""A copy's life: made by one of many, shared, interrupted at any moment, removed by the last."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import rankup
from rankup.base import holder, lock
from rankup.base.errors import RunFailed, UserError
from rankup.data.errors import BadContainer
from rankup.data.stage import clean, copying, listed, pieces, place, release, stage, users, waiting
from rankup.data.stage import room as rooms
from rankup.data.stage.part import Part

from .made import equal, flip, half, kill, left, packed, said, until


def test_one_of_many_copies_and_all_share(tmp_path: Path) -> None:
    root = packed(tmp_path / "p")
    copies: list[int] = []

    def fill(copy: Part, watch: copying.Watch) -> None:
        copies.append(1)
        copying.fill(copy, watch)

    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: stage(root, reserve=0, fill=fill), range(6)))
    assert len(copies) == 1
    assert sorted(one.shared for one in done) == [False] + [True] * 5
    assert len({one.path for one in done}) == 1


def test_those_who_wait_are_told_and_fail_as_the_first_did(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    flip(root / "train.bin", 60_000)
    tries: list[int] = []
    lines: list[str] = []
    go = threading.Event()
    waiters: set[int] = set()
    held = lock.held

    @contextmanager
    def noted(*args: Any, **more: Any) -> Iterator[lock.Held]:
        try:
            with held(*args, **more) as one:
                yield one
        except lock.Taken:
            waiters.add(threading.get_ident())
            raise

    def fill(copy: Part, watch: copying.Watch) -> None:
        tries.append(1)
        assert go.wait(60)
        copying.fill(copy, watch)

    monkeypatch.setattr(lock, "held", noted)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(stage, root, reserve=0, fill=fill)
        until(lambda: bool(tries))
        others = [pool.submit(stage, root, reserve=0, fill=fill) for _ in range(3)]
        entry = place.folder_of(home) / place.keyed(root)
        watching = threading.Thread(target=_wait, args=(entry, lines))
        watching.start()
        until(lambda: bool(lines))
        until(lambda: len(waiters) == 4)  # the three others, and who watches
        go.set()
        for future in (first, *others):
            with pytest.raises(BadContainer, match="are not those that were packed"):
                future.result(120)
    watching.join(120)
    assert tries == [1]
    assert "is staging it since" in lines[0]
    # Who comes later tries again.
    flip(root / "train.bin", 60_000)
    assert not stage(root, reserve=0).shared
    assert clean() == []
    assert not [name for name in left(home) if name.endswith(".failed")]


def _wait(entry: Path, lines: list[str]) -> None:
    with waiting.alone(entry, lines.append, 60, 0.1):
        pass


def test_one_who_comes_no_further_is_not_waited_for_without_end(tmp_path: Path) -> None:
    root = packed(tmp_path / "p")
    with half(root) as process, pytest.raises(RunFailed, match="no further than") as raised:
        stage(root, reserve=0, patience=0.2)
    assert f"process {process.pid} " in str(raised.value)


def test_what_a_killed_process_has_begun_is_replaced_at_once(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    with half(root) as process:
        assert [one["state"] for one in listed()] == ["being copied"]
        assert rankup.data.open(root).staged is None
        assert clean() == []  # somebody is at it
        kill(process)
    assert [one["state"] for one in listed()] == ["interrupted"]
    assert rankup.data.open(root).staged is None
    done = stage(root, reserve=0)
    assert not done.shared
    equal(root, done.path)


def test_clean_and_release_remove_what_a_killed_process_has_begun(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    with half(root) as process:
        kill(process)
    probe = place.folder_of(home) / ".key.lock.time-0123"
    probe.touch()
    assert "an interrupted copy" in said(clean())
    assert left(home) == [probe.name]  # it may be of one who looks at a lock just now
    os.utime(probe, (1e9, 1e9))
    lock = place.folder_of(home) / ".room.lock"  # of one that was killed while it held it
    lock.write_text(json.dumps(asdict(replace(holder.myself(), pid=process.pid))))
    assert clean() == []
    assert left(home) == []
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with half(root) as process:
        kill(process)
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    assert release() == []
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    assert "is removed" in said(release())
    assert left(home) == []
    # Also where another job had staged what the source was before.
    stage(root, reserve=0)
    (root / "val.bin").touch()
    monkeypatch.setenv("SLURM_JOB_ID", "6")
    with half(root) as process:
        kill(process)
    assert "is removed" in said(release())
    assert left(home) == []


@pytest.mark.slow
def test_a_kill_at_ten_moments_leaves_no_copy_or_a_whole_one(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p", 100)
    counts = tmp_path / "counts"
    pid = _killed_at(root, home, 0, counts)
    assert os.waitpid(pid, 0)[1] == 0
    events = counts.stat().st_size
    assert events > 10
    found, killed = [], 0
    for number in range(1, 11):
        release(job=_JOB)
        for name in left(home):  # what is there for milliseconds goes once it is old
            if ".lock." in name or name.endswith(".tmp"):
                os.utime(place.folder_of(home) / name, (1e9, 1e9))
        clean()
        assert left(home) == []
        counts.unlink()
        pid = _killed_at(root, home, number * events // 11, counts)
        # A lock is looked at as often as it takes: there may be fewer moments than the first time.
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert ended in (0, -signal.SIGKILL)
        killed += ended != 0
        copy = rankup.data.open(root).staged
        found.append(copy is not None)
        equal(root, copy)
        if number % 3 == 0:  # the next one goes on from whatever was left
            equal(root, stage(root, reserve=0, job=_JOB).path)
    assert killed >= 5
    assert not all(found)  # else nothing was interrupted


_JOB = users.current({"SLURM_JOB_ID": "5"})


def _killed_at(root: Path, home: Path, moment: int, counts: Path) -> int:
    """Fork a process that is killed right before it does something at the place; 0: it is not."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(counts, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"):
            what = args[0]
            if isinstance(what, str | bytes | Path) and os.fsdecode(what).startswith(str(home)):
                os.write(log, b".")
                if os.fstat(log).st_size == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        stage(root, reserve=0, job=_JOB)
        os._exit(0)
    finally:
        os._exit(1)


def test_the_last_job_removes_a_copy(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = packed(tmp_path / "one"), packed(tmp_path / "two", seed=5)
    for job in ("11", "12"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        stage(one, reserve=0)
    stage(two, reserve=0)
    assert release(paths=[one]) == [f"{one}: its copy stays for job 11 of Slurm"]
    assert release(paths=[one]) == []
    assert "two: its copy of" in said(release())
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    assert f"{one}: its copy of" in said(release())
    assert left(home) == []


def test_a_run_that_ends_leaves_what_another_one_of_its_job_reads(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    stage(root, reserve=0)  # by hand
    for run in ("a", "b"):
        monkeypatch.setenv("RANKUP_RUN_DIR", str(tmp_path / run))
        stage(root, reserve=0)
    (told,) = release()
    assert "its copy stays for" in told
    assert f"job 11 of Slurm (run {tmp_path / 'a'})" in told
    assert release() == []
    monkeypatch.delenv("RANKUP_RUN_DIR")
    assert "its copy stays for job 11 of Slurm (run " in said(release())
    monkeypatch.setenv("RANKUP_RUN_DIR", str(tmp_path / "a"))
    equal(root, rankup.data.open(root).staged)
    assert "its copy of" in said(release())
    assert left(home) == []


@pytest.mark.parametrize("by", [FileNotFoundError("gone"), SystemExit(143)])
def test_who_stood_still_takes_nothing_from_who_took_over(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, by: BaseException
) -> None:
    root = packed(tmp_path / "p")
    pace = lock.Pace(stale=0.1)
    monkeypatch.setattr(lock, "Pace", lambda: pace)
    folder = place.folder_of(home) / place.keyed(root)

    def fill(copy: Part, watch: copying.Watch) -> None:
        other = replace(holder.myself(), pid=1)
        folder.with_name(f".{folder.name}.lock").write_text(json.dumps(asdict(other)))
        (folder / "part").rename(folder / "data")  # it has made its copy meanwhile
        (folder / "ready.json").write_text("its marker")
        time.sleep(0.06)  # more than half of that: then the lock is looked at
        raise by

    with pytest.raises(lock.LockLost, match="another one has gone on"):
        stage(root, reserve=0, fill=fill)
    assert (folder / "ready.json").read_text() == "its marker"
    assert (folder / "data").is_dir()
    assert not list(folder.parent.glob(".*.failed"))


def test_copies_of_dead_jobs_and_processes_are_found(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = packed(tmp_path / "one"), packed(tmp_path / "two", seed=5)
    child = subprocess.Popen(["sleep", "100"])
    try:
        stage(one, reserve=0, job=users.current({}, child.pid))
        stage(two, reserve=0, job=users.current({"SLURM_JOB_ID": "77"}))
        assert clean() == []
        for alive in (True, None):
            assert clean(lambda job, alive=alive: alive) == []  # type: ignore[misc]
    finally:
        kill(child)
    states = {row["source"]: (row["users"], row["gone"]) for row in listed(lambda job: True)}
    assert states[str(two)] == (["job 77 of Slurm"], [])
    assert states[str(one)][0] == []
    assert f"process {child.pid}" in states[str(one)][1][0]
    assert "one: nobody uses its copy any more" in said(clean())
    assert "two: nobody uses its copy any more (job 77" in said(clean(lambda job: job != "77"))
    assert left(home) == []


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmpfs of 8 MB as the place for copies; where it cannot be mounted, none is needed."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(folder))
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "rankup-test", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_memory_that_is_full_in_the_middle(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p", 400, most=20_000)  # 4 MB
    monkeypatch.setattr(pieces, "PIECE", 1 << 16)
    other = tiny / "of-another"

    def fill(copy: Part, watch: copying.Watch) -> None:
        if os.path.ismount(tiny):
            about = os.statvfs(tiny)
            other.write_bytes(bytes(about.f_bavail * about.f_frsize - (1 << 20)))
            copying.fill(copy, watch)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunFailed, match=r"was full after 1\.\d+ MB of 5\.\d+ MB") as raised:
        stage(root, reserve=0, fill=fill)
    assert f"free in {tiny}" in str(raised.value)
    assert left(tiny) == [f".{place.keyed(root)}.failed"] or left(tiny) == []
    other.unlink(missing_ok=True)
    equal(root, stage(root, reserve=0).path)


def test_what_does_not_fit_is_refused_with_all_numbers(tiny: Path, tmp_path: Path) -> None:
    if not os.path.ismount(tiny):  # it is mounted by root alone; test_room has the rest
        return
    root = packed(tmp_path / "p", 1200, most=20_000)  # 12 MB
    with pytest.raises(UserError) as raised:
        stage(root, reserve=0)
    text = str(raised.value)
    assert "needs 13." in text or "needs 12." in text or "needs 14." in text
    assert f"{tiny} has room for 8.3" in text
    assert "available memory of the node" in text
    assert os.uname().nodename in text
    assert "--fraction 0.5" in text or "--fraction 0.6" in text
    fraction = float(text.partition("--fraction ")[2].split(";")[0])
    assert left(tiny) == []
    done = stage(root, reserve=0, fraction=fraction)
    equal(root, done.path)
    # What is said to fit is about all that fits.
    assert done.size > 0.75 * 8_000_000
    # Leftovers of the dead make room for others, and that is said.
    small = packed(tmp_path / "small", 100, most=20_000)
    with pytest.raises(UserError, match="has room for"):
        stage(small, reserve=0)
    users_of = done.path.parent.parent / "users"
    (mine,) = users_of.iterdir()
    mine.rename(users_of / "process-1-1")
    (users_of / "process-1-1").write_text("{}")
    lines: list[str] = []
    stage(small, reserve=0, say=lines.append)
    assert "to make room: " in said(lines)
    assert [row["source"] for row in listed()] == [str(small)]


def test_another_place_is_found_through_a_link(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = stage(root, reserve=0, to=disk)
    assert done.path.is_relative_to(disk)
    equal(root, done.path)
    lines: list[str] = []
    for to in (None, disk):
        assert stage(root, reserve=0, to=to, say=lines.append).shared
    assert lines == []
    assert stage(root, reserve=0, to=tmp_path, say=lines.append).path == done.path
    assert f"staged already in {disk}, and so not in {tmp_path} (--to)" in said(lines)
    assert [row["path"] for row in listed()] == [str(done.path)]
    # Other processes of the node, with a home of their own, share it.
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    assert stage(root, reserve=0, to=disk).shared
    assert "its copy stays" in said(release())
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(home))
    packed(tmp_path / "q", seed=9)
    again = stage(tmp_path / "q", reserve=0, to=disk)
    (tmp_path / "q" / "val.bin").touch()  # out of date
    assert not stage(tmp_path / "q", reserve=0, to=disk).shared
    assert again.path.exists()
    assert len(release()) == 2
    assert (left(home), left(disk)) == ([], [])


def test_two_sources_at_once_do_not_count_on_the_same_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = packed(tmp_path / "one"), packed(tmp_path / "two", seed=5)
    real = rooms.room

    def little(*args: Any) -> rooms.Room:
        found = real(*args)
        return rooms.Room(found.base, False, 1_300_000, found.promised, (), found.reserve)

    monkeypatch.setattr(rooms, "room", little)
    with half(one), pytest.raises(UserError, match="promised to copies that are being made"):
        stage(two, reserve=0)
