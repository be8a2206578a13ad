"""A pack that is killed, stopped, or out of space, and then gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rankup
from rankup.base.errors import UserError
from rankup.data.pack import write
from rankup.data.pack.journal import Pack

from .made import (
    ALL,
    Running,
    group,
    held,
    killed_at,
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


def _looks_complete(out: Path) -> bool:
    """Whether the marker is there: the index."""
    return (out / "index.npz").exists() or out.with_name(f"{out.name}.index.npz").exists()


@pytest.mark.parametrize(("container", "fsync"), [("hdf5", True), ("tar", False)])
def test_killed_at_some_moments(
    tmp_path: Path, source: Path, whole: dict[str, dict[str, bytes]], container: str, fsync: bool
) -> None:
    """Invariant "old or new": a kill -9 at any moment leaves nothing that is half of a pack."""
    _kills(tmp_path, source, whole[container], container, fsync, 4)


@pytest.mark.slow
@pytest.mark.parametrize("container", ["arrow", "squashfs"])
def test_killed_at_ten_moments(
    tmp_path: Path, source: Path, whole: dict[str, dict[str, bytes]], container: str
) -> None:
    """The containers that the test above leaves out."""
    _kills(tmp_path, source, whole[container], container, True, 10)


def _kills(
    folder: Path, source: Path, whole: dict[str, bytes], container: str, fsync: bool, count: int
) -> None:
    """Kill a pack at moments that are evenly apart, each time from the start, and go on with it."""
    counts = folder / "counts"
    first = request(source, folder / "0", container, fsync=fsync, workers=2)
    Path(first.out).parent.mkdir()
    code, said = Running(first, folder / "log", killed_at(0, first.out, counts)).wait()
    assert code == 0, said
    events = counts.stat().st_size
    assert events > count
    for number in range(1, count + 1):
        counts.unlink()
        asked = replace(first, out=first.out.replace("/0/", f"/{number}/"), resume=True)
        Path(asked.out).parent.mkdir()
        moment = number * events // (count + 1)
        pack = Running(asked, folder / "log", killed_at(moment, asked.out, counts))
        code, said = pack.wait()
        assert code == -signal.SIGKILL, said
        if _looks_complete(Path(asked.out)):
            same_samples(Path(asked.out), source)
        with small_units():
            assert run(asked) == 0
        assert made(Path(asked.out)) == whole
        assert not Path(f"{asked.out}.part").exists()
        # The report is there as well, whenever the kill came, and nothing but what belongs to it.
        at = Pack(asked)
        report = at.named(at.report)
        assert json.loads(report.read_text())["samples"] == 150
        assert not [name for name in os.listdir(report.parent) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("number", "code", "container"),
    [(signal.SIGINT, 130, "squashfs"), (signal.SIGTERM, 143, "tar")],
)
def test_a_signal_leaves_what_can_be_resumed(
    tmp_path: Path,
    source: Path,
    whole: dict[str, dict[str, bytes]],
    number: int,
    code: int,
    container: str,
) -> None:
    asked = request(source, tmp_path, container)
    pack = Running(asked, tmp_path / "log", slow(0.2))
    part = Path(f"{asked.out}.part")
    while not (part / "source.npz").exists():
        assert not pack.ended(), pack.wait()
        time.sleep(0.001)
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
        make_units_small()
        unit = write.Copier.unit

        def deadly(self: Any, number: int, sync: bool) -> Any:
            if number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return unit(self, number, sync)

        write.Copier.unit = deadly  # type: ignore[method-assign]

    code, said = Running(asked, tmp_path / "log", before).wait()
    assert code == 1
    assert "a worker (process " in said
    assert "SIGKILL" in said
    assert "--resume" in said


def test_workers_end_with_their_parent(tmp_path: Path, source: Path) -> None:
    asked = request(source, tmp_path, "tar", workers=2)
    pack = Running(asked, tmp_path / "log", held(tmp_path / "gate"))
    while len(group(pack.pid)) < 3:
        assert not pack.ended()
    os.kill(pack.pid, signal.SIGKILL)
    os.waitpid(pack.pid, 0)
    (tmp_path / "gate").touch()
    pack.gone()


def test_other_words_are_named(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request(source, tmp_path, "tar")
    pack = Running(asked, tmp_path / "log", held(tmp_path / "gate"))
    while not (tmp_path / "out.part" / "begun.json").exists():
        assert not pack.ended()
    pack.kill()
    other = tree(tmp_path / "other", 3)
    assert run(request(source, tmp_path, "tar", resume=True, split="all", shard_size="2GB")) == 2
    said = capsys.readouterr().err
    assert "--split was 'train' and is 'all'; --shard-size was '1GB' and is '2GB'" in said
    assert run(request(other, tmp_path, "tar", resume=True)) == 2
    assert "SOURCE was" in capsys.readouterr().err
    about = json.loads((tmp_path / "out.part" / "about.json").read_text())
    (tmp_path / "out.part" / "about.json").write_text(json.dumps({**about, "rankup_pack": 1}))
    assert run(request(source, tmp_path, "tar", resume=True)) == 2
    assert "a rankup that works differently (version 1)" in capsys.readouterr().err


def test_a_container_without_its_index_yet_is_not_opened(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its two names, an image would be read as the folder that is in it."""
    out = tmp_path / "out.sqsh"
    rename = os.rename

    def last(path: Path, name: Path) -> None:
        if name.name.endswith(".index.npz"):
            raise KeyboardInterrupt
        rename(path, name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", last)
        with suppress(KeyboardInterrupt):
            run(request(source, tmp_path, "squashfs"))
    assert out.exists()
    with pytest.raises(UserError, match=r"has no index yet.*--resume"):
        rankup.data.open(out)
    assert run(request(source, tmp_path, "squashfs", resume=True)) == 0
    same_samples(out, source)


def test_without_fsync_a_crash_of_the_machine_begins_anew(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not synced is only believed on the machine that has not crashed since."""
    for fsync, kept in ((False, False), (True, True)):
        folder = tmp_path / str(fsync)
        folder.mkdir()
        pack = Running(
            request(source, folder, "hdf5", fsync=fsync),
            folder / "log",
            held(folder / "gate", after=2),
        )
        part = folder / "out.h5.part"
        while not (part / "done").exists() or not any((part / "done").read_bytes()):
            assert not pack.ended()
        pack.kill()
        if not fsync:  # what was written, and noted as done, is lost
            (part / "data").write_bytes(bytes((part / "data").stat().st_size))
        state = json.loads((part / "begun.json").read_text())
        (part / "begun.json").write_text(json.dumps({**state, "boot": "another"}))
        with small_units():
            assert run(request(source, folder, "hdf5", fsync=fsync, resume=True)) == 0
        assert ("going on: " in capsys.readouterr().out) == kept
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


@pytest.mark.parametrize("container", ["hdf5", "squashfs"])
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
    monkeypatch.setattr("rankup.data.pack.report.fits", lambda *_: None)
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
