"""Images of other tools, which are mounted and read as folders."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rankup
from rankup.base.errors import UserError
from rankup.data.containers import Choice
from rankup.data.inspect import show
from rankup.data.opened import Samples
from rankup.data.pack.command import pack
from rankup.data.pack.source import Request
from rankup.data.stage.mount import release

from ..stage.made import until
from .squashfs_made import contents, fill, mksquashfs, needs_fuse, odd_files, same
from .squashfs_made import unmounted as unmounted

BLOCK = 4096


pytestmark = pytest.mark.usefixtures("unmounted")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each."""
    needs_fuse()
    return fill(tmp_path_factory.mktemp("odd") / "tree", odd_files(BLOCK))


@pytest.mark.parametrize(
    "options",
    [
        ["-comp", "gzip"],
        ["-comp", "xz", "-always-use-fragments"],
        ["-noD", "-noF", "-no-fragments"],
    ],
    ids="_".join,
)
def test_every_form_of_an_image_gives_the_same_bytes(
    odd: Path, tmp_path: Path, options: list[str]
) -> None:
    image = mksquashfs(odd, tmp_path / "i.sqsh", "-b", str(BLOCK), *options)
    with rankup.data.open(image) as samples:
        index = samples.index
    same(contents(image), odd_files(BLOCK))
    assert [(one.name, one.folder) for one in index.splits] == [("train", "train"), ("val", "val")]
    assert index.classes == ("a", "b")
    assert index.labels is not None
    of_b = [index.keys[row].startswith(b"b/") for row in range(len(index))]
    assert index.labels.tolist() == list(map(int, of_b))


