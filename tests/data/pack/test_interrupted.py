"""A pack that is killed, stopped, or out of space, and then gone on with."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankup.base import lock
from rankup.data.pack import engine, finish, notes, work
from rankup.data.pack.layout import Shape, plan
from rankup.data.pack.reader import Reader, SourceProblem
from rankup.data.pack.request import Request, target
from rankup.data.pack.source import scanned

from .made import (
    ALL,
    Running,
    made,
    make_units_small,
    request,
    run,
    same_samples,
    slow,
    small_units,
    tree,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("source") / "tree", 150)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Each container, packed in one go."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    with small_units():
        for container in ALL:
            asked = request(source, folder / container, container)
            assert run(asked) == 0
            found[container] = made(Path(asked.out))
    return found


def _killed_until_done(asked: Request, log: Path, draw: random.Random, longest: float) -> int:
    """Start a pack again and again, and kill it, until it comes to its end; how many kills."""
    for kills in range(60):
        pack = Running(asked, log, slow(0.01))
        limit = time.monotonic() + draw.uniform(0, longest) * (1 + kills / 4)
        while time.monotonic() < limit and not pack.ended():
            time.sleep(0.001)
        if pack.ended():
            code, said = pack.wait()
            assert code == 0, said
            return kills
        pack.kill()
        _forget_lock(Path(asked.out))
        assert not _looks_complete(Path(asked.out)) or _is_complete(asked, log)
    raise AssertionError(f"never done\n{log.read_text()}")


def _forget_lock(out: Path) -> None:
    """Remove a lock that was killed while it was made or taken over.

    Nobody can tell then whether its holder lives, until it has not been renewed for a minute.
    """
    path = out.with_name(f".{out.name}.lock")
    path.with_name(f"{path.name}.removal").unlink(missing_ok=True)
    if path.exists() and not path.read_text():
        path.unlink()


def _looks_complete(out: Path) -> bool:
    """Whether the marker is there: the index."""
    return (out / "index.npz").exists() or out.with_name(f"{out.name}.index.npz").exists()


def _is_complete(asked: Request, log: Path) -> bool:
    # Killed after the end: what is there is whole, and --resume says so.
    code, said = Running(asked, log).wait()
    assert code == 0, said
    return "complete already" in said


@pytest.mark.parametrize(
    ("container", "fsync"),
    [
        ("hdf5", True),
        *(pytest.param(one, one == "arrow", marks=pytest.mark.slow) for one in ("arrow", "tar")),
    ],
)
def test_kill_and_resume(
    tmp_path: Path,
    source: Path,
    whole: dict[str, dict[str, bytes]],
    container: str,
    fsync: bool,
) -> None:
    """Invariant 4: a kill -9 at any moment leaves nothing that is half of a container."""
    _kills(tmp_path, source, whole, container, fsync, rounds=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("container", ALL)
def test_many_kills(
    tmp_path: Path, source: Path, whole: dict[str, dict[str, bytes]], container: str
) -> None:
    _kills(tmp_path, source, whole, container, fsync=True, rounds=2, seed=2)


def _kills(
    folder: Path,
    source: Path,
    whole: dict[str, dict[str, bytes]],
    container: str,
    fsync: bool,
    rounds: int,
    seed: int,
) -> None:
    draw = random.Random(f"{seed} {container} {fsync}")
    kills = 0
    for number in range(rounds):
        asked = request(source, folder / str(number), container, fsync=fsync, resume=True)
        kills += _killed_until_done(asked, folder / "log", draw, 0.12)
        out = Path(asked.out)
        assert made(out) == whole[container]
        same_samples(out, source)
        assert not Path(f"{out}.part").exists()
    assert kills


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *((work, name) for name in ("make", "begin", "clear", "hashes", "remove")),
        (notes, "write"),
        (Path, "unlink"),
        (os, "rmdir"),
        (engine.Looker, "write"),
        *((finish, name) for name in ("finished", "complete", "save", "publish")),
        *((os, name) for name in ("rename",)),
    ],
)
@pytest.mark.parametrize(
    ("container", "after"),
    [("tar", False), ("tar", True), pytest.param("hdf5", True, marks=pytest.mark.slow)],
)
def test_killed_at(
    tmp_path: Path,
    source: Path,
    whole: dict[str, dict[str, bytes]],
    place: Any,
    name: str,
    container: str,
    after: bool,
) -> None:
    """Killed right before or after each step: the next one goes on, or begins anew."""

    def before() -> None:
        make_units_small()
        real = getattr(place, name)

        def deadly(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs) if after else None
            os.killpg(0, signal.SIGKILL)
            return result

        setattr(place, name, deadly)

    asked = request(source, tmp_path, container, workers=2, resume=True)
    pack = Running(asked, tmp_path / "log", before)
    code, said = pack.wait()
    assert code == -signal.SIGKILL, said
    with small_units():
        assert run(asked) == 0
    assert made(Path(asked.out)) == whole[container]
    assert not Path(f"{asked.out}.part").exists()
    # The report is there as well, whenever the kill came, and nothing but what belongs to it.
    report = target(asked.out, asked.to).report
    assert json.loads(report.read_text())["samples"] == 150
    assert not [name for name in os.listdir(report.parent) if name.endswith(".tmp")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("container", ["tar", "squashfs"])
def test_a_signal_leaves_what_can_be_resumed(
    tmp_path: Path,
    source: Path,
    whole: dict[str, dict[str, bytes]],
    number: int,
    code: int,
    container: str,
) -> None:
    asked = request(source, tmp_path, container)
    pack = Running(asked, tmp_path / "log", slow(0.02))
    part = Path(f"{asked.out}.part")
    while not (part / "source.npz").exists():
        assert not pack.ended(), pack.wait()
        time.sleep(0.001)
    time.sleep(0.02)
    # As a terminal does it: to the whole group.
    os.killpg(pack.pid, number)
    got, said = pack.wait()
    assert got == code, said
    assert "--resume" in said
    assert "Traceback" not in said
    assert not Path(asked.out).exists()
    with small_units():
        assert run(request(source, tmp_path, container)) == 2  # without --resume
        assert run(request(source, tmp_path, container, resume=True)) == 0
    assert made(Path(asked.out)) == whole[container]


def test_a_killed_worker_is_named(tmp_path: Path, source: Path) -> None:
    asked = request(source, tmp_path, "tar", workers=2)

    def before() -> None:
        slow(0.01)()
        unit = engine.Copier.unit

        def deadly(self: Any, number: int, sync: bool) -> Any:
            if number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return unit(self, number, sync)

        engine.Copier.unit = deadly  # type: ignore[method-assign]

    code, said = Running(asked, tmp_path / "log", before).wait()
    assert code == 1
    assert "worker 1 (process " in said
    assert "SIGKILL" in said
    assert "--resume" in said


def test_workers_end_with_their_parent(tmp_path: Path, source: Path) -> None:
    asked = request(source, tmp_path, "tar", workers=2)
    pack = Running(asked, tmp_path / "log", slow(0.02))
    while not (tmp_path / "out.part" / "begun.json").exists():
        assert not pack.ended()
    time.sleep(0.1)
    os.kill(pack.pid, signal.SIGKILL)
    os.waitpid(pack.pid, 0)
    pack.gone()


def test_other_words_are_named(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(source, tmp_path, "tar")
    pack = Running(asked, tmp_path / "log", slow(0.02))
    while not (tmp_path / "out.part" / "begun.json").exists():
        assert not pack.ended()
    pack.kill()
    other = tree(tmp_path / "other", 3)
    assert run(request(source, tmp_path, "tar", resume=True, split="all", shard_size="2GB")) == 2
    said = capsys.readouterr().err
    assert "--split was 'train' and is 'all'; --shard-size was '1GB' and is '2GB'" in said
    assert run(request(other, tmp_path, "tar", resume=True)) == 2
    assert "SOURCE was" in capsys.readouterr().err


def test_without_fsync_a_crash_of_the_machine_begins_anew(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced is only believed on the machine that has not crashed since."""
    for fsync, kept in ((False, False), (True, True)):
        folder = tmp_path / str(fsync)
        folder.mkdir()
        pack = Running(request(source, folder, "hdf5", fsync=fsync), folder / "log", slow(0.005))
        part = folder / "out.h5.part"
        while not (part / "done").exists() or not any((part / "done").read_bytes()):
            assert not pack.ended()
        pack.kill()
        if not fsync:  # what was written, and noted as done, is lost
            (part / "data").write_bytes(bytes((part / "data").stat().st_size))
        state = json.loads((part / "begun.json").read_text())
        (part / "begun.json").write_text(json.dumps({**state, "boot": "another"}))
        begun: list[bool] = []
        real = work.begin

        def begin(*args: Any, **kwargs: Any) -> Any:
            begun.append(True)  # noqa: B023
            return real(*args, **kwargs)  # noqa: B023

        monkeypatch.setattr(work, "begin", begin)
        with small_units():
            assert run(request(source, folder, "hdf5", fsync=fsync, resume=True)) == 0
        monkeypatch.setattr(work, "begin", real)
        assert bool(begun) != kept
        same_samples(folder / "out.h5", source)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A tmpfs, as small as it is asked for."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root mounts a small tmpfs")

    def resize(size: int) -> Path:
        mounted = os.path.ismount(folder)
        options = f"{'remount,' if mounted else ''}size={size}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
        return folder

    yield resize
    subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


