"""`rankup port` verifies its port: the verdict stands first, and at the head of the port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankup.port.rewrite.command import port_file
from rankup.port.rewrite.ported import port
from rankup.port.verify import command, judge
from rankup.port.verify.protocol import Journal, RankEnd, Seen
from tests.conftest import RunRankup

from .handmade import ended

SCRIPT = """#!/usr/bin/env python
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} done")
torch.save(model.state_dict(), "model.pt")
"""
SAME = "the same run on 1, 2 and 3 ranks; not seen: evaluation (none reached)"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def _port(script: Path, verdict: str, *, in_place: bool = False, force: bool = False) -> str:
    return port_file(
        script,
        batch="global",
        in_place=in_place,
        diff=False,
        sync_bn=False,
        force=force,
        judge=lambda _: verdict,
    )


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_verdict_stands_first(
    end: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_bytes(SCRIPT.replace("\n", end).encode())
    assert _port(script, "differs: the loss") == "differs: the loss"
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "verdict: differs: the loss"
    assert "rankup verify train.py train_dist.py" in out[-1].replace(f"{script.parent}/", "")
    lines = script.with_name("train_dist.py").read_bytes().decode().split(end)
    assert lines[:2] == ["#!/usr/bin/env python", "# rankup verify: differs: the loss"]
    # A port of which nothing but the verdict is another was not edited.
    long = f"not proved: {'a reason ' * 30}"
    _port(script, long)
    _port(script, "the same run on 1, 2 and 3 ranks")
    text = script.with_name("train_dist.py").read_bytes().decode()
    assert text.replace(f"# rankup verify: the same run on 1, 2 and 3 ranks{end}", "") == (
        port(script).text.replace("\r\n", "\n").replace("\n", end)
    )


def test_a_verdict_of_several_lines_is_one_comment(script: Path) -> None:
    _port(script, f"differs: {'something ' * 30}")
    lines = script.with_name("train_dist.py").read_text().splitlines()
    assert lines[1].startswith("# rankup verify: differs: something")
    assert lines[2].startswith("#   something")
    assert max(map(len, lines[:5])) <= 100


def test_without_torch_nothing_is_run(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert str(judge(port(script))) == "not proved: torch is not here"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"error": "no", "missing": "wandb"}, "package: wandb is not installed in this Python"),
        ({"error": "x\nFileNotFoundError: 'a.csv'"}, "data: FileNotFoundError: 'a.csv'"),
        ({"error": "SystemExit: 2", "code": 2}, "arguments: train.py does not run without some"),
        ({"error": "ValueError: 3"}, "train.py itself does not come to its end here, on the CPU"),
    ],
)
def test_what_is_lacking_is_named(event: dict[str, Any], why: str) -> None:
    journal = Journal(({"event": "end", "code": 1, "time": 1.0, **event},))
    seen = Seen(ended("original", RankEnd(1, False)), (journal,))
    with pytest.raises(command.NotProved, match=f"not proved: {why}"):
        command._must_train(seen, Path("train.py"))
    asks = Journal(({"event": "connect", "host": "example.org"}, *journal.events))
    if "ValueError" in event["error"]:
        with pytest.raises(command.NotProved, match=r"data: train\.py asks example"):
            command._must_train(Seen(seen.outcome, (asks,)), Path("train.py"))


def test_a_batch_for_each_gpu_is_another_run(script: Path) -> None:
    ported = port(script, batch="per-gpu")
    assert str(judge(ported, "per-gpu")).startswith("not proved: with --batch per-gpu it is")


def test_what_takes_too_long_is_not_proved(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_SECONDS", 0.0)
    assert str(judge(port(script))).startswith("not proved: time: ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_way(
    script: Path, rankup_here: RunRankup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the original and in its place: what is compared with is what was there before."""
    monkeypatch.setattr(command, "_SECONDS", 600.0)  # the machine may be busy
    done = rankup_here(["port", "train.py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1] == f"verdict: {SAME}"
    made = script.with_name("train_dist.py")
    assert made.read_text().splitlines()[1].endswith(SAME)
    assert rankup_here(["port", "--no-verify", "train.py"]).returncode == 0
    assert "rankup verify" not in made.read_text()
    ported = port(script, in_place=True)
    assert str(judge(ported)) == SAME
    script.write_text(SCRIPT.replace("batch_size=8, shuffle=True", "batch_size=8"))
    assert str(judge(ported)).startswith("differs: ")
