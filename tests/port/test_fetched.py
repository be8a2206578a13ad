"""What is made or fetched in a script: by rank 0 first, unless ranks would wait for each other."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rankup.port.check import check
from rankup.port.rewrite.ported import Ported, port

HEAD = """import json
import os
import urllib.request

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

"""
TRAIN = """
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4)
"""
LOOP = """for x in loader:
    loss = net(x).mean()
    loss.backward()
    optimizer.step()
"""


def _ported(folder: Path, text: str) -> Ported:
    path = folder / "train.py"
    path.write_text(text)
    return port(path)


def test_a_training_that_is_done_once_is_not_rank_0s_alone(tmp_path: Path) -> None:
    """Rank 0 would exchange gradients with ranks that wait for it."""
    once = "if not os.path.exists('net.pt'):\n"
    once += textwrap.indent(LOOP + "torch.save(net.state_dict(), 'net.pt')\n", "    ")
    once += "    json.dump({}, open('history.json', 'w'))\n"
    text = _ported(tmp_path, HEAD + TRAIN + once).text
    assert "rank0_first" not in text
    assert "rankup.save0(net.state_dict()" in text
    fetched = once.replace("    for x", "    urllib.request.urlretrieve(url, 'x')\n    for x")
    ported = _ported(tmp_path, HEAD + TRAIN + fetched)
    assert [note.text for note in ported.left if "rank0_first" in note.text]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "if not os.path.exists(f'{i}.npy'):\n            np.save(f'{i}.npy', 0)",
            "its own samples",
        ),
        ("with open(f'{i}.txt', 'w') as f:\n            f.write('x')", "its own samples"),
        ("urllib.request.urlretrieve(self.urls[i], f'{i}.jpg')", "fetches its own samples"),
        ("fetch(self.urls[i])", "fetches its own samples"),
    ],
)
def test_what_each_sample_needs_is_left_and_named(method: str, said: str, tmp_path: Path) -> None:
    """Ranks have different samples: rank 0 has not what the others ask for."""
    helper = "def fetch(url):\n    urllib.request.urlretrieve(url, url[-9:])\n\n"
    own = f"class Data(Dataset):\n    def __getitem__(self, i):\n        {method}\n"
    own += "        return torch.zeros(2)\n"
    text = HEAD + (helper if "fetch(self" in method else "") + own + TRAIN + LOOP
    ported = _ported(tmp_path, text)
    assert [note.text for note in ported.left if said in note.text], ported.left
    body = ported.text.partition("class Data")[2].partition("net =")[0]
    assert "rankup.is_root" not in body
    assert "rankup.path0" not in body
    assert "rank0_first" not in ported.text


def test_a_training_step_in_another_file_may_be_written_over_several_lines(tmp_path: Path) -> None:
    step = "def fit(\n    net,\n    loader,\n    optimizer,\n):\n" + textwrap.indent(LOOP, "    ")
    (tmp_path / "engine.py").write_text(step)
    text = HEAD + "from engine import fit\n" + TRAIN + "fit(net, loader, optimizer)\n"
    (engine,) = _ported(tmp_path, text).modules
    assert "in rankup.shard(loader):" in engine.text


def test_an_optimizer_that_a_method_asks_itself_for(tmp_path: Path) -> None:
    model = """class Net(torch.nn.Module):
    def optimizer(self, n):
        if n:
            return torch.optim.SGD(self.parameters(), lr=0.1)
        return self.optimizer(n - 1)

