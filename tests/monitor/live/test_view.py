"""`rankup status --live` in a real terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rankup.monitor.live.view import small
from rankup.site import rundir

from ...conftest import RunRankup
from ...launch.handmade import make_run
from ..traces import one_of_four, only_gpu, running

_PATIENCE = 120.0  # seconds, on a busy machine


class Screen:
    """A terminal of 80 x 24 that a program runs in."""

    def __init__(self, folder: Path) -> None:
        self._server = f"rankup-test-{uuid.uuid4().hex[:8]}"
        self._folder = folder

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._server, "-f", os.devnull, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout

    def start(self, *words: str) -> None:
        """Run a program in it; what it returns is said when it ends."""
        path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
        line = f"{shlex.join(words)}; echo it returned $?; stty -a | grep -wo -e -icanon -e icanon"
        size = ["-x", "80", "-y", "24"]
        shell = ["env", f"PYTHONPATH={path}", "bash", "-c", f"{line}; exec sleep 600"]
        self.tmux("new-session", "-d", *size, "-c", str(self._folder), shlex.join(shell))

    def shown(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, pattern: str) -> str:
        """What is shown once the pattern is there."""
        end = time.monotonic() + _PATIENCE
        while not re.search(pattern, text := self.shown()):
            assert time.monotonic() < end, f"no {pattern!r} in:\n{text}"
            time.sleep(0.2)
        return text

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._server, "kill-server"], capture_output=True)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    yield screen
    screen.close()


def _sampled_now(full: Path, run: Path) -> None:
    """Write a node's recording into a run, as if its last sample were of this moment."""
    journal = full / "monitor" / "jrc0001.jsonl"
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    tables = {
        kind: (full / "monitor" / f"jrc0001.{kind}.csv").read_text().splitlines()
        for kind in ("gpu", "host")
    }
    later = time.time() - float(tables["host"][-1].partition(",")[0])
    for kind, (header, *rows) in tables.items():
        fields = [row.partition(",") for row in rows]
        moved = [f"{float(t) + later:.3f},{rest}" for t, _, rest in fields]
        (run / "monitor" / f"jrc0001.{kind}.csv").write_text("\n".join([header, *moved, ""]))
    (run / "monitor" / journal.name).write_text(
        "".join(json.dumps({**record, "t": record["t"] + later}) + "\n" for record in records)
    )


def _run(folder: Path, **more: object) -> Path:
    """A run directory of a local run that nobody holds."""
    path = make_run(folder / "runs")
    job = rundir.read(path)
    began = {"started": rundir.now(), "nproc": 4, "node": "elsewhere", **more}
    rundir.write(path, replace(job, attempts=[began]))
    (path / "log" / "run.out").write_text("rankup: a line of the log\n")
    return path


def test_it_shows_what_a_sampler_writes_in_a_terminal_of_any_size_until_q(
    tmp_path: Path, screen: Screen
) -> None:
    run = _run(tmp_path)
    trace = running().but(nodes=1, gpu=only_gpu(2))
    full = trace.write(tmp_path / "full")
    # A parent (one that uses readline, say) may have exported the size of long ago.
    size = ["env", "COLUMNS=80", "LINES=24"]
    screen.start(*size, sys.executable, "-m", "rankup", "status", "--live", str(run))
    screen.wait("no sample of a node yet")
    (run / "monitor").mkdir()
    _sampled_now(full, run)
    text = screen.wait(r"GPU 2 +█+░* +9\d %  3\d\d/400 W")
    assert re.search(r"GPU 3 +░+ +0 %.*nobody uses it", text)
    assert "4 GPUs on 1 node" in text
    assert "rankup: a line of the log" in text
    (run / "metrics.jsonl").write_bytes((full / "metrics.jsonl").read_bytes())
    screen.wait(r"step 1,761 · loss 2\.906")
    running().but(nodes=12, seconds=60, metrics=None).write(run)
    text = screen.wait("12 nodes")
    assert "more nodes" not in text
    screen.tmux("resize-window", "-x", "60", "-y", "14")
    screen.wait(r"… \d+ more nodes")
    screen.tmux("resize-window", "-x", "80", "-y", "24")
    screen.wait("jrc0012")
    screen.tmux("send-keys", "q")
    screen.wait("it returned 0")
    text = screen.tmux("capture-pane", "-p", "-S", "-")  # with what has left the screen above
    assert "step 1,761" in text  # the last picture stays
    screen.wait(r"(?m)^icanon")  # and the terminal is as it was


@pytest.mark.slow
def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path, screen: Screen) -> None:
    run = _run(tmp_path)
    running().but(seconds=60).write(run)
    screen.start(sys.executable, "-m", "rankup", "status", "--live", str(run))
    screen.wait("2 nodes")
    screen.tmux("send-keys", "C-c")
    screen.wait("it returned 0")
    screen.wait(r"(?m)^icanon")


@pytest.mark.slow
def test_it_ends_with_the_run(tmp_path: Path, screen: Screen) -> None:
    run = _run(tmp_path, code=0, ended=rundir.now())
    one_of_four().but(seconds=300).write(run)
    screen.start(sys.executable, "-m", "rankup", "status", "--live", str(run))
    text = screen.wait("it returned 0")
    assert "COMPLETED" in text
    assert "GPUs 1-3 of jrc0001 unused" in text
    assert "ended; next: rankup report" in text


def test_without_a_terminal_it_prints_one_picture(tmp_path: Path, rankup_here: RunRankup) -> None:
    run = _run(tmp_path)
    running().but(nodes=1, seconds=60).write(run)
    done = rankup_here(["status", "--live", run], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "GPU 3" in done.stdout


def test_a_run_in_one_line(tmp_path: Path) -> None:
    assert small(tmp_path) == ""
    trace = running().write(tmp_path)
    line = small(trace)
    assert re.fullmatch(
        r"step 1,761 · loss 2\.906 · 129,\d+ tokens/s · GPUs 9\d % 3\d\d W · data wait 1 %", line
    )
    # Of a run of days, too, only the ends are read.
    record = json.loads((trace / "metrics.jsonl").read_text().splitlines()[-1])
    with (trace / "metrics.jsonl").open("a") as out:
        out.writelines(json.dumps({**record, "step": n}) + "\n" for n in range(2000, 20_000))
        size = out.tell()
    before = psutil.Process().io_counters().read_chars
    assert small(trace).startswith("step 19,999 · ")
    assert psutil.Process().io_counters().read_chars - before < size / 4
