"""A process that leaves its group waits for gloo's threads, whose names the kernel knows."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from pathlib import Path
import torch, torch.distributed as dist
from rankup.runtime.world import let_gloo_finish, setup
setup()
group = dist.new_group()  # kept, as a sharded model keeps it: its threads outlive the group
dist.all_reduce(torch.ones(10), group=group)
names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
print(sum("gloo" in name for name in names), let_gloo_finish())
"""


@pytest.mark.slow
def test_gloos_threads_have_the_name_that_is_looked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    threads, at_rest = done.stdout.split()
    assert int(threads) > 0
    assert at_rest == "True"
