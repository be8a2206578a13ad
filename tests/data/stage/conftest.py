"""A place for copies that is the test's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import pytest

from rankup.cli import main


class Command(Protocol):
    """The type of the fixture `command`."""

    def __call__(self, *words: str | Path) -> tuple[int, str, str]: ...


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`rankup stage` in this process, which saves its start: exit code, stdout, stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["rankup", "stage", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capfd.readouterr())

    return run


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies go: never into the machine's own /dev/shm, which other tests use too."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("RANKUP_STAGE_DIR", str(folder))
    monkeypatch.setenv("RANKUP_CACHE", str(folder / "cache"))
    for name in ("TMPDIR", "RANKUP_STAGE_JOB", "RANKUP_RUN_DIR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return folder
