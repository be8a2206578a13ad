"""A process that leaves its group waits for gloo's threads, whose names the kernel knows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rankup.runtime import gloo_threads

SCRIPT = """
import torch, torch.distributed as dist
from rankup.runtime import gloo_threads
from rankup.runtime.world import setup
setup()
group = dist.new_group()  # kept, as a sharded model keeps it: its threads outlive the group
dist.all_reduce(torch.ones(10), group=group)
stats = [(task / "stat").read_text() for task in gloo_threads._TASKS.iterdir()]
print(sum(gloo_threads._NAME[:15] in stat for stat in stats), gloo_threads.let_gloo_finish())
"""


def _tasks(folder: Path, **states: str) -> None:
    for number, (name, state) in enumerate(states.items()):
        (folder / str(number)).mkdir(exist_ok=True)
        (folder / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 1 0")


def test_gloos_threads_have_the_name_that_is_looked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    threads, at_rest = done.stdout.split()
    assert int(threads) > 0
    assert at_rest == "True"


def test_a_thread_that_runs_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_threads, "_TASKS", tmp_path)
    _tasks(tmp_path, python="R", pt_gloo_runloop="R")
    assert not gloo_threads.let_gloo_finish(0.05)
    rest = threading.Timer(0.2, _tasks, (tmp_path,), {"python": "R", "pt_gloo_runloop": "S"})
    begun = time.monotonic()
    rest.start()
    assert gloo_threads.let_gloo_finish(60)
    assert time.monotonic() - begun >= 0.2


def test_other_threads_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo_threads, "_TASKS", tmp_path)
    _tasks(tmp_path, python="R", loader="D", pt_gloo_runloop="S")
    assert gloo_threads.let_gloo_finish(60)


def test_nothing_is_waited_for_where_the_kernel_shows_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gloo_threads, "_TASKS", tmp_path / "none")
    assert gloo_threads.let_gloo_finish(60)
