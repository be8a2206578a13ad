"""What an earlier pack has left: its output, its notes, its lock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rankup.base import lock
from rankup.data.pack.journal import Pack
from rankup.data.pack.source import Request

from .made import Running, held, made, request, run, tree


def _half_done(asked: Request, log: Path) -> None:
    """Leave a pack that was killed when some units were done."""
    pack = Running(asked, log, held(log.with_name("gate"), after=2))
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
    Path(f"{asked.out}.report.json").unlink()
    assert run(request(source, tmp_path, "hdf5", resume=True)) == 2
    assert "which says of what the pack is, cannot be read" in capsys.readouterr().err


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
    for path in Pack(first).names.values():
        shutil.copy(path, tmp_path)
    assert run(asked) == 2
    assert f"{part} is what another pack has left" in capsys.readouterr().err
    assert (part / "done").read_bytes() == before


def test_the_lock_is_released(tmp_path: Path, source: Path) -> None:
    asked = request(source, tmp_path, "tar")
    assert run(asked) == 0
    with lock.held(Path(asked.out), print, wait=False):
        pass