net = Net()
optimizer = net.optimizer(3)
loader = DataLoader(data, batch_size=4)
"""
    assert "net = rankup.wrap(net)" in _ported(tmp_path, HEAD + model + LOOP).text


def test_weights_of_classes_are_noticed_and_literal_ones_left(tmp_path: Path) -> None:
    loss = "torch.nn.functional.cross_entropy(net(x), y, weight=torch.tensor([1.0, 2.0]))"
    loop = LOOP.replace("for x in", "for x, y in").replace("net(x).mean()", loss)
    path = tmp_path / "train.py"
    ported = _ported(tmp_path, HEAD + TRAIN + loop)
    assert "RK125" in {one.code for one in check([path], ["RK"])}
    assert [note for note in ported.left if "sum of their weights" in note.text]
    named = loop.replace("torch.tensor([1.0, 2.0])", "weights")
    text = _ported(tmp_path, HEAD + "weights = torch.ones(2)\n" + TRAIN + named).text
    assert "rankup.count(weights[y].sum())" in text


def test_no_rank_waits_in_what_rank_0_does_first(tmp_path: Path) -> None:
    """`rank0_first` in `rank0_first`, or a barrier: rank 0 would wait for ranks behind it."""
    own = (
        "class Pairs(Dataset):\n    def __init__(self, url):\n"
        "        urllib.request.urlretrieve(url, 'a.npy')\n        os.remove('old')\n"
        "        if not os.path.exists('b.npy'):\n            np.save('b.npy', 0)\n"
        "    def __getitem__(self, i):\n        return torch.zeros(2)\n\n"
        "class Net(torch.nn.Linear):\n    @classmethod\n    def from_pretrained(cls, name):\n"
        "        return transformers.AutoModel.from_pretrained(name)\n\n"
        "data = Pairs(url)\nother = Net.from_pretrained(name)\n"
    )
    text = _ported(tmp_path, HEAD + "import transformers\n" + own + TRAIN + LOOP).text
    assert "data = rankup.rank0_first(Pairs, url)\nother = Net.from_pretrained(name)\n" in text
    body = text.partition("class Pairs")[2].partition("class Net")[0]
    assert "rank0_first" not in body
    assert "barrier" not in body
    assert "rankup.rank0_first(transformers.AutoModel.from_pretrained, name)" in text


def test_what_is_fetched_here_and_elsewhere_is_named(tmp_path: Path) -> None:
    """Around the first place ranks would meet again in the function, which the second needs."""
    text = (
        "def get(url):\n    urllib.request.urlretrieve(url, 'a')\n    np.save('a.npy', 0)\n\n"
        "if not os.path.exists('a'):\n    get(url)\nget(other)\n"
    )
    ported = _ported(tmp_path, HEAD + text + TRAIN + LOOP).text
    assert "rankup.rank0_first(urllib.request.urlretrieve, url, 'a')" in ported
    assert "with rankup.rank0_first():" not in ported


def test_what_another_file_makes_and_gives_back_is_for_rank_0_first(tmp_path: Path) -> None:
    """The others would go on without the data under `if rankup.is_root_process():`."""
    (tmp_path / "vocabulary.py").write_text(
        "import json\nimport os\n\n\ndef words(path):\n    if os.path.exists(path):\n"
        "        return json.load(open(path))\n    found = ['a', 'b']\n    found.append('c')\n"
        "    OPENED.append(path)\n    json.dump(found, open(path, 'w'))\n    return found\n"
    )
    text = HEAD + "from vocabulary import words\n\nfound = words('words.json')\n" + TRAIN + LOOP
    notes = [note.text for note in _ported(tmp_path, text).left]
    assert [note for note in notes if "`rankup.rank0_first(words, …)`" in note], notes


def test_a_download_that_is_asked_of_a_class_of_the_script_is_rank_0s_first(tmp_path: Path) -> None:
    """What the class does with `download` is no literal; check found the call, and port did not."""
    own = (
        "class Pairs(torch.utils.data.Dataset):\n    def __init__(self, root, download):\n"
        "        self.data = torchvision.datasets.MNIST(root, download=download)\n\n"
        "pairs = Pairs('data', download=True)\n"
    )
    path = tmp_path / "train.py"
    text = HEAD + "import torch\nimport torchvision\n" + own + TRAIN + LOOP
    ported = _ported(tmp_path, text)
    assert "pairs = rankup.rank0_first(Pairs, 'data', download=True)\n" in ported.text
    line = text[: text.index("pairs =")].count("\n") + 1
    assert [one.place for one in check([path], ["RK"]) if one.code == "RK177"] == [
        f"{path}:{line}:9"
    ]


@pytest.mark.parametrize("drawn", [True, False])
def test_rank_0_alone_goes_over_no_loader_where_all_ranks_draw_next(
    drawn: bool, tmp_path: Path
) -> None:
    """Each pass over a loader draws: the next fold would be another one on rank 0."""
    (tmp_path / "pictures.py").write_text(
        "from torchvision.utils import save_image\n\n\ndef keep(loader, net):\n"
        "    for i, x in enumerate(loader):\n        save_image(x, f'{i}.png')\n"
    )
    fold = "order = torch.randperm(9)" if drawn else "order = range(9)"
    loop = f"for fold in range(3):\n    {fold}\n    loader = DataLoader(data[order], 4)\n"
    loop += textwrap.indent(LOOP, "    ") + "    keep(valid_loader, net)\n"
    text = (
        HEAD + "from pictures import keep\n" + TRAIN.replace("loader = Data", "valid_loader = Data")
    )
    ported = _ported(tmp_path, text + loop)
    assert ("if rankup.is_root_process(): keep(" in ported.text) is not drawn
    assert ("pictures.py:6" in " ".join(note.text for note in ported.left)) is drawn
