"""`rankup pack`: what goes in comes out, whatever the container and the number of processes."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from rankup.base import progress
from rankup.base.errors import UserError
from rankup.data import indexes, opened
from rankup.data.inspect import show
from rankup.data.pack import write
from rankup.data.pack.source import Request

from .made import (
    ALL,
    CONTAINERS,
    Running,
    files,
    held,
    made,
    request,
    run,
    same_samples,
    small_units,
    tree,
)

# What the index of a pack says of its own files.
OWN_FACTS: dict[str, set[str]] = {
    "hdf5": set(),
    "tar": set(),
    "arrow": {"batches"},
    "squashfs": {"block", "compression", "made", "inodes"},
}


@pytest.mark.parametrize("container", ALL)
def test_a_tree_comes_back(tmp_path: Path, container: str) -> None:
    source = tree(tmp_path / "source", 60)
    asked = request(source, tmp_path, container, fsync=True)
    assert run(asked) == 0
    out = Path(asked.out)
    same_samples(out, source)
    index = indexes.load(indexes.place(out))
    assert [(one.name, one.stop - one.start) for one in index.splits] == [
        ("train", 48),
        ("val", 12),
    ]
    assert index.classes == ("class0", "class1", "class2")
    assert show(str(out), verify=True) == 0
    assert not [name for name in os.listdir(tmp_path) if "part" in name or "lock" in name]
    assert set(index.facts) - {"writer", "ends", "files_before"} <= OWN_FACTS[container]
    # And out of this container into another.
    other = request(out, tmp_path / "next", "tar" if container != "tar" else "hdf5")
    assert run(other) == 0
    same_samples(Path(other.out), source)
    again = indexes.load(indexes.place(Path(other.out)))
    assert again.facts["files_before"] == 60
    assert not set(again.facts) & OWN_FACTS[container]


@pytest.mark.parametrize("container", ALL)
def test_the_number_of_processes_changes_nothing(tmp_path: Path, container: str) -> None:
    source = tree(tmp_path / "source", 120)
    whole = request(source, tmp_path / "whole", container, workers=1)
    with small_units() if container == "arrow" else nullcontext():  # whose batches are units
        assert run(whole) == 0
    parts = request(source, tmp_path / "parts", container, workers=3)
    with small_units():
        assert run(parts) == 0
    assert made(Path(whole.out)) == made(Path(parts.out))


def test_a_sample_larger_than_the_buffer(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 7)
    big = source / "train" / "class0" / "big.bin"
    big.write_bytes(np.random.default_rng(0).bytes(300_001))
    for container in CONTAINERS:
        asked = request(source, tmp_path / container, container)
        with small_units():
            assert run(asked) == 0
        same_samples(Path(asked.out), source)


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tree(tmp_path / "source", 10)
    asked = request(source, tmp_path, "hdf5")
    assert run(asked) == 0
    said = capsys.readouterr().out
    assert "train 8, val 2, 3 classes" in said
    assert "files: 10 files -> 3 files" in said
    report = json.loads((tmp_path / "out.h5.report.json").read_text())
    assert report["samples"] == 10
    assert report["files_before"] == 10
    as_json = request(source, tmp_path / "json", "tar", as_json=True)
    assert run(as_json) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["samples"] == 10
    assert told.err == ""
    assert json.loads((Path(as_json.out) / "report.json").read_text()) == json.loads(told.out)


def unread(source: Path, out: Path, *options: str) -> tuple[int, bytes]:
    """Pack with nobody at the other end of its output; the exit code and what is on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-c", "from rankup.cli import main; raise SystemExit(main())"]
    words += ["pack", str(source), str(out), *options]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=120)
    os.close(writing)
    return done.returncode, done.stderr


def test_a_reader_of_its_lines_that_is_gone_does_not_end_it(tmp_path: Path, source: Path) -> None:
    assert unread(source, tmp_path / "o.h5") == (0, b"")
    assert show(str(tmp_path / "o.h5"), verify=True) == 0


