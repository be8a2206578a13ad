"""`rankup port --strategy fsdp`: what it writes, and why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.ported import port
from tests.pool import RankPool

from .running import CASES, compare

INPUTS = sorted((CASES / "fsdp").glob("*.in.py"))
SCRIPT = """import copy, torch
from torch.utils.data import DataLoader
from torch.amp import GradScaler

class Net(torch.nn.Sequential):
    def parts(self, x):
        return self[0](x)

net = Net(torch.nn.Linear(2, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(data, batch_size=4, shuffle=True):
    loss = net(x).mean()
    loss.backward()
    optimizer.step()
seen = 0
with torch.no_grad():
    for x in DataLoader(data, batch_size=4):
        seen += (net(x) > 0).sum().item()
torch.save(net.state_dict(), "net.pt")
"""


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name.removesuffix(".in.py"))
def test_a_case_becomes_what_lies_beside_it(path: Path) -> None:
    ported = port(path, strategy="fsdp")
    out = path.with_name(path.name.replace(".in.py", ".out.py"))
    assert ported.text.encode() == out.read_bytes()
    assert not ported.left
    assert not check([out])


def test_what_the_other_refusals_change_is_split_as_it_stands(tmp_path: Path) -> None:
    text = _ported(tmp_path, SCRIPT)
    assert "net = Net(torch.nn.Linear(2, 1))\n" in text, "the whole model stays off the GPU"
    assert "net, optimizer = rankup.parallelize(lambda: net, lambda net: torch.optim" in text
    assert 'rankup.save_full_model(net, "net.pt")' in text
    assert 'methods=("parts",)' in _ported(tmp_path, SCRIPT.replace("net(x) >", "net.parts(x) >"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seen = 0", "average = copy.deepcopy(net)", r":16: .*deepcopy.* is given the model"),
        ("seen = 0", "torch.save(net, 'net.pt')", r"torch.save.* save net.state_dict\(\)"),
        ("seen = 0", "net = torch.compile(net)", "changed behind its optimizer"),
        ("seen = 0", "print(net[0](x))", "a part of the model"),
        ("seen = 0", "print(net.head(x))", "goes past the forward"),
        ("seen = 0", "print(net.head.weight)", "a parameter is used by itself"),
        ("seen = 0", "for p in net.parameters(): p.data *= 2", "one by one"),
        ("seen = 0", "other = net", "second name"),
        ("seen = 0", "net.load_state_dict(state)", "straight from a file"),
        ("seen = 0", "scaler = GradScaler()", "GradScaler"),
        ("seen = 0", "torch.save(optimizer.state_dict(), 'o.pt')", "the optimizer's state"),
        ("net.state_dict()", "{'weights': net.state_dict()}", "not saved alone"),
        ("torch.optim.SGD", "Lion", "not torch's"),
        ("(net.parameters(), lr", "(weights, lr", "not made of net.parameters"),
        ("torch.no_grad()", "open('log')", "torch.no_grad"),
        ("seen += (net(x) > 0).sum().item()", "seen.append(net(x))", "batch by batch"),
        ("seen = 0", "more = torch.optim.SGD(net.parameters(), lr=1.0)", "second optimizer"),
    ],
)
def test_what_a_split_model_cannot_do_is_refused_with_the_place(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    script = SCRIPT.replace("lr=0.1)", "lr=0.1)\n", 1).replace(old, new)
    if new.startswith("(weights"):
        script = script.replace("optimizer =", "weights = list(net.parameters())\noptimizer =")
    assert script != SCRIPT
    with pytest.raises(UserError, match=says) as caught:
        _ported(tmp_path, script)
    assert "--strategy fsdp: " in str(caught.value)


def _ported(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return port(path, strategy="fsdp").text


@pytest.mark.slow
def test_split_models_train_as_on_one_gpu(ranks: RankPool, tmp_path: Path) -> None:
    compare(ranks, INPUTS, tmp_path, (2, 3), strategy="fsdp")
