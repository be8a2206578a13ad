"""Recordings play as if they were being made."""

from __future__ import annotations

import json
import os
import signal
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


def test_times_are_moved_and_all_else_is_kept(samplers: Samplers, recording: Path) -> None:
    began = time.time()
    player = samplers.start("--replay", str(recording), "--speed", "15")
    assert player.wait(120) == 0
    (head,) = samplers.lines("head")
    assert began <= head["t"] <= time.time() - 30 / 15, "it plays in time"
    assert head["every"] == pytest.approx(2 / 15, abs=1e-5)
    samples = samplers.lines("sample")
    assert [one["gpu"] for one in samples] == [[[n, 3e10]] for n in range(15)]
    assert samples[-1]["t"] - head["t"] == pytest.approx(28 / 15, abs=0.01)
    assert samples[-1]["dt"] == pytest.approx(2 / 15, abs=1e-5)
    assert [one["text"] for one in samplers.lines("note")] == ["said"]
    assert '{"t": 17\n' in samplers.file.read_text()


def test_a_stop_file_ends_it(samplers: Samplers, recording: Path) -> None:
    player = samplers.start("--replay", str(recording))
    samplers.samples(1)
    (samplers.run / "monitor" / "stop").touch()
    assert player.wait(60) == 0
    assert len(samplers.lines("sample")) < 15


def test_what_is_no_recording_is_named(
    run_rankup: RunRankup, recording: Path, tmp_path: Path
) -> None:
    recording.write_text('{"t": 1}\n')
    done = run_rankup(["monitor", tmp_path, "--replay", recording])
    assert done.returncode == 2
    assert "it has no head line" in done.stderr


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a regular file"):
        replay(Replay(tmp_path / "pipe", tmp_path))


def test_a_long_recording_is_read_in_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with file.open("wb") as out:
        out.write(b'{"kind": "head", "t": 1, "node": "n1"}\n')
        for _ in range(32):
            out.write((b'{"t": 1, "x": "' + b"a" * 1000 + b'"}\n') * 1000)
    tracemalloc.start()
    try:
        assert replay(Replay(file, tmp_path, parent=os.getppid())) == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert most < file.stat().st_size / 4
    with (tmp_path / "monitor" / "n1.jsonl").open("rb") as out:
        assert sum(1 for _ in out) == 32_001


def test_the_command_plays_too(run_rankup: RunRankup, recording: Path, tmp_path: Path) -> None:
    done = run_rankup(["monitor", tmp_path, "--replay", recording, "--speed", "1000"])
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "monitor" / "n1.jsonl").exists()


def test_the_command_names_a_folder_that_is_none(run_rankup: RunRankup, tmp_path: Path) -> None:
    done = run_rankup(["monitor", tmp_path / "none"])
    assert done.returncode == 2
    assert "is no run directory" in done.stderr
