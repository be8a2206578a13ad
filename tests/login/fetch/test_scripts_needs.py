"""What a fetch writes down of a script lets its jobs start: no more is asked for than they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.launch import ready
from rankup.site import config
from rankup.site.rundir import Job

from ..payloads import SAMPLES
from ..stage import Stage
from ..web import Web

TRAIN = """
import os, random, sys, time, urllib.request
import torch
from model import net

if not os.path.exists("data/train.bin"):
    os.makedirs("data", exist_ok=True)
    urllib.request.urlretrieve(os.environ["DATA_SERVER"] + "/train.bin", "data/train.bin")
folder = f"runs/{time.time_ns()}"
os.makedirs(folder)
with open(folder + "/config.json", "w") as file:
    file.write("x" * random.randrange(1, 1000))
if not os.path.exists("init.pt"):
    torch.save(net.state_dict(), "init.pt")
if os.environ.get("FAIL"):
    raise ValueError("asked to")
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4))):
    net(x).sum().backward()
"""


@pytest.fixture
def script(stage: Stage, web: Web) -> Path:
    """A script that downloads, writes a configuration into a new folder, and its first weights."""
    web.put("/train.bin", SAMPLES)
    (stage.project / "model.py").write_text("import torch\nnet = torch.nn.Linear(4, 2)\n")
    path = stage.project / "train.py"
    path.write_text(TRAIN)
    return path


def _refused(script: Path) -> list[str]:
    """What `rankup run` says; UserError where it refuses."""
    job = Job("id", "script", str(script), [], str(script.parent), {}, {})
    return ready.require(config.load(script.parent), job, internet=False, allow_missing=False)


def test_a_job_needs_what_came_and_not_what_the_script_made(
    stage: Stage, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.project)
    got = stage.fetch(script)
    assert got.code == 0, got.said
    assert got.proved, got.said
    assert got.record is not None
    assert [item.name for item in got.record.needed] == ["train.bin"], got.record.items
    for path in (stage.project / "init.pt", *stage.project.glob("runs/*/config.json")):
        path.unlink(missing_ok=True)
    assert _refused(script) == []
    assert {Path(path).name for path in got.record.code} == {"train.py", "model.py"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_later_start_that_fails_takes_no_proof_away(
    stage: Stage, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stage.project)
    first = stage.fetch(script)
    again = stage.fetch(script, env={"FAIL": "1"})
    assert again.code == 1, again.said
    assert again.record == first.record
    assert "still counts" in again.err
    (stage.project / "model.py").write_text("import torch\nnet = torch.nn.Linear(4, 1)\n")
    [line] = _refused(script)
    assert "changed since it was fetched: model.py" in line
    again = stage.fetch(script, env={"FAIL": "1"})
    assert again.record is not None
    assert again.record.proof == "none"
    assert "ValueError" in again.record.note
    lines = _refused(script)
    assert "was not proved (the script ended with ValueError" in lines[0]
