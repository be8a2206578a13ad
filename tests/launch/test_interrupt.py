"""Ctrl-C: all ranks stop at a step, leave a checkpoint, and the run goes on from there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from rankup.site import rundir
from tests.conftest import RunRankup, TextFiles
from tests.pool import RankPool

from .live import TINY, live, losses, records
from .undisturbed import train

STEPS = 150
ENDLESS = 20000  # for a run that is not to come to its end, however fast its steps are
# Two threads for such small work only wait for each other on a busy machine.
ENV = {"OMP_NUM_THREADS": "1"}


def _args(text: TextFiles, out: Path, nproc: int = 2, steps: int = STEPS) -> list[str]:
    return ["run", "--nproc", str(nproc), "--out", str(out), *_recipe(text, steps)]


def _recipe(text: TextFiles, steps: int = STEPS) -> list[str]:
    recipe = ["--train", text.train, "--valid", text.valid, "--test", text.test, *TINY]
    length = ["--steps", steps, "--checkpoint-every", steps, "--valid-every", steps]
    return list(map(str, ["language-model", *recipe, *length]))


@pytest.fixture
def uninterrupted(ranks: RankPool, small_text: TextFiles, tmp_path: Path) -> dict[int, float]:
    """The losses of the run that nobody disturbs, on two ranks."""
    return losses(train(ranks, 2, tmp_path / "whole", _recipe(small_text)))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.slow),
    ],
)
def test_stop_and_go_on(
    run_rankup: RunRankup,
    small_text: TextFiles,
    tmp_path: Path,
    uninterrupted: dict[int, float],
    number: signal.Signals,
    code: int,
) -> None:
    out = tmp_path / "out"
    with live(_args(small_text, out), tmp_path, ENV) as run:
        run.until(lambda: len(records(out)) >= 10)
        run.process.send_signal(number)
        assert run.wait(90) == code, run.err
        run.nobody_left()
        lines = run.err.splitlines()
    done = records(out)[-1]["step"]
    assert 10 <= done < STEPS
    assert "asking the ranks to stop (once more ends them now)" in lines
    said = "" if number != signal.SIGUSR1 else ", to go on in a next life"
    assert f"stopped at step {done} of {STEPS}{said}" in lines
    assert lines[-1] == f"go on with: rankup run --resume {out}"
    assert "Traceback" not in "".join(lines)
    assert [p.name for p in (out / "checkpoints").iterdir()] == [f"step-{done:08d}"]
    assert not (out / "model-final.pt").exists()
    resumed = run_rankup(["run", "--nproc", "2", "--resume", out], timeout=200, env=ENV)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming at step {done} of {STEPS}" in resumed.stdout
    assert losses(out) == uninterrupted, "bit for bit"
    assert records(out)[-1]["final"] is True


def test_the_second_time_ends_it_now(small_text: TextFiles, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with live(_args(small_text, out, steps=ENDLESS), tmp_path, ENV) as run:
        ranks = run.ranks(2)
        run.until(lambda: len(records(out)) >= 5)
        ranks[1].suspend()  # so that the ranks cannot agree to stop
        run.process.send_signal(signal.SIGINT)
        run.until(lambda: "once more ends them now" in run.err)
        time.sleep(0.2)
        started = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        assert run.wait(10) != 0
        run.nobody_left(within=5)
        assert time.monotonic() - started < 8


@pytest.mark.slow
def test_the_run_is_found_by_the_name_that_was_printed(
    small_text: TextFiles, tmp_path: Path
) -> None:
    words = _args(small_text, tmp_path / "x", 1, ENDLESS)
    args = [word for word in words if word not in ("--out", f"{tmp_path}/x")]
    runs = tmp_path / "runs" / "language-model"
    with live(args, tmp_path, ENV) as run:
        out = run.until(lambda: runs.is_dir() and next(runs.glob("*/metrics.jsonl"), None)).parent
        run.until(lambda: len(records(out)) >= 5)
        run.process.send_signal(signal.SIGINT)
        assert run.wait(90) == 130
        assert run.err.splitlines()[-1] == f"go on with: rankup run --resume {out.name}"
    assert rundir.find(tmp_path / "runs", out.name) == out


def test_ctrl_c_in_a_terminal(small_text: TextFiles, tmp_path: Path) -> None:
    """Through a terminal, where the whole foreground group gets the signal; the bar is drawn.

    One rank is enough: that several stop at one step is seen above.
    """
    out = tmp_path / "out"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120)) if hasattr(termios, "tcsetwinsize") else None
    process = subprocess.Popen(
        [sys.executable, "-m", "rankup", *_args(small_text, out, 1, ENDLESS)],
        cwd=tmp_path,
        env={**os.environ, **ENV, "TERM": "xterm", "COLUMNS": "120"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    screen = ""
    asked = False
    deadline = time.monotonic() + 150
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.01)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # the terminal's end of file
                    break
                screen += data.decode(errors="replace")
            if not asked and len(records(out)) >= 10:
                os.write(ours, b"\x03")
                asked = True
        assert process.wait(10) == 130, screen
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "step " in screen
    assert f"/{ENDLESS}" in screen
    assert "━" in screen
    assert "loss " in screen
    assert "asking the ranks to stop" in screen
    assert f"rankup run --resume {out}" in " ".join(screen.split())
    assert "Traceback" not in screen
