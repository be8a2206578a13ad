"""What `sbcast` has brought to a node becomes its copy, once it is compared as any copy is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rankup.data.stage import place
from rankup.data.stage.staging import Copy, release, stage

from .conftest import Command
from .made import equal, flip, left, packed


def _send(home: Path, source: Path, number: int = 0) -> Path:
    """As the job script does: the folder with what has come."""
    folder = place.folder_of(home) / place.current(os.environ) / "sent"
    folder.mkdir(0o700, parents=True, exist_ok=True)
    folder.parent.parent.chmod(0o700)
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, folder / f"{number}-{path.name}")
    return folder


def test_the_files_are_moved_and_the_source_is_not_read(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    source = packed(tmp_path / "p")
    before = {name: (source / name).read_bytes() for name in ("train.bin", "val.bin")}
    folder = _send(home, source, 3)
    flip(source / "train.bin", 60_000)  # who read it would find it damaged
    copy: Copy = stage(source, reserve=0, sent=3)
    assert copy.checked
    assert {name: (copy.root / name).read_bytes() for name in before} == before
    assert not list(folder.glob("*.bin"))
    release()
    assert left(home) == []


@pytest.mark.parametrize("how", ["short", "missing", "nothing"])
def test_what_has_not_come_whole_is_read_from_the_source(
    tmp_path: Path, home: Path, command: Command, how: str
) -> None:
    source = packed(tmp_path / "p")
    if how != "nothing":
        folder = _send(home, source)
        if how == "short":
            os.truncate(folder / "0-val.bin", 100)
        else:
            (folder / "0-val.bin").unlink()
    code, said, errors = command("--sent", source, "--reserve", "0")
    assert code == 0, errors
    assert "each sample has the bytes that were packed" in said
    copy = place.copy_of(source, os.environ)
    assert copy is not None
    equal(source, copy.root)
    assert not list(home.rglob("sent/*")), "it would lack in the memory"


def test_what_came_wrong_is_not_used(tmp_path: Path, home: Path, command: Command) -> None:
    source = packed(tmp_path / "p")
    flip(_send(home, source) / "0-train.bin", 60_000)
    code, _, errors = command("--sent", source, "--reserve", "0")
    assert code == 2
    assert "not those that were packed" in errors
    assert place.copy_of(source, os.environ) is None
