"""What `rankup run` says of a script before it runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import ready
from rankup.site.rundir import Job
from tests.conftest import RunRankup

# One GPU: no process group, no part of the data for each rank.
SINGLE = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(1, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(list(range(10)), batch_size=2, shuffle=True)
for epoch in range(2):
    for batch in loader:
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def job(folder: Path, text: str) -> Job:
    path = folder / "train.py"
    path.write_text(text)
    return Job("a", "script", str(path), [], str(folder), {}, {})


def test_before_a_job_is_submitted(tmp_path: Path) -> None:
    single = job(tmp_path, SINGLE)
    with pytest.raises(UserError, match=r"not ready for 4 ranks:\n  error: .*train\.py:") as raised:
        ready.before_submit(single.kind, single.target, 4, wanted=True)
    lines = str(raised.value).splitlines()
    assert 4 <= len(lines) <= 7
    assert lines[-2].endswith(f"rankup check {tmp_path / 'train.py'}")
    assert lines[-1].endswith("--no-check submits it as it is")
    # One rank does it all.
    assert ready.before_submit(single.kind, single.target, 1, wanted=True) == []
    assert ready.before_submit(single.kind, single.target, 4, wanted=False) == []
    assert ready.before_submit("script", job(tmp_path, "print(1)\n").target, 4, wanted=True) == []
    broken = job(tmp_path, SINGLE + "def (\n")
    with pytest.raises(UserError, match=r"train\.py:13.*--no-check"):
        ready.before_submit(broken.kind, broken.target, 1, wanted=True)
    assert ready.before_submit(broken.kind, broken.target, 4, wanted=False) == []


def test_no_rank_starts_with_a_script_that_python_cannot_read(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    path = Path(job(tmp_path, SINGLE + "def (\n").target)
    done = rankup_here(["run", "--local", path])
    assert done.returncode == 2
    assert f"{path}:13: invalid syntax; no rank was started" in done.stderr
    assert not (tmp_path / "runs").exists()
    ran = rankup_here(["run", "--local", "--no-check", path])
    assert ran.returncode == 1
    assert "SyntaxError" in ran.stderr


def test_beside_a_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready.beside(job(tmp_path, SINGLE), 1, wanted=True)
    ready.beside(job(tmp_path, SINGLE), 2, wanted=False)
    ready.beside(job(tmp_path, SINGLE), 2, wanted=True)
    said, end = "", time.monotonic() + 120
    while "rankup check" not in said and time.monotonic() < end:
        said += capsys.readouterr().err
        time.sleep(0.05)
    assert said.count("rankup check") == 1
    assert said.startswith("error: ")
