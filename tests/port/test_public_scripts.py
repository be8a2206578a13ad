"""`tools/public_scripts.py`: a table of what becomes of scripts in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
GOOD = """import sys
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor

net = torch.nn.Linear(784, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=float(sys.argv[1]))
for x, y in DataLoader(MNIST("data", transform=ToTensor()), batch_size=64, shuffle=True):
    loss = torch.nn.functional.cross_entropy(net(x.flatten(1)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("learnt", open("names.txt").read().count("ka"))
torch.save(net.state_dict(), "net.pt")
"""
REFUSED = GOOD.replace("torch.optim.SGD", "torch.optim.LBFGS")
LIST = [
    {
        "repo": "one/good",
        "path": "src/train.py",
        "verdict": "auto",
        "args": "0.1",
        "data": {"names.txt": "words"},
        "edits": {"train.py": [["learnt", "done"]]},
    },
    {"repo": "one/steps", "path": "train.py", "verdict": "refuse", "remark": "as expected"},
    {"repo": "one/away", "path": "train.py", "verdict": "auto"},
]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import public_scripts  # type: ignore[import-not-found]

    return public_scripts


def _folder(root: Path) -> list[str]:
    for name, text in (("good/src", GOOD), ("steps", REFUSED)):
        (root / "one" / name).mkdir(parents=True)
        (root / "one" / name / "train.py").write_text(text)
    (root / "list.json").write_text(json.dumps(LIST))
    return [str(root), "--list", str(root / "list.json"), "--rows", str(root / "rows.json")]


def _rows(root: Path) -> dict[str, dict[str, Any]]:
    return {row["script"]: row for row in json.loads((root / "rows.json").read_text())}


def test_what_is_refused_or_missing_has_its_row(tool: ModuleType, tmp_path: Path) -> None:
    """And the page keeps all else."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end -->\nafter\n")
    arguments = _folder(tmp_path)
    for only in ("steps", "away"):
        assert tool.main([*arguments, "--only", only, "--into", str(page)]) == 0
    rows = _rows(tmp_path)
    assert rows["one/steps/train.py"]["outcome"] == "refused"
    assert "LBFGS" in rows["one/steps/train.py"]["left"]
    text = page.read_text()
    assert text.startswith("before\n<!-- table -->\n| script ")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| one/away/train.py | auto | not there |" in text
    assert "old" not in text


def test_the_list_names_each_script_once_and_what_there_is(tool: ModuleType) -> None:
    found = json.loads((TOOLS / "public_scripts.json").read_text(encoding="utf-8"))
    assert len({(one["repo"], one["path"]) for one in found}) == len(found) == 35
    kinds = {kind for one in found for kind in one.get("data", {}).values()}
    assert kinds <= set(tool.drawn_data.KINDS)
    beside = {file for one in found for file in one.get("beside", ())}
    assert all((TOOLS / "stand_ins" / "beside" / file).is_file() for file in beside)


@pytest.mark.slow
def test_a_good_script_is_ported_and_proved(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With stand-ins, data and edits of the list; a second time nothing is run."""
    arguments = [*_folder(tmp_path), "--only", "good"]
    assert tool.main(arguments) == 0
    row = _rows(tmp_path)["one/good/src/train.py"]
    assert (row["outcome"], row["verified"][:20]) == ("ported", "the same run on 1, 2")
    assert "RK111" in row["findings"]
    capsys.readouterr()
    assert tool.main(arguments) == 0
    assert "running the port" not in capsys.readouterr().err
    assert _rows(tmp_path)["one/good/src/train.py"] == row
