"""`rankup stage` as a user types it, with the mistakes that users make."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.data.inspect import show
from rankup.data.stage import staging
from rankup.data.stage.staging import listed
from rankup.site import mounts

from ...conftest import RunRankup
from ..pack.made import request, run, tree
from .conftest import Command
from .made import equal, flip, left, packed


@pytest.fixture
def photos(tmp_path: Path, data_root: Path | None) -> Path:
    """A pack of real photos; of generated files where there are none."""
    folder = tmp_path / "source"
    if data_root is not None:
        real = sorted((data_root / "imagenet-sample").rglob("*.JPEG"))[:60]
        for path in real:
            copied = folder / path.parent.name / path.name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
    else:
        tree(folder, 60, 100_000)
    asked = request(folder, tmp_path, "hdf5")
    assert run(asked) == 0
    return Path(asked.out)


def test_stage_list_and_release(
    photos: Path,
    home: Path,
    run_rankup: RunRankup,
    command: Command,
) -> None:
    done = run_rankup(["stage", photos.name, "--reserve", "1MB"], cwd=photos.parent)
    assert done.returncode == 0, done.stderr
    assert "each sample has the bytes that were packed: " in done.stdout
    copy = Path(done.stdout.split(": ")[-1].strip())
    equal(photos, copy)
    assert [row["job"] for row in listed()] == ["by hand"]
    code, said, _ = command(photos, "--json")
    (told,) = json.loads(said)
    assert (code, told["path"], told["shared"]) == (0, str(copy), True)
    assert told["size"] == copy.stat().st_size
    code, said, _ = command("--list")
    assert said.startswith(f"{photos}: ready, ")
    assert "is removed" in command("--release", photos)[1]
    assert left(home) == ["by-hand"]
    command("--release")
    assert left(home) == []
    assert "has nothing staged here" in command("--release")[1]
    assert command("--list")[1] == "nothing is staged on this node\n"


def test_what_is_inspected_is_the_source_itself(tmp_path: Path) -> None:
    root = packed(tmp_path / "p")
    staging.stage(root, reserve=0)
    assert show(str(root), extract=str(tmp_path / "sound")) == 0
    before = (root / "train.bin").stat()
    flip(root / "train.bin", 60_000)
    os.utime(root / "train.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert show(str(root), verify=True) == 1
    assert show(str(root), extract=str(tmp_path / "damaged")) == 1


MISTAKES = [
    (["nothing.h5"], "no file or folder"),
    ([], "name the FILE"),
    (["source"], "`rankup pack "),
    (["out.h5", "--reserve", "much"], "--reserve 'much' is no size"),
    (["out.h5", "--to", "/no/such/folder"], "is no folder"),
    (["out.h5", "--list"], "is about all copies on this node: leave away out.h5"),
    (["--list", "--release"], "different things"),
    (["out.h5", "--reserve", "900TB"], "kept for the job's processes: 900 TB"),
    (["out.h5.index.npz"], "open .*out.h5 instead"),
]


def test_mistakes_are_said(
    photos: Path, monkeypatch: pytest.MonkeyPatch, home: Path, command: Command
) -> None:
    # The place is taken for memory.
    monkeypatch.setattr(mounts, "IN_MEMORY", (mounts.kind_of(home),))
    monkeypatch.chdir(photos.parent)
    monkeypatch.delenv("RANKUP_RUN_DIR", raising=False)
    for words, match in MISTAKES:
        code, _, errors = command(*words)
        assert (code, "Traceback" in errors) == (2, False), errors
        assert re.search(match, errors), errors
    assert "(--reserve SIZE)" in command("out.h5", "--reserve", "900TB")[2]
    monkeypatch.setenv("RANKUP_RUN_DIR", str(photos.parent))  # in a job's script
    assert "(--stage-reserve SIZE)" in command("out.h5", "--reserve", "900TB")[2]


_UNTIL_ENDED = """
import sys, time
from rankup.data.stage import command, copying
def compare(plan, root, watch):
    print("begun", flush=True)
    time.sleep(1000)
copying.compare = compare
command.stage(command.Request((sys.argv[1],), reserve="0"))
"""


def test_a_job_that_is_ended_leaves_nothing_begun(tmp_path: Path, home: Path) -> None:
    root = packed(tmp_path / "p")
    process = subprocess.Popen(
        [sys.executable, "-c", _UNTIL_ENDED, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert left(home) != []
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert left(home) == []
