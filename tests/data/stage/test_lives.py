"""A copy's life: made by one of many, interrupted at any moment, and gone with its job."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rankup
from rankup.base.errors import RunFailed, UserError
from rankup.base.progress import Progress
from rankup.data.stage import copying, place
from rankup.data.stage.copying import Plan
from rankup.data.stage.staging import listed, release, stage

from .made import equal, half, kill, left, packed, said, until


def test_one_of_many_copies_and_all_share(tmp_path: Path) -> None:
    root = packed(tmp_path / "p")
    copies: list[int] = []
    waiting: list[str] = []

    def fill(plan: Plan, at: Path, watch: Progress) -> None:
        copies.append(1)
        until(lambda: len(waiting) == 5)
        copying.fill(plan, at, watch)

    with ThreadPoolExecutor(6) as pool:
        done = list(
            pool.map(lambda _: stage(root, reserve=0, fill=fill, say=waiting.append), range(6))
        )
    assert len(copies) == 1
    assert "waiting for another process of yours" in waiting[0]
    assert sorted(one.shared for one in done) == [False] + [True] * 5
    assert len({one.root for one in done}) == 1


def test_each_job_has_its_own_copy_and_takes_no_others(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    by_hand = stage(root, reserve=0)
    assert rankup.data.open(root).staged == by_hand.root
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    assert rankup.data.open(root).staged is None
    in_job = stage(root, reserve=0)
    # Of two runs in one allocation each has its own, and finds what was staged by hand.
    monkeypatch.setenv("RANKUP_STAGE_JOB", "job-11.run-5")
    assert rankup.data.open(root).staged == in_job.root
    in_run = stage(root, reserve=0)
    equal(root, in_run.root)
    # A run on this machine inside of the job, too.
    monkeypatch.setenv("RANKUP_STAGE_JOB", "run-17")
    assert rankup.data.open(root).staged == in_job.root
    here = stage(root, reserve=0)
    equal(root, here.root)
    assert len({by_hand.root, in_job.root, in_run.root, here.root}) == 4
    assert [one["job"] for one in listed()] == [
        "by hand",
        "job 11 of Slurm",
        "job 11 of Slurm",
        "run of process 17",
    ]
    assert len(release()) == 1
    monkeypatch.setenv("RANKUP_STAGE_JOB", "job-11.run-5")
    assert f"{root}: its copy of" in said(release())
    assert rankup.data.open(root).staged == in_job.root
    # A variable that came along from another job is none of this one's.
    monkeypatch.setenv("RANKUP_STAGE_JOB", "job-12.7")
    assert len(release()) == 1  # what was staged by hand in job 11
    monkeypatch.delenv("SLURM_JOB_ID")
    assert len(release()) == 1
    assert left(home) == []


def test_what_a_killed_process_has_begun_is_replaced_at_once(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    with half(root) as process:
        assert [one["state"] for one in listed()] == ["not ready"]
        assert rankup.data.open(root).staged is None
        kill(process)
    done = stage(root, reserve=0)
    assert not done.shared
    equal(root, done.root)
    release()
    assert left(home) == []


def test_what_a_killed_job_has_begun_goes_with_its_folder(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    monkeypatch.setenv("RANKUP_STAGE_JOB", "job-11.1700000000")
    with half(root) as process:
        kill(process)
    folder = place.folder_of(home) / "job-11.1700000000"
    (entry,) = folder.iterdir()
    # Killed while it was removing a copy.
    entry.rename(folder / ".gone-0123456789abcdef")
    (folder / "sent").mkdir()
    (folder / "sent" / "0-p").write_bytes(b"what sbcast has brought")
    assert "which was not ready: its copy of" in said(release())
    assert left(home) == []


@pytest.mark.slow
def test_a_kill_at_ten_moments_leaves_no_copy_or_a_whole_one(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    root = packed(tmp_path / "p", 100)
    counts = tmp_path / "counts"
    pid = _killed_at(root, home, 0, counts)
    assert os.waitpid(pid, 0)[1] == 0
    events = counts.stat().st_size
    assert events > 10
    found, killed = [], 0
    for number in range(1, 11):
        release()
        assert left(home) == []
        counts.unlink()
        pid = _killed_at(root, home, number * events // 11, counts)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert ended in (0, -signal.SIGKILL)
        killed += ended != 0
        copy = rankup.data.open(root).staged
        found.append(copy is not None)
        equal(root, copy)
        if number % 3 == 0:  # the next one goes on from whatever was left
            equal(root, stage(root, reserve=0).root)
    assert killed >= 5
    assert not all(found)  # else nothing was interrupted


def _killed_at(root: Path, home: Path, moment: int, counts: Path) -> int:
    """Fork a process that is killed right before it does something at the place; 0: it is not."""
    pid = os.fork()
    if pid:
        return pid
    log = os.open(counts, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    mine = os.getpid()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link"):
            what = args[0]
            here = isinstance(what, str | bytes | Path) and os.getpid() == mine
            if here and os.fsdecode(what).startswith(str(home)):
                os.write(log, b".")
                if os.fstat(log).st_size == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        stage(root, reserve=0)
        os._exit(0)
    finally:
        os._exit(1)


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


def test_memory_that_is_full_in_the_middle(tiny: Path, tmp_path: Path) -> None:
    root = packed(tmp_path / "p", 400, most=20_000)  # 4 MB
    other = tiny / "of-another"

    def fill(plan: Plan, at: Path, watch: Progress) -> None:
        if os.path.ismount(tiny):
            about = os.statvfs(tiny)
            other.write_bytes(bytes(about.f_bavail * about.f_frsize - (3 << 20)))
            copying.fill(plan, at, watch)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunFailed, match=rf"{tiny} .* is full, and nothing of {root} was"):
        stage(root, reserve=0, fill=fill)
    assert left(tiny) == []
    other.unlink(missing_ok=True)
    equal(root, stage(root, reserve=0).root)
    assert release() != []


def test_what_does_not_fit_is_refused_with_all_numbers(tiny: Path, tmp_path: Path) -> None:
    if not os.path.ismount(tiny):  # it is mounted by root alone; test_memory has the rest
        return
    root = packed(tmp_path / "p", 1200, most=20_000)  # 12 MB
    with pytest.raises(UserError) as raised:
        stage(root, reserve=0)
    text = str(raised.value)
    assert "needs 13." in text or "needs 12." in text or "needs 14." in text
    assert f"{tiny} has room for 8.3" in text
    assert "available memory of the node" in text
    assert os.uname().nodename in text
    assert left(tiny) == []


def test_another_place(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = packed(tmp_path / "p")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = stage(root, reserve=0, to=disk)
    assert done.root.is_relative_to(disk)
    assert stage(root, reserve=0, to=disk).shared
    with monkeypatch.context() as there:
        there.setenv("RANKUP_STAGE_DIR", str(disk))
        equal(root, done.root)
    assert [row["path"] for row in listed(to=disk)] == [str(done.root)]
    assert len(release(to=disk)) == 1
    assert (left(home), left(disk)) == ([], [])
    # Without such a variable $TMPDIR is looked into, too.
    monkeypatch.delenv("RANKUP_STAGE_DIR")
    monkeypatch.setenv("TMPDIR", str(disk))
    done = stage(root, reserve=0, to=disk)
    equal(root, done.root)
    release()
    assert left(disk) == []


def test_what_is_removed_while_it_is_copied_is_not_published(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    begun, go = threading.Event(), threading.Event()

    def fill(plan: Plan, at: Path, watch: Progress) -> None:
        begun.set()
        assert go.wait(60)
        copying.fill(plan, at, watch)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(stage, root, reserve=0, fill=fill)
        assert begun.wait(60)
        assert "was not ready" in said(release())
        go.set()
        with pytest.raises(OSError, match="No such file"):
            done.result(60)
    assert left(home) == []
