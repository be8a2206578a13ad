"""`rankup status --live`: in a real terminal, and pictures of any size."""

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
from typing import Any

import numpy as np
import psutil
import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from rankup.monitor.live import Run, picture, small
from rankup.monitor.newest import newest_nodes, newest_steps
from rankup.site import rundir
from rankup.slurm.job import Attempt

from ..conftest import RunRankup
from ..launch.handmade import make_run
from .traces import Trace, cpu_only, one_of_four, only_gpu, running

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
    # A minute ahead: on a busy machine nobody may look at once.
    later = time.time() + 60 - float(tables["host"][-1].partition(",")[0])
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


def test_it_shows_what_a_sampler_writes_in_a_terminal_of_any_size_until_ctrl_c(
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
    assert re.search(r"GPU 3 +░+ +0 %", text)
    assert "4 GPUs on 1 node" in text
    (run / "metrics.jsonl").write_bytes((full / "metrics.jsonl").read_bytes())
    screen.wait(r"step 1,761 · loss 2\.906")
    screen.wait(r"loss of the last [\d,]+ steps [▁-█]+")
    running().but(nodes=12, seconds=60, metrics=None).write(run)
    screen.wait("jrc0012")
    screen.tmux("resize-window", "-x", "60", "-y", "14")
    screen.wait(r"… \d+ more")
    screen.tmux("resize-window", "-x", "200", "-y", "60")
    screen.wait("jrc0012")
    screen.tmux("send-keys", "C-c")
    screen.wait("it returned 0")
    text = screen.tmux("capture-pane", "-p", "-S", "-")  # with what has left the screen above
    assert "step 1,761" in text  # the last picture stays
    screen.wait(r"(?m)^icanon")  # and the terminal is as it was


@pytest.mark.slow
def test_it_ends_with_the_run(tmp_path: Path, screen: Screen) -> None:
    run = _run(tmp_path, code=0, ended=rundir.now())
    one_of_four().but(seconds=300).write(run)
    screen.start(sys.executable, "-m", "rankup", "status", "--live", str(run))
    text = screen.wait("it returned 0")
    assert "COMPLETED" in text
    assert "ended; next: rankup report" in text


def test_without_a_terminal_it_prints_one_picture(tmp_path: Path, rankup_here: RunRankup) -> None:
    run = _run(tmp_path)
    full = running().but(nodes=1).write(tmp_path / "full")
    (run / "monitor").mkdir()
    _sampled_now(full, run)
    done = rankup_here(["status", "--live", run], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "GPU 3" in done.stdout


def test_a_run_in_one_line(tmp_path: Path) -> None:
    assert small(tmp_path) == ""
    trace = running().write(tmp_path)
    line = small(trace)
    assert re.fullmatch(
        r"step 1,761 · loss 2\.906 · 129,\d+ tokens/s · data wait 1 % · GPUs 9\d % 3\d\d W", line
    )
    # Of a run of days, too, only the ends are read.
    record = json.loads((trace / "metrics.jsonl").read_text().splitlines()[-1])
    with (trace / "metrics.jsonl").open("a") as out:
        out.writelines(json.dumps({**record, "step": n}) + "\n" for n in range(2000, 20_000))
        size = out.tell()
    before = psutil.Process().io_counters().read_chars
    assert small(trace).startswith("step 19,999 · ")
    assert psutil.Process().io_counters().read_chars - before < size / 4


def _attempt(**known: object) -> Attempt:
    base = {"job": "12", "state": "RUNNING", "words": "", "source": "", "live": True}
    return Attempt(**{**base, **known})  # type: ignore[arg-type]


def _texts(
    trace: Trace,
    folder: Path,
    width: int = 80,
    height: int = 24,
    later: float = 3.0,
    name: str = "train",
    **known: object,
) -> list[str]:
    """The lines of a picture of what lies in the folder, as a terminal of that size shows them."""
    run = Run("20251122-180000-abcd", name, _attempt(**known), 4000)
    now = trace.begin + trace.attempts[-1].end + later
    lines = picture(run, newest_nodes(folder), newest_steps(folder), now, width, height)
    assert len(lines) <= height
    console = Console(width=width, height=height, color_system=None, force_terminal=True)
    with console.capture() as captured:
        console.print(Group(*lines))
    texts = [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]
    assert len(texts) == len(lines)  # none is folded
    assert max(map(cell_len, texts)) <= width
    return texts


@pytest.mark.parametrize("nodes", [1, 30])
def test_it_fits_every_terminal(tmp_path: Path, nodes: int) -> None:
    trace = running().but(nodes=nodes)
    trace.write(tmp_path)
    for width, height in [(200, 60), (80, 24), (40, 10), (20, 4)]:
        lines = _texts(trace, tmp_path, width, height)
        if width >= 80:
            assert lines[1].startswith("step 1,761/4,000 · loss 2.906 · 129,")
            assert lines[3].startswith(f"{4 * nodes} GPUs on {nodes} node")
            assert lines[-1].endswith("Ctrl-C ends the view, the run goes on")


def test_of_many_gpus_the_least_used_come_first(tmp_path: Path) -> None:
    def one_idles(t: Any, gpu: Any, draw: Any) -> Any:
        return np.where(gpu == 4 * 41 + 1, 12, 95 + gpu % 4)

    trace = running().but(nodes=60, stays=(), seconds=120, silences=()).with_gpu(util=one_idles)
    trace.write(tmp_path)
    lines = _texts(trace, tmp_path)
    assert re.match(r"jrc0042 +GPU 1 +█+░+ +12 %", lines[4])
    assert lines[-2] == f"… {240 - (len(lines) - 6)} more, of 95 % and above"


def test_a_silent_node_is_said_to_be_silent(tmp_path: Path) -> None:
    trace = running().but(nodes=3)
    trace.write(tmp_path)
    for kind in ("host", "gpu"):
        for name in ("jrc0001", "jrc0003"):
            file = tmp_path / "monitor" / f"{name}.{kind}.csv"
            t, _, rest = file.read_text().splitlines()[-1].partition(",")
            with file.open("a") as out:
                out.writelines(f"{float(t) + 10 * k},{rest}\n" for k in range(1, 10))
    text = "\n".join(_texts(trace, tmp_path, later=93.0))
    assert re.search(r"jrc0002 +no sample for 1 min 3\d s", text)
    assert text.count("no sample") == 1


def test_nodes_without_gpus(tmp_path: Path) -> None:
    trace = cpu_only(3)
    trace.write(tmp_path)
    lines = _texts(trace, tmp_path)
    assert re.match(r"3 nodes · CPU 9\d %", lines[3])
    assert re.match(r"jrc0003 +CPU +█+░* +9\d %$", lines[6])


def test_how_long_it_runs_and_what_is_left(tmp_path: Path) -> None:
    trace = running()
    trace.write(tmp_path)
    asked = {"bill": {"minutes": 60}}
    lines = _texts(trace, tmp_path, started=trace.begin, asked=asked)
    assert lines[0].endswith("RUNNING for 15 min, 45 min left of its time limit")
    end = trace.begin + 600
    over = {"state": "FAILED", "live": False, "started": trace.begin, "ended": end}
    lines = _texts(trace, tmp_path, **over)
    assert lines[0].endswith("FAILED for 10 min")
    assert lines[-1].endswith("ended; next: rankup report 20251122-180000-abcd")


def test_losses_that_are_none_and_steps_done_again(tmp_path: Path) -> None:
    trace = (
        running()
        .but(nodes=1)
        .with_metrics(loss=lambda t, step, draw: np.where(step > 1700, np.nan, 3.0))
    )
    trace.write(tmp_path)
    assert "loss nan" in _texts(trace, tmp_path)[1]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1500, "loss": 2.0}\n{"step": 1501, "loss": 1.5}\n{"step": 15')
    steps = newest_steps(tmp_path)
    assert steps.number == 1501
    assert steps.losses[-3:] == [3.0, 2.0, 1.5]


def test_names_from_elsewhere_draw_nothing(tmp_path: Path) -> None:
    trace = running()
    trace.write(tmp_path)
    folder = tmp_path / "monitor"
    for kind in (".jsonl", ".host.csv", ".gpu.csv"):
        (folder / f"jrc0001{kind}").rename(folder / f"[red]\x1b[2J\u202e{kind}")
    lines = _texts(trace, tmp_path, name="\x1b]0;title\x07[bold]")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    assert "[bold]" in lines[0]
    assert any("[red]" in line for line in lines)


def test_lines_of_a_wrong_form_hurt_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "monitor"
    folder.mkdir()
    heads: list[dict[str, Any]] = [
        {"kind": "head", "t": "x", "gpus": 5, "usable": {}},
        {"kind": "head", "t": 1.0, "gpus": [{"memory": "x", "power_limit": -1}, 3]},
        {"t": 2.0, "gpu": [[None, True]], "host": "abc"},
        {"kind": "unheard of", "t": []},
    ]
    (folder / "n.jsonl").write_text("".join(json.dumps(record) + "\n" for record in heads))
    assert newest_nodes(tmp_path) == []
    trace = running().but(nodes=1)
    trace.write(tmp_path)
    (folder / "jrc0001.host.csv").write_text("t,cpu\nx,1\n2,x\n3\n4,1e999,5\n")
    (folder / "jrc0001.gpu.csv").write_text("t,gpu,util\n2,x,1\n3,0,nan\n3\n")
    steps: list[dict[str, Any]] = [
        {"step": True},
        {"step": 1, "loss": "x", "time": None},
        {"step": 2, "loss": 10**400, "x_per_s": "y", "time": 1e999},
        {"step": 3, "loss": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in steps))
    assert "step 3" in _texts(trace, tmp_path)[1]
    (folder / "jrc0001.host.csv").unlink()
    os.mkfifo(folder / "jrc0001.host.csv")  # which nobody waits for
    assert len(newest_nodes(tmp_path)) == 1
