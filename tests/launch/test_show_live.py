"""`rankup status --live` of folders that hold a recording alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rankup.launch import meant
from tests.conftest import RunRankup
from tests.monitor.traces import short

from .handmade import make_run


def test_a_folder_with_nothing_but_a_recording_is_shown(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    """As docs/monitor.md says."""
    old, again = short().write(tmp_path / "old"), tmp_path / "again"
    again.mkdir()
    assert not meant.bare(again)
    shutil.copytree(old / "monitor", again / "monitor")
    assert meant.bare(again)
    shown = rankup_here(["status", "--live", "again"], cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "jrc0001" in shown.stdout
    assert "4 GPUs on 1 node" in shown.stdout
    (again / "metrics.jsonl").write_bytes((old / "metrics.jsonl").read_bytes())
    assert "loss" in rankup_here(["status", "--live", again], cwd=tmp_path).stdout


def test_what_is_no_bare_recording(rankup_here: RunRankup, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    assert not meant.bare(run)
    empty = tmp_path / "empty"
    empty.mkdir()
    for nothing in (empty, tmp_path / "none"):
        assert not meant.bare(nothing)
        done = rankup_here(["status", "--live", nothing], cwd=tmp_path)
        assert done.returncode == 2
        assert "no run" in done.stderr


def test_steps_alone_are_a_recording(tmp_path: Path) -> None:
    line = {"step": 1, "loss": 2.0, "time": 1.7e9}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert meant.bare(tmp_path)


def test_a_picture_is_no_json(rankup_here: RunRankup, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    done = rankup_here(["status", run, "--live", "--json"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--live draws and --json prints" in done.stderr