@pytest.mark.parametrize("options", [["--json"], ["--dry-run"], ["--dry-run", "--json"]])
def test_output_that_nobody_reads_ends_it_in_silence(
    tmp_path: Path, source: Path, options: list[str]
) -> None:
    """As it ends any other verb; what was made is whole."""
    assert unread(source, tmp_path / "o.h5", *options) == (1, b"")
    assert (tmp_path / "o.h5").exists() == ("--dry-run" not in options)


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tree(tmp_path / "source", 10)
    before = sorted(tmp_path.rglob("*"))
    assert run(request(source, tmp_path, "tar", dry_run=True)) == 0
    assert "train 8, val 2" in capsys.readouterr().out
    assert run(request(source, tmp_path, "tar", dry_run=True, as_json=True)) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    assert run(request(source, tmp_path, "tar", as_json=True)) == 0
    report = json.loads(capsys.readouterr().out)
    # The same names for the same things.
    both = set(told) & set(report)
    assert {"asked", "out", "container", "splits", "samples", "sample_bytes"} <= both
    assert {name: told[name] for name in both - {"bytes"}} == {
        name: report[name] for name in both - {"bytes"}
    }


@pytest.mark.parametrize("name", ["out.h5.index.npz", "out.h5.report.json"])
def test_what_belongs_to_the_output_is_not_overwritten(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 10)
    (tmp_path / name).write_text("precious")
    assert run(request(source, tmp_path, "hdf5")) == 2
    assert f"{name} is there, and a pack of that name would overwrite it" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == [name, "source"]


@pytest.mark.parametrize("container", ["hdf5", "tar"])
def test_what_comes_to_the_name_at_the_last_moment_is_not_replaced(
    tmp_path: Path, container: str
) -> None:
    source = tree(tmp_path / "source", 10)
    asked = request(source, tmp_path, container)
    out = Path(asked.out)

    def before() -> None:
        def hook(event: str, args: tuple[object, ...]) -> None:
            # The last file before the names: all has been looked at.
            if event == "open" and ".published." in os.fsdecode(str(args[0])) and not out.exists():
                out.mkdir() if container == "tar" else out.touch()
                (out / "mine" if container == "tar" else out).write_text("precious")

        sys.addaudithook(hook)

    code, said = Running(asked, tmp_path / "log", before).wait()
    assert code == 2, said
    assert f"{out} is there, and a pack of that name would overwrite it" in said
    assert (out / "mine" if container == "tar" else out).read_text() == "precious"
    shutil.rmtree(out) if container == "tar" else out.unlink()
    assert run(request(source, tmp_path, container, resume=True)) == 0
    same_samples(out, source)


def test_progress_counts_the_bytes_of_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not those of a tar's headers, which were more than there are."""
    shown: list[tuple[int, int]] = []

    @contextmanager
    def noted(*args: object, **kwargs: object) -> Iterator[object]:
        yield lambda done, samples: shown.append((done, samples))

    monkeypatch.setattr(progress, "shown", noted)
    source = tree(tmp_path / "source", 60, largest=20)
    with small_units(200):
        assert run(request(source, tmp_path, "tar")) == 0
    total = sum(map(len, files(source).values()))
    assert len(shown) > 1
    assert shown == sorted(shown)
    assert shown[-1] == (total, 60)


def test_a_link_as_a_work_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 3)
    (tmp_path / "elsewhere").mkdir()
    for to in ("elsewhere", "nothing"):
        link = tmp_path / "out.h5.part"
        link.symlink_to(tmp_path / to)
        for resume in (False, True):
            assert run(request(source, tmp_path, "hdf5", resume=resume)) == 2
            assert "out.h5.part is a link" in capsys.readouterr().err
        link.unlink()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 3)
    (tmp_path / "file").write_text("")
    for folder in (Path("/proc"), tmp_path / "file"):
        with pytest.raises(UserError, match=f"{folder} cannot be written to .*choose another"):
            run(request(source, folder, "hdf5"))


