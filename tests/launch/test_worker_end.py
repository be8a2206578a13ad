"""The processes of a node: what ends with what, and what is written down of a killed rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.launch import failure, worker


class _Asked(BaseException):
    pass


@pytest.mark.parametrize(
    ("variable", "number"), [("RANK", signal.SIGTERM), ("RANKUP_WORKER", signal.SIGKILL)]
)
def test_a_killed_crew_takes_its_workers_along_without_a_word_to_the_others(
    monkeypatch: pytest.MonkeyPatch, variable: str, number: int
) -> None:
    asked: list[int] = []

    def ask(signal_number: int) -> None:
        asked.append(signal_number)
        raise _Asked

    for name in ("RANK", "RANKUP_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(worker, "die_with_parent", ask)
    monkeypatch.setattr(sys, "argv", ["worker", "language-model"])
    with pytest.raises(_Asked):
        worker.main()
    assert asked == [number]


@pytest.mark.parametrize(("number", "noted"), [(signal.SIGKILL, [1]), (signal.SIGTERM, [])])
def test_a_job_that_lost_a_rank_has_a_note_of_its_signal(
    tmp_path: Path, number: signal.Signals, noted: list[int]
) -> None:
    """Of SIGTERM it has none: so ends a rank whose job ends."""
    (tmp_path / "log").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        f"import os\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), {number})\n"
    )
    command = Path(sys.executable).with_name("rankup-rank")
    options = ("--standalone", "--nproc-per-node=2", "--no-python", "--", command, script)
    done = subprocess.run(
        [command, "--agent", *options],
        env={**os.environ, "RANKUP_RUN_DIR": str(tmp_path), "SLURMD_NODENAME": "n7"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert "failed" not in done.stderr  # the job script says it, once for all nodes
    notes = failure.read_all(tmp_path / "log")
    assert [one.rank for one in notes] == noted
    assert {one.node for one in notes} <= {"n7"}
    assert all(number.name in one.message for one in notes)
