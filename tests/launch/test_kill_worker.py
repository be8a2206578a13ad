"""One worker's end ends the job, and the log says why: every strategy."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import TextFiles

from .live import TINY, live, records


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_job_ends_and_says_who_was_killed(small_text: TextFiles, tmp_path: Path) -> None:
    run, victim = tmp_path / "run", 0
    files = [f"--{name}={getattr(small_text, name)}" for name in ("train", "valid", "test")]
    batch = ["--global-batch", "32", "--micro-batch", "1", "--steps", "100000"]
    words = ["--strategy", "local-sgd", "--valid-every", "10", "--checkpoint-every", "10"]
    with live(
        ["run", "--local", "--nproc", "3", "--out", run, "language-model", *files, *TINY, *batch,
         *words],
        tmp_path, {"OMP_NUM_THREADS": "1"},
    ) as job:  # fmt: skip
        job.until(lambda: len(records(run)) > 20)
        job.ranks(3)[victim].send_signal(signal.SIGKILL)
        assert job.wait(120) != 0
        job.nobody_left()
    assert f"rank {victim} on" in job.err
    assert "killed by SIGKILL" in job.err
    assert "go on with: rankup run --resume" in job.err
