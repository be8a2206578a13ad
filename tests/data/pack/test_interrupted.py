"""A pack that is killed, stopped, or out of space, and then gone on with."""

from __future__ import annotations

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

import pytest

from rankup.data.pack import engine, finish, notes, work
from rankup.data.pack.request import Request, target

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
    pack = Running(asked, tmp_path / "log", slow(0.1))
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
    pack = Running(asked, tmp_path / "log", slow(0.1))
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
        pack = Running(request(source, folder, "hdf5", fsync=fsync), folder / "log", slow(0.05))
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
