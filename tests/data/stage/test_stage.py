"""Staging: what is copied is what was packed, counts once it is whole, and is found by itself."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

import rankup
from rankup.base.errors import UserError
from rankup.base.progress import Progress
from rankup.data import finding, indexes, spans
from rankup.data.containers import Choice
from rankup.data.errors import BadContainer
from rankup.data.index import Index
from rankup.data.stage import copying, place
from rankup.data.stage.copying import Plan
from rankup.data.stage.staging import listed, release, stage

from ..pack.made import request, run, tree
from .conftest import Command
from .made import contents, equal, flip, left, packed, said


@pytest.mark.parametrize("container", ["hdf5", "tar", "squashfs"])
def test_every_container_is_staged_and_found(tmp_path: Path, container: str) -> None:
    asked = request(tree(tmp_path / "source", 40, 9000), tmp_path, container)
    assert run(asked) == 0
    out = Path(asked.out)
    done = stage(out, reserve=0)
    assert (done.checked, done.shared) == (True, False)
    equal(out, done.root)
    # The copy is a pack by itself.
    assert contents(rankup.data.open(done.root)) == contents(rankup.data.open(out))
    again = stage(out, reserve=0)
    assert (again.shared, again.root, again.seconds) == (True, done.root, 0)
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    assert len(contents(rankup.data.open(out))) == 40  # the source cannot be seen any more
    assert "is removed" in said(release())
    with pytest.raises((UserError, OSError)):
        rankup.data.open(out)


def _zip(path: Path) -> Path:
    with zipfile.ZipFile(path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"c{number % 2}/{number}.txt", f"sample {number} " * 999)
    return path / "x.zip"


def _parquet(path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for shard in range(3):
        rows = pa.table({"text": [f"{shard} {row} " * 500 for row in range(40)]})
        (path / "set").mkdir(exist_ok=True)
        pq.write_table(rows, path / "set" / f"{shard}.parquet")
    return path / "set"


@pytest.mark.parametrize("make", [_zip, _parquet])
def test_data_of_others_is_staged_and_found(
    make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    for one in (*path.rglob("*"), path):
        os.utime(one, (1e9, 1e9))  # what was changed just now is scanned again and again
    assert rankup.data.open(path).staged is None
    expected = contents(rankup.data.open(path))
    done = stage(path, reserve=0)
    assert done.checked is False
    with monkeypatch.context() as patched:
        # Nothing is scanned; of one file the index in the cache serves, of a folder its own.
        patched.setattr(*((finding, "found") if path.is_dir() else (finding, "scan")), None)
        found = rankup.data.open(path)
        assert (found.staged, contents(found)) == (done.root, expected)
        again = pickle.loads(pickle.dumps(found))
        assert (again.staged, contents(again)) == (done.root, expected)
    # With another choice the index is another one, and the bytes are the same.
    other = rankup.data.open(path, choice=Choice(split="test"))
    assert (other.splits, other.staged) == (("test",), done.root)
    if path.is_file():
        path.rename(tmp_path / "away")
        assert contents(rankup.data.open(path)) == expected  # the source cannot be seen any more
        (tmp_path / "away").rename(path)
    if path.is_dir():
        shutil.copy(path / "0.parquet", path / "3.parquet")
        assert len(rankup.data.open(path)) == 160  # a file came: it is another source


def test_one_file_is_copied_without_an_index_of_its_samples(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(100_000, dtype=np.uint16))
    scan = finding.scan
    scanned: list[Path] = []

    def noted(name: str, path: Path, choice: Choice) -> Index:
        scanned.append(path)
        return scan(name, path, choice)

    monkeypatch.setattr(finding, "scan", noted)
    done = stage(path, reserve=0)
    assert scanned == []
    assert sum(one.stat().st_size for one in home.rglob("*") if one.is_file()) < 220_000
    found = rankup.data.open(path)
    assert (found.staged, len(found), int(found.array(99_999))) == (done.root, 100_000, 34_463)
    assert scanned == [done.root]  # which is nearer
    # Of what was written just now no index is kept: it travels, and the copy is found again.
    travelled = pickle.dumps(found)
    again = pickle.loads(travelled)
    assert (again.staged, int(again.array(5))) == (done.root, 5)
    release()
    again = pickle.loads(travelled)
    assert (again.staged, int(again.array(5))) == (None, 5)
    # What a link is called is more than what the file behind it is.
    np.savez(tmp_path / "blob.npz", x=np.arange(6))
    (tmp_path / "blob.npz").rename(tmp_path / "blob")
    (tmp_path / "set.npz").symlink_to("blob")
    done = stage(tmp_path / "set.npz", reserve=0)
    found = rankup.data.open(tmp_path / "set.npz")
    assert (found.staged, found.index.container, len(found)) == (done.root, "numpy", 6)


def test_a_wrong_byte_of_a_sample_publishes_nothing(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    index = indexes.load(root / "index.npz")
    sound = (root / "train.bin").read_bytes()
    offset, length = index.fields[0].offset, index.fields[0].length
    for at in (offset[30], offset[30] + length[30] - 1):
        flip(root / "train.bin", int(at))
        with pytest.raises(BadContainer, match=index.path(30)):
            stage(root, reserve=0)
        assert left(home) == []
        (root / "train.bin").write_bytes(sound)
    written = (root / "index.npz").read_bytes()
    flip(root / "index.npz", written.index(b"c0/00003.bin"))
    with pytest.raises(BadContainer, match="is damaged"):
        stage(root, reserve=0)
    (root / "index.npz").write_bytes(written)
    assert left(home) == []
    stage(root, reserve=0)
    equal(root, place.copy_of(root, os.environ).root)  # type: ignore[union-attr]


def test_a_source_that_changes_while_it_is_copied_is_refused(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")

    def fill(plan: Plan, at: Path, watch: Progress) -> None:
        copying.fill(plan, at, watch)
        os.utime(root / "val.bin")

    with pytest.raises(UserError, match=r"val.bin was changed or replaced while it was copied"):
        stage(root, reserve=0, fill=fill)

    def cut(plan: Plan, at: Path, watch: Progress) -> None:
        os.truncate(root / "val.bin", 100)
        copying.fill(plan, at, watch)

    with pytest.raises(BadContainer, match=r"val\.bin: it has no longer"):
        stage(root, reserve=0, fill=cut)
    assert left(home) == []


def test_a_copy_that_is_being_made_elsewhere_is_left_alone(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    second = tmp_path / "second"
    second.mkdir()
    other = []

    def fill(plan: Plan, at: Path, watch: Progress) -> None:
        copying.fill(plan, at, watch)
        other.append(stage(root, reserve=0, to=second))

    done = stage(root, reserve=0, fill=fill)
    equal(root, done.root)
    assert contents(rankup.data.open(other[0].root)) == contents(
        rankup.data.open(root, staged=False)
    )


def test_a_replaced_source_is_read_itself_and_that_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = packed(tmp_path / "p")
    done = stage(root, reserve=0)
    with rankup.data.open(root) as old:
        before = contents(old)
        shutil.rmtree(root)
        packed(root, seed=7)
        assert contents(old) == before  # what is open stays what it was
    assert capfd.readouterr().err == ""
    for _ in range(3):
        equal(root, None)
    assert capfd.readouterr().err.count("out of date and not used") == 1
    assert [one["state"] for one in listed()] == ["out of date"]
    lines: list[str] = []
    again = stage(root, reserve=0, say=lines.append)
    assert "copied anew" in said(lines)
    assert (again.shared, again.root) == (False, done.root)
    equal(root, done.root)


def test_links_and_relative_paths_lead_to_the_same_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    done = stage("link", reserve=0)
    assert stage(Path("p"), reserve=0).shared
    assert rankup.data.open("link").staged == done.root
    assert rankup.data.open("./p/../p").staged == done.root
    assert place.keyed("link") == place.keyed(root)


def test_what_is_pickled_finds_the_copy_again_or_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    done = stage(root, reserve=0)
    monkeypatch.setattr(spans, "network", lambda path: "gpfs" if path == root else "")
    found = rankup.data.open(root).split("val")
    assert (found.staged, found.how) == (done.root, "mmap")
    travelled = pickle.dumps(found)
    again = pickle.loads(travelled)
    assert (again.staged, contents(again)) == (done.root, contents(found))
    release()
    again = pickle.loads(travelled)
    assert (again.staged, contents(again)) == (None, contents(found))
    assert again.how == "pread"  # a page fault at a time would be slow there
    aside = pickle.loads(pickle.dumps(rankup.data.open(root, staged=False)))
    stage(root, reserve=0)
    assert pickle.loads(pickle.dumps(aside)).staged is None  # as it was asked for


def test_only_what_is_ours_is_believed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packed(tmp_path / "p")
    done = stage(root, reserve=0)
    ours = place.folder_of(home)
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700
    for mode in (0o770, 0o701):
        ours.chmod(mode)
        assert rankup.data.open(root).staged is None
        with pytest.raises(UserError, match="others may use it"):
            stage(root, reserve=0)
        assert listed() == []
    ours.chmod(0o700)
    assert rankup.data.open(root).staged == done.root
    ours.rename(home / "moved")
    ours.symlink_to(home / "moved")
    assert rankup.data.open(root).staged is None
    with pytest.raises(UserError, match="is a link"):
        stage(root, reserve=0)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    place.folder_of(home).mkdir(0o700)
    with pytest.raises(UserError, match="belongs to user"):
        stage(root, reserve=0)


def test_what_is_no_pack_is_refused_before_it_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "scan", None)
    photos = tree(tmp_path / "photos", 20)
    with pytest.raises(UserError, match=r"`rankup pack .*photos NAME.h5`"):
        stage(photos)
    with pytest.raises(UserError, match="no file or folder"):
        stage(tmp_path / "nothing.h5")


def test_names_that_are_no_text_come_through(tmp_path: Path, command: Command) -> None:
    root = packed(tmp_path / os.fsdecode(b"caf\xe9 \x1b[31m"))
    code, said_, errors = command(root, "--reserve", "0")
    assert (code, errors) == (0, "")
    assert r"caf\udce9" in said_
    assert "\x1b[31m" not in place.keyed(root)
    equal(root, place.copy_of(root, os.environ).root)  # type: ignore[union-attr]
    code, said_, _ = command("--list")
    assert (code, r"caf\udce9" in said_) == (0, True)
    flip(root / "train.bin", 60_000)
    code, said_, errors = command(root, "--reserve", "0")
    assert (code, "copied anew" in errors, "Traceback" in errors) == (2, True, False)


def test_a_marker_that_makes_no_sense_is_no_copy(tmp_path: Path) -> None:
    root = packed(tmp_path / "p")
    done = stage(root, reserve=0)
    marker = done.root.parent.parent / place.MARKER
    text = marker.read_text()
    for wrong in (
        "",
        "[]",
        "{}",
        text[:-9],
        text.replace('"rankup_stage": 2', '"rankup_stage": 3'),
        text.replace('"size"', '"sizes"'),
        "[" * 10_000,
    ):
        marker.write_text(wrong)
        assert rankup.data.open(root).staged is None
    marker.write_text(text.replace('"boot": "', '"boot": "0'))  # the machine has started anew
    assert rankup.data.open(root).staged is None
    marker.write_text(text)
    assert rankup.data.open(root).staged == done.root