def test_what_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 10)
    for container in ("hdf5", "tar"):
        asked = request(source, tmp_path / container, container)
        assert run(asked) == 0
        before = made(Path(asked.out))
        assert run(asked) == 2
        assert "exists, with 10 samples; it is not overwritten" in capsys.readouterr().err
        assert run(request(source, tmp_path / container, container, resume=True)) == 0
        assert "complete already" in capsys.readouterr().out
        assert made(Path(asked.out)) == before
    mine = tmp_path / "mine.h5"
    mine.write_text("not ours")
    asked = request(source, tmp_path, "hdf5", resume=True)
    mine.rename(asked.out)
    assert run(asked) == 2
    assert "is no complete container of rankup's" in capsys.readouterr().err
    assert Path(asked.out).read_text() == "not ours"


def test_a_folder_that_only_has_the_name_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 10)
    mine = tmp_path / "out.h5.part" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("mine")
    for resume in (False, True):
        assert run(request(source, tmp_path, "hdf5", resume=resume)) == 2
        assert "is no work folder of rankup pack" in capsys.readouterr().err
        assert mine.read_text() == "mine"


def test_the_second_pack_to_one_output_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tree(tmp_path / "source", 20)
    asked = request(source, tmp_path, "tar")
    first = Running(asked, tmp_path / "log", held(tmp_path / "gate"))
    try:
        while not (tmp_path / "out.part" / "begun.json").exists():
            assert not first.ended()
        for resume in (False, True):
            assert run(request(source, tmp_path, "tar", resume=resume)) == 2
            assert f"process {first.pid}" in capsys.readouterr().err
    finally:
        (tmp_path / "gate").touch()
        code, said = first.wait()
    assert (code, "done: " in said) == (0, True), said
    same_samples(Path(asked.out), source)


@pytest.mark.parametrize("container", ["hdf5", "squashfs"])
def test_a_container_that_cannot_fit_is_refused_before(
    tmp_path: Path, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source" / "train"
    source.mkdir(parents=True)
    for number in range(2):
        with (source / f"{number}.bin").open("wb") as file:
            file.truncate(1 << 42)
    assert run(request(source.parent, tmp_path, container)) == 2
    assert "are missing" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["source"]


@pytest.mark.parametrize("container", ["hdf5", "squashfs"])
def test_a_file_larger_than_the_limit_is_refused_before(
    tmp_path: Path,
    container: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tree(tmp_path / "source", 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))
    assert run(request(source, tmp_path, container)) == 2
    assert "(ulimit -f)" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_too_long_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tree(tmp_path / "source", 3)
    for count in (245, 252):
        assert run(Request(str(source), str(tmp_path / f"{'n' * count}.h5"))) == 2
        assert "too long a name" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["source"]


def test_a_damaged_pack_as_a_source_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hashes of a source that has them are compared on the way."""
    source = tree(tmp_path / "source", 40)
    first = request(source, tmp_path, "hdf5")
    assert run(first) == 0
    out = Path(first.out)
    index = indexes.load(indexes.place(out))
    row = int(np.flatnonzero(index.fields[0].length > 1000)[3])
    with out.open("r+b") as file:
        file.seek(int(index.fields[0].offset[row]) + 500)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    for container in CONTAINERS:
        second = request(out, tmp_path / f"next-{container}", container)
        assert run(second) == 1
        said = capsys.readouterr().err
        assert f"{index.path(row)} is damaged" in said
        assert "rankup inspect SOURCE --extract" in said
        assert not Path(second.out).exists()
    assert opened.open(out).index.path(row) == index.path(row)


def test_a_disk_that_fails_is_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(descriptor: int, data: object, offset: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    source = tree(tmp_path / "source", 9)
    monkeypatch.setattr(write, "pwrite_all", fails)
    assert run(request(source, tmp_path, "tar", workers=1)) == 1
    said = capsys.readouterr().err
    assert "Input/output error" in said
    assert f"{tmp_path}/out.part/data/train-000000.tar" in said
