"""Recordings play as if they were being made."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.monitor.collect.replay import Replay, replay
from tests.conftest import RunRankup

from .conftest import Samplers

_T = 1_700_000_000.0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Half a minute, with a torn line and a note."""
    lines = [
        json.dumps({"kind": "head", "v": 1, "node": "n1", "t": _T, "every": 2.0, "gpus": []}),
        *(
            json.dumps({"t": _T + 2 * n, "dt": 2.0 if n else None, "gpu": [[n, 3e10]]})
            for n in range(15)
        ),
        '{"t": 17',
        json.dumps({"kind": "note", "t": _T + 29, "code": "RK701", "text": "said"}),
        json.dumps({"kind": "end", "t": _T + 30, "why": "stop file"}),
    ]
    path = tmp_path / "recorded.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.usefixtures("same_signals")
def test_times_are_moved_and_all_else_is_kept(recording: Path, tmp_path: Path) -> None:
    began = time.time()
    assert replay(Replay(recording, tmp_path, 100.0, os.getppid())) == 0
    lines = (tmp_path / "monitor" / "n1.jsonl").read_text().splitlines()
    head, *samples = [json.loads(line) for line in lines if line != '{"t": 17']
    *samples, note, _ = samples
    # In time, also where the clock is a little behind.
    assert began - 1 <= head["t"] <= time.time() - 30 / 100 + 1
    assert head["every"] == pytest.approx(2 / 100, abs=1e-5)
    assert [one["gpu"] for one in samples] == [[[n, 3e10]] for n in range(15)]
    assert samples[-1]["t"] - head["t"] == pytest.approx(28 / 100, abs=0.01)
    assert samples[-1]["dt"] == pytest.approx(2 / 100, abs=1e-5)
    assert note["text"] == "said"
    assert '{"t": 17' in lines


def test_a_stop_file_ends_it(samplers: Samplers, recording: Path) -> None:
    player = samplers.start("--replay", str(recording), "--speed", "0.1")
    samplers.samples(1)
    (samplers.run / "monitor" / "stop").touch()
    assert player.wait(60) == 0
    assert len(samplers.lines("sample")) < 15


def test_what_is_no_recording_or_folder_is_named(
    rankup_here: RunRankup, recording: Path, tmp_path: Path
) -> None:
    recording.write_text('{"t": 1}\n')
    done = rankup_here(["monitor", tmp_path, "--replay", recording])
    assert done.returncode == 2
    assert "it has no head line" in done.stderr
    done = rankup_here(["monitor", tmp_path / "none"])
    assert done.returncode == 2
    assert "is no run directory" in done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a regular file"):
        replay(Replay(tmp_path / "pipe", tmp_path))


@pytest.mark.usefixtures("same_signals")
def test_a_long_recording_is_read_in_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with file.open("wb") as out:
        out.write(b'{"kind": "head", "t": 1, "node": "n1"}\n')
        out.write((b'{"t": 1, "x": "' + b"a" * 8000 + b'"}\n') * 1000)
    tracemalloc.start()
    try:
        assert replay(Replay(file, tmp_path, parent=os.getppid())) == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < file.stat().st_size / 4
    with (tmp_path / "monitor" / "n1.jsonl").open("rb") as out:
        assert sum(1 for _ in out) == 1001