def test_an_image_is_inspected_and_packed(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = mksquashfs(odd, tmp_path / "i.sqsh")
    assert show(str(image)) == 0
    assert f"{image}: plain files, {len(odd_files(BLOCK))} samples" in capsys.readouterr().out
    assert show(str(image), verify=True) == 0
    assert pack(Request(str(image), str(tmp_path / "out.h5"))) == 0
    with rankup.data.open(tmp_path / "out.h5") as packed:
        found = {packed.path(row): bytes(packed.read(row)) for row in range(len(packed))}
    same(found, odd_files(BLOCK))


def test_links_within_are_followed_and_those_out_of_it_refused(tmp_path: Path) -> None:
    needs_fuse()
    root = fill(tmp_path / "tree", {"a/one": b"first", "b/two": b"second", ".git/x": b"hidden"})
    (root / "b" / "again").hardlink_to(root / "a" / "one")
    (root / "b" / "link").symlink_to("../a/one")
    (root / "Thumbs.db").write_bytes(b"left")
    image = mksquashfs(root, tmp_path / "i.sqsh")
    with rankup.data.open(image, choice=Choice(split="all")) as samples:
        found = {samples.path(row): bytes(samples.read(row)) for row in range(len(samples))}
    linked = {"all/b/again": b"first", "all/b/link": b"first"}
    assert found == {"all/a/one": b"first", "all/b/two": b"second", **linked}


@pytest.mark.parametrize(
    ("pseudo", "kind"), [("a/dev c 666 0 0 1 3", "a device"), ("a/dev i 666 0 0 s", "a socket")]
)
def test_a_device_is_refused(tmp_path: Path, pseudo: str, kind: str) -> None:
    needs_fuse()
    root = fill(tmp_path / "tree", {"a/one": b"first"})
    image = mksquashfs(root, tmp_path / "i.sqsh", "-p", pseudo)
    with pytest.raises(UserError, match=f"a/dev is {kind}"):
        rankup.data.open(image)


@pytest.mark.parametrize("name", ["bad\udcff", "li\u2028ne", "ff\x0cx", "cr\rx"], ids=ascii)
def test_an_image_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its mount is found among the mounts, and ends."""
    needs_fuse()
    image = mksquashfs(fill(tmp_path / "tree", {"a/one": b"first"}), tmp_path / "i.sqsh")
    image = image.rename(tmp_path / f"{name}.sqsh")
    (tmp_path / "mounts").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "mounts"))
    with rankup.data.open(image) as samples:
        assert samples.read(0) == b"first"
    release()
    assert os.listdir(tmp_path / "mounts") == []


def _first(samples: Samples) -> bytes:
    return bytes(samples.read(0))


def test_samples_of_an_image_travel_to_workers(odd: Path, tmp_path: Path) -> None:
    image = mksquashfs(odd, tmp_path / "i.sqsh")
    with rankup.data.open(image) as samples:
        wanted = bytes(samples.read(0))
        assert bytes(pickle.loads(pickle.dumps(samples)).read(0)) == wanted
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_first, [samples] * 2) == [wanted] * 2


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_the_mount_ends_with_its_process(odd: Path, tmp_path: Path, end: str) -> None:
    mksquashfs(odd, tmp_path / "i.sqsh")
    (tmp_path / "mounts").mkdir()
    program = (
        "import os, rankup\n"
        "samples = rankup.data.open('i.sqsh')\n"
        "assert samples.read(1)\n"
        f"print(samples.root, flush=True)\n{end}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "mounts")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == (-9 if end else 0)
    assert done.stderr == ""
    point = done.stdout.strip()
    assert point.startswith(str(tmp_path / "mounts"))
    until(lambda: not os.listdir(tmp_path / "mounts"))
    assert point not in Path("/proc/mounts").read_text()


def test_where_nothing_can_mount_it_says_how_to_unpack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = mksquashfs(fill(tmp_path / "tree", {"a/1": b"1"}), tmp_path / "i.sqsh")
    for name in ("mount", "rm"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UserError, match=r"is not installed.*unsquashfs -d FOLDER .*i\.sqsh"):
        rankup.data.open(image)


def test_what_is_no_image_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    needs_fuse()
    image = mksquashfs(fill(tmp_path / "tree", {"a/1": b"1" * 9000}), tmp_path / "i.sqsh")
    whole = image.read_bytes()
    for name, damaged in {
        "cut": whole[:100],
        "head": whole[:95],
        "version": whole[:28] + struct.pack("<H", 3) + whole[30:],
        "root": whole[:32] + struct.pack("<Q", 1 << 62) + whole[40:],
        "inodes": whole[:64] + struct.pack("<Q", 1 << 62) + whole[72:],
    }.items():
        path = tmp_path / f"{name}.sqsh"
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name}\.sqsh") as caught:
            rankup.data.open(path)
        assert "apt install" not in str(caught.value)  # with its tools the image is at fault
        assert name != "cut" or "cut.sqsh is damaged" in str(caught.value)


@pytest.mark.slow
def test_flipped_bytes_end_with_the_documented_error(odd: Path, tmp_path: Path) -> None:
    whole = mksquashfs(odd, tmp_path / "i.sqsh", "-b", str(BLOCK), "-noI").read_bytes()
    (inodes,) = struct.unpack_from("<Q", whole, 64)
    draw = random.Random(5)
    outcomes = {"read": 0, "refused": 0}
    for turn in range(60):
        changed = bytearray(whole)
        # Mostly where the structure is: the superblock, and all tables behind the data.
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            span = draw.choice(((0, 96), (inodes, len(whole)), (inodes, len(whole)), (96, inodes)))
            changed[draw.randrange(*span)] = draw.choice((0, 1, 255, draw.randrange(256)))
        image = tmp_path / f"{turn}.sqsh"
        image.write_bytes(changed)
        outcomes[_outcome(image)] += 1
    assert min(outcomes.values()) > 3  # else nothing was tried


def _outcome(image: Path) -> str:
    """Read all of an image; anything but the documented errors fails the test."""
    try:
        with rankup.data.open(image) as samples:
            for row in range(len(samples)):
                samples.read(row)
    except (UserError, OSError):
        return "refused"
    return "read"