@pytest.mark.parametrize("container", ALL)
def test_a_full_disk(
    tmp_path: Path,
    small_disk: Callable[[int], Path],
    container: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tree(tmp_path / "source", 40, largest=200_000)
    folder = small_disk(1 << 20)
    asked = request(source, folder, container, workers=2)
    # It would be refused before it begins; the space may go while it runs, though.
    monkeypatch.setattr("rankup.data.pack.summary.fits", lambda *_: None)
    with small_units():
        assert run(asked) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "--resume" in said
    if container != "squashfs":
        assert "more are needed" in said
    assert not Path(asked.out).exists()
    assert not _looks_complete(Path(asked.out))
    again = request(source, folder, container, workers=2, resume=True)
    small_disk(16 << 20)
    with small_units():
        assert run(again) == 0
    same_samples(Path(asked.out), source)


@pytest.mark.parametrize(
    "container",
    ["tar", pytest.param("squashfs", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("what", ["changed", "grown", "touched", "gone", "folder", "pipe"])
def test_a_source_that_changes_is_named(
    tmp_path: Path,
    container: str,
    what: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tree(tmp_path / "source", 40)
    victims = [source / "train" / "class0" / f"{number:06d}.txt" for number in (3, 33)]
    for victim in victims:
        victim.write_bytes(b"before")
    asked = request(source, tmp_path, container, workers=2)
    real = work.make

    def make(*args: Any) -> None:
        real(*args)
        for victim in victims:
            if what == "changed":
                victim.write_bytes(b"x")
            elif what == "grown":
                victim.write_bytes(b"before and after")
            elif what == "touched":
                about = victim.stat()
                victim.write_bytes(b"BEFORE")
                os.utime(victim, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
            elif what == "gone":
                victim.unlink()
            else:
                victim.unlink()
                victim.mkdir() if what == "folder" else os.mkfifo(victim)

    monkeypatch.setattr(work, "make", make)
    assert run(asked) == 1
    said = capsys.readouterr().err
    assert str(victims[0]) in said
    # A stream ends where it cannot go on; elsewhere all are named that were found.
    assert str(victims[1]) in said or container == "squashfs"
    assert ("is no longer there" if what == "gone" else "has changed") in said
    assert not Path(asked.out).exists()


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_source_that_cannot_be_read_is_named(
    tmp_path: Path,
    call: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tree(tmp_path / "source", 10)
    real = getattr(os, call)

    def fails(*args: Any, **kwargs: Any) -> Any:
        if call == "preadv" or os.fsencode(args[0]).endswith(b"000003.txt"):
            raise OSError(errno.EIO, "Input/output error")
        return real(*args, **kwargs)

    begin = work.begin

    def begun(*args: Any, **kwargs: Any) -> Any:
        layout = begin(*args, **kwargs)
        monkeypatch.setattr(os, call, fails)
        return layout

    monkeypatch.setattr(work, "begin", begun)
    assert run(request(source, tmp_path, "tar")) == 1
    monkeypatch.undo()
    said = capsys.readouterr().err
    assert f"{source}/train/class0/000003.txt cannot be read: Input/output error" in said


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_container_that_changes_is_named(
    tmp_path: Path,
    source: Path,
    when: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = request(source, tmp_path, "hdf5")
    assert run(first) == 0
    asked = request(Path(first.out), tmp_path / "next", "tar", workers=1)
    place, name = (work, "make") if when == "before" else (engine.Copier, "unit")
    real = getattr(place, name)

    def touches(*args: Any, **kwargs: Any) -> Any:
        if when == "before" or args[1] == 3:
            os.utime(first.out)
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, touches)
    with small_units():
        assert run(asked) == 1
    said = capsys.readouterr().err
    assert f"{first.out} has changed since it was scanned" in said
    assert "Traceback" not in said
    assert not Path(asked.out).exists()


def test_a_photo_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """It is looked at behind the read, so that a change between open and read is seen as well."""
    source = tree(tmp_path / "source", 150)
    asked = request(source, tmp_path, "tar")
    reader = Reader(scanned(asked), source)
    rows = np.flatnonzero(reader.index.fields[0].length)
    spans = reader.spans(0, 150)[0]
    buffer = memoryview(bytearray(5000))
    reader.into(spans[rows[0]], buffer)
    victim = source / os.fsdecode(reader.index.files[rows[1]])
    real = os.open

    def changes(path: Any, *args: Any) -> int:
        descriptor = real(path, *args)
        victim.write_bytes(bytes(victim.stat().st_size))
        return descriptor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", changes)
        with pytest.raises(SourceProblem, match="has changed"):
            reader.into(spans[rows[1]], buffer)


def _half_done(asked: Request, log: Path) -> None:
    """Leave a pack that was killed when some units were done."""
    pack = Running(asked, log, slow(0.02))
    done = Path(f"{asked.out}.part") / "done"
    while not (done.exists() and any(done.read_bytes())):
        assert not pack.ended(), pack.wait()
    pack.kill()


def test_resume_of_something_else_onto_a_whole_output(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(source, tmp_path, "hdf5")
    assert run(asked) == 0
    other = tree(tmp_path / "other", 3)
    before = made(Path(asked.out))
    assert run(request(other, tmp_path, "hdf5", resume=True, bad="skip")) == 2
    said = capsys.readouterr().err
    assert "was made otherwise: SOURCE was" in said
    assert "--bad was 'keep' and is 'skip'" in said
    # What is asked for is there: its report is what --json gives.
    assert run(request(source, tmp_path, "hdf5", resume=True, as_json=True)) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 150
    assert made(Path(asked.out)) == before
    target(asked.out, None).report.unlink()
    assert run(request(source, tmp_path, "hdf5", resume=True)) == 2
    assert "which says of what, cannot be read" in capsys.readouterr().err


def test_a_half_done_pack_is_not_removed(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another container has come to OUT's place while the pack was interrupted."""
    asked = request(source, tmp_path, "hdf5", resume=True)
    _half_done(asked, tmp_path / "log")
    part = Path(f"{asked.out}.part")
    before = (part / "done").read_bytes()
    first = request(source, tmp_path / "first", "hdf5")
    assert run(first) == 0
    for path in target(first.out, None).names:
        shutil.copy(path, tmp_path)
    assert run(asked) == 2
    assert f"{part} is what another pack has left" in capsys.readouterr().err
    assert (part / "done").read_bytes() == before


def test_a_late_note_is_of_no_consequence(tmp_path: Path, source: Path) -> None:
    """A process of an attempt that is over has written into files that are no longer there."""
    asked = request(source, tmp_path, "hdf5")
    index = scanned(asked)
    layout = plan("hdf5", index, Shape())
    at = work.Work(tmp_path / "part")
    at.part.mkdir()
    layout = work.begin(at, layout, one_file=True, fsync=False, boot="x")
    late = work.Journal(at, layout, False)
    work.begin(at, plan("hdf5", index, Shape()), one_file=True, fsync=False, boot="y")
    late.note(0, np.zeros((1, int(layout.units[1])), np.uint64))
    late.close()
    assert not work.done(at).any()


def test_a_torn_note_takes_no_other_with_it(tmp_path: Path) -> None:
    at = work.Work(tmp_path)
    path = tmp_path / "noted-0-0.jsonl"
    path.write_bytes(b'{"row": 1, "fi')
    for row in (2, 3):
        notes.add(path, [{"row": row}])
    assert list(notes.read(at)) == [{"row": 2}, {"row": 3}]


def test_the_lock_is_released(tmp_path: Path, source: Path) -> None:
    asked = request(source, tmp_path, "tar")
    assert run(asked) == 0
    with lock.held(Path(asked.out), print, wait=False):
        pass
