"""Private files are private from their first byte on, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankup.base import files
from rankup.base.files import write_atomic, write_json


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_its_owners_alone_already_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        seen.extend((_mode(path), path.stat().st_size) for path in tmp_path.iterdir())
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", watch)
    write_atomic(tmp_path / "env", "A=1\n", private=True)
    assert seen[0] == (0o600, 4), "the temporary file"
    assert {mode for mode, _ in seen} == {0o600}


def test_a_file_that_others_could_read_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("old")
    path.chmod(0o644)
    write_atomic(path, "new", private=True)
    assert (_mode(path), path.read_text()) == (0o600, "new")


def test_other_files_are_as_the_umask_says(tmp_path: Path) -> None:
    os.umask(0o027)
    write_atomic(tmp_path / "a", "x")
    assert _mode(tmp_path / "a") == 0o640
    write_json(tmp_path / "b", {}, private=True)
    assert _mode(tmp_path / "b") == 0o600
