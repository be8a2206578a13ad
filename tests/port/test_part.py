"""What is made of a rank's part of the batches is followed to who sees it, and said once there."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.check import check_python
from rankup.port.rewrite.ported import port
from rankup.script.source import from_bytes

SCRIPT = """\
import numpy as np
import matplotlib.pyplot as plt
import rankup
import torch
from rankup import print0
from torch import nn
from torch.utils.data import DataLoader
from torchvision.utils import save_image


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    def mean(self):
        return self.total / self.count


def draw(pictures):
    save_image(pictures, "pictures.png")


def score(out, y):
    return (out.argmax(1) == y).float().mean().item()


def forgotten(loader):
    for x, y in rankup.shard(loader):
        print0(x.mean())


rankup.setup()
model = rankup.wrap(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fixed_noise = torch.randn(8, 4)
history, meter, table, best = [], Meter(), {{}}, 0.0
for epoch in range(2):
    for step, (x, y) in enumerate(rankup.shard(DataLoader(data, batch_size=8, shuffle=True))):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        {backward}
        optimizer.step()
        {inside}
    {behind}
"""


def remarks(inside: str, behind: str, backward: str = "loss.backward()") -> list[str]:
    text = SCRIPT.format(inside=inside, behind=behind, backward=backward)
    found = check_python(from_bytes(Path("train.py"), text.encode()))
    return [one.message.split(":")[0] for one in found if one.code == "RK121"]


@pytest.mark.parametrize(
    ("inside", "behind", "names"),
    [
        ("print0(step, loss.item())", "pass", ["loss"]),
        ("pass", "acc = score(out, y)\n    print0(f'accuracy {acc:.3f}')", ["acc"]),
        ("history.append(out)", "np.save('h.npy', np.stack(history))", ["history"]),
        ("table['last'] = x", "torch.save(table, 'table.pt')", ["table"]),
        ("table['last'] = x", "print0(table['last'])", ["table['last']"]),
        ("meter.update(loss.item(), len(x))", "print0(meter.mean())", ["this"]),
        ("pass", "draw(out[:8])", ["pictures"]),
        ("pass", "n = x.shape[0]\n    rankup.save0(model(torch.ones(n, 4)), 'made.pt')", ["n"]),
        ("pass", "plt.plot(out.detach())\n    plt.savefig('a.png')", ["out"]),
        ("first, *others = x, y", "print0(others)", ["others"]),
        ("if loss < best: best, when = loss, step", "print0('best at', when)", ["when"]),
        # One remark for a place, whatever many ways lead there.
        ("both = [x, y]; print0(both, x, y)", "pass", ["both, x, y"]),
    ],
)
def test_every_place_that_is_given_a_part_has_one_remark(
    inside: str, behind: str, names: list[str]
) -> None:
    assert remarks(inside, behind) == names


@pytest.mark.parametrize(
    ("inside", "behind", "backward"),
    [
        ("pass", "made = model(fixed_noise)\n    save_image(made, 'made.png')", "loss.backward()"),
        ("made = model(fixed_noise); save_image(made, 'made.png')", "pass", "loss.backward()"),
        ("print0(rankup.batch_mean(loss.item()))", "pass", "loss.backward()"),
        ("loss = rankup.batch_mean(loss.item()); print0(loss)", "pass", "loss.backward()"),
        ("print0(loss.item())", "print0(loss)", "rankup.backward(loss)"),
        ("history.append(loss.item())", "print0(sum(history))", "rankup.backward(loss)"),
        ("history.append(x)", "print0(rankup.gather(history))", "loss.backward()"),
        ("table['last'], table['step'] = x, step", "print0(table['step'])", "loss.backward()"),
        ("table['last'] = x", "table['last'] = 0\n    print0(table)", "loss.backward()"),
        ("print0(x.dtype, x.shape[1:], x.size(1), step)", "pass", "loss.backward()"),
        ("pass", "out = fixed_noise\n    print0(out)", "loss.backward()"),
        ("pass", "torch.save(model.state_dict(), 'model.pt')", "loss.backward()"),
        ("print(rankup.setup().rank, loss.item())", "pass", "loss.backward()"),
    ],
)
def test_no_remark_on_what_all_ranks_have(inside: str, behind: str, backward: str) -> None:
    assert remarks(inside, behind, backward) == []


def test_a_loss_is_whole_behind_its_backward_alone() -> None:
    assert remarks("loss = out.mean(); print0(loss)", "pass", "rankup.backward(loss)") == ["loss"]
    assert remarks("print0(out.mean())", "pass", "rankup.backward(loss)") == ["out"]
    kept = "rankup.backward(loss, retain_graph=True)"
    assert remarks("print0(loss.item())", "print0(loss)", kept) == ["loss", "loss"]
    assert remarks("print0(loss)", "pass", "rankup.backward(loss, retain_graph=False)") == []


PLAIN = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(20, 4), torch.randint(0, 3, (20,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {inside}
{behind}
"""


@pytest.mark.parametrize(
    ("inside", "behind", "name"),
    [
        ("pass", "share = (out.argmax(1) == y).float().mean().item()\nprint(share)", "share"),
        ("history.append(out.detach())", "np.save('h.npy', torch.cat(history))", "history"),
        ("pass", "torch.save({'x': x, 'out': out}, 'last.pt')", "out"),
        ("pass", "print(loss.item())", ""),  # whole behind rankup.backward
    ],
)
def test_port_says_what_stays_of_a_part(
    tmp_path: Path, inside: str, behind: str, name: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN.format(inside=inside, behind=behind))
    notes = [note for note in port(script).left if "part" in note.text]
    if not name:
        assert not notes
        return
    (note,) = [note for note in notes if name in note.text.partition(":")[0]]
    line = script.read_text().splitlines()[note.line - 1]
    assert line == behind.splitlines()[-1]  # of the original
