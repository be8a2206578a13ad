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
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankup.site import rundir
from tests.conftest import RunRankup, TextFiles
from tests.gallery import STEPS, WORDS, Gallery

from .live import TINY, live, losses, records

ENDLESS = 20000  # for a run that is not to come to its end, however fast its steps are
# Two threads for such small work only wait for each other on a busy machine.
ENV = {"OMP_NUM_THREADS": "1"}
# Rank 1 writes the checkpoint of step 20 only once the test says so: until then the run goes on to
# its next checkpoint at most.
HOLDS = """
import os, sys, time
def _hold(event, args):
    if event == "open" and "step-00000020" in str(args[0]) and os.environ.get("RANK") == "1":
        folder = os.environ["HOLD"]
        os.makedirs(os.path.join(folder, "held"), exist_ok=True)
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.02)
sys.addaudithook(_hold)
"""


class Terminal:
    """A command that has a terminal of its own, where the foreground group gets the signals."""

    def __init__(self, args: Sequence[str | Path], cwd: Path, env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, (40).to_bytes(2, sys.byteorder)
                    + (120).to_bytes(2, sys.byteorder) + bytes(4))  # fmt: skip
        self.screen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankup", *map(str, args)],
            cwd=cwd,
            env={**os.environ, **env, "TERM": "xterm", "COLUMNS": "120"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def type(self, key: bytes) -> None:
        os.write(self._ours, key)

    def read(self) -> bool:
        """Take what is there to be read; False at the terminal's end."""
        if select.select([self._ours], [], [], 0.02)[0]:
            try:
                self.screen += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_all_ranks_at_one_step_and_a_resume_is_bit_for_bit(
    run_rankup: RunRankup, gallery: Gallery, tmp_path: Path
) -> None:
    whole, out, hooks = gallery.run("2"), tmp_path / "out", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOLDS)
    files = [f"--{name}={gallery.texts / name}.txt" for name in ("train", "valid", "test")]
    words = ["run", "--local", "--nproc", "2", "--out", out, "language-model", *WORDS, *files]
    terminal = Terminal(words, tmp_path, {**ENV, "PYTHONPATH": str(hooks), "HOLD": str(tmp_path)})
    asked, limit = False, time.monotonic() + 300
    try:
        while terminal.read():
            assert time.monotonic() < limit, terminal.screen
            if not asked and (tmp_path / "held").exists():
                terminal.type(b"\x03")
                asked = True
            if "asking the ranks to stop" in terminal.screen:
                (tmp_path / "go").touch()
        assert terminal.process.wait(60) == 130, terminal.screen
    finally:
        (tmp_path / "go").touch()
        terminal.close()
    screen = terminal.screen
    done = records(out)[-1]["step"]
    assert 10 < done < STEPS
    for part in ("step ", f"/{STEPS}", "━", "loss ", f"stopped at step {done} of {STEPS}"):
        assert part in screen, screen
    assert f"go on with: rankup run --resume {out}" in " ".join(screen.split())
    assert "Traceback" not in screen
    assert (out / "checkpoints" / f"step-{done:08d}" / "COMPLETE").is_file()
    assert not (out / "model-final.pt").exists()
    resumed = run_rankup(["run", "--nproc", "2", "--resume", out], timeout=300, env=ENV)
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming at step {done} of {STEPS}" in resumed.stdout
    assert losses(out) == losses(whole), "bit for bit"
    assert records(out)[-1]["final"] is True


@pytest.mark.slow
def test_the_run_is_found_by_the_name_that_was_printed(
    small_text: TextFiles, tmp_path: Path
) -> None:
    recipe = ["--train", small_text.train, "--valid", small_text.valid, "--test", small_text.test]
    args = ["run", "--nproc", "1", "language-model", *recipe, *TINY, "--steps", str(ENDLESS)]
    runs = tmp_path / "runs" / "language-model"
    with live(args, tmp_path, ENV) as run:
        out = run.until(lambda: runs.is_dir() and next(runs.glob("*/metrics.jsonl"), None)).parent
        run.until(lambda: len(records(out)) >= 5)
        run.process.send_signal(signal.SIGUSR1)
        assert run.wait(300) == 138
        lines = run.err.splitlines()
    last = records(out)[-1]["step"]
    assert f"stopped at step {last} of {ENDLESS}, to go on in a next attempt" in lines
    assert lines[-1] == f"go on with: rankup run --resume {out.name}"
    assert rundir.find(tmp_path / "runs", out.name) == out
