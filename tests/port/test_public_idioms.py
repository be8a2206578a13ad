"""What public scripts do that the cases do not: each in a few lines of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.ported import Ported, port

HEAD = """import torch
from torch.utils.data import DataLoader
"""
STEP = """    loss = net(x).mean()
    loss.backward()
    optimizer.step()
"""
MADE = """net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def _ported(folder: Path, text: str, **beside: str) -> Ported:
    for name, other in beside.items():
        (folder / f"{name}.py").write_text(other)
    path = folder / "train.py"
    path.write_text(text)
    return port(path)


def _codes(ported: Ported) -> set[str]:
    """What `check` says of the port."""
    path = ported.target
    path.write_text(ported.text)
    return {one.code for one in check([path], ["RK"])}


def test_a_bar_with_a_name_is_followed_to_a_loader_from_another_file(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom tqdm import tqdm\nfrom utils import get_loaders\n\n"
        "def train(loader, net, optimizer):\n    bar = tqdm(loader)\n    for x in bar:\n"
        + STEP.replace("    ", "        ")
        + "        bar.set_postfix(loss=loss.item())\n\n"
        + MADE
        + "first, second = get_loaders()\ntrain(first, net, optimizer)\n"
    )
    made = "DataLoader(torch.randn(8, 2), batch_size=4)"
    utils = HEAD + f"def get_loaders():\n    return {made}, {made}\n"
    ported = _ported(tmp_path, text, utils=utils)
    assert "bar = tqdm(rankup.shard(loader))\n" in ported.text
    assert ported.text.count("rankup.shard(") == 1
    assert "rankup.backward(loss)" in ported.text


def test_a_sum_that_is_divided_by_the_batch_under_its_own_name_is_a_mean(tmp_path: Path) -> None:
    made = (
        "def gap(out):\n    value = out.sum() - out[:, 0].sum()\n    value = value / out.size(0)\n"
    )
    loop = "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + STEP
    text = (
        HEAD + made + "    return value\n\n" + MADE + loop.replace("net(x).mean()", "gap(net(x))")
    )
    ported = _ported(tmp_path, text)
    assert "rankup.backward(loss)" in ported.text
    assert "rankup.wrap(net)" in ported.text


def test_a_penalty_that_is_added_to_a_sum_under_its_own_name_is_refused(tmp_path: Path) -> None:
    """The gradient of the sum is added up over the ranks, and the penalty's must not be."""
    made = "loss = net(x).sum()\n    loss += sum((p**2).sum() for p in net.parameters())"
    step = STEP.replace("loss = net(x).mean()", made)
    assert step != STEP
    loop = "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + step
    with pytest.raises(UserError, match="adds up over the samples in one part and not in another"):
        _ported(tmp_path, HEAD + MADE + loop)


KEEPS = """import torch

def keep(state, path="net.pt"):
    print("saving")
    torch.save(state, path)
"""
SHOWS = """
def show(net, path):
    net.eval()
    with torch.no_grad():
        torch.save(net(torch.ones(2)), path)
    net.train()
"""


def test_rank_0_alone_calls_what_writes_in_another_file(tmp_path: Path) -> None:
    """And all ranks leave the model in the mode in which that does; else there is a remark."""
    loop = "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + STEP
    text = HEAD + "from helper import keep, show\n" + MADE + loop
    calls = text + 'keep(net.state_dict())\nshow(net, "out.pt")\n'
    ported = _ported(tmp_path, calls, helper=KEEPS + SHOWS)
    assert "if rankup.is_root_process(): keep(net.state_dict())\n" in ported.text
    assert 'if rankup.is_root_process(): show(net, "out.pt")\nnet.train()\n' in ported.text
    assert not ported.left
    assert "RK141" not in _codes(ported)
    for unlike in (
        SHOWS.replace("    net.train()\n", ""),
        SHOWS.replace("torch.no_grad()", "torch.enable_grad()"),
        SHOWS.replace("    net.eval()", "    net.eval()\n    net.weight = None"),
    ):
        ported = _ported(tmp_path, calls, helper=KEEPS + unlike)
        assert "\nshow(net" in ported.text
        [note] = ported.left
        line = 10 + unlike.count("weight")
        assert f"helper.py:{line}; let rank 0 alone" in note.text
        assert "RK141" in _codes(ported)
    assert not _ported(tmp_path, text + "keep(net)\n", helper=KEEPS).left  # pickled as it was
    again = text + 'keep(net.state_dict())\ntorch.load("net.pt")\n'
    assert "rankup.barrier()\ntorch.load(" in _ported(tmp_path, again, helper=KEEPS).text


def test_an_evaluation_sample_by_sample_stays_whole(tmp_path: Path) -> None:
    """All of a batch of one sample would be on one rank, and rank 0 would print nothing."""
    text = (
        HEAD
        + "\ndef loaders(data):\n"
        + "    first = DataLoader(data, batch_size=4, shuffle=True)\n"
        + "    second = DataLoader(data, batch_size=1)\n    return first, second\n\n"
        + "train, valid = loaders(torch.randn(8, 2))\n"
        + MADE
        + "for x in train:\n"
        + STEP
        + "total = 0\nwith torch.no_grad():\n    for x in valid:\n"
        + "        total += net(x).sum().item()\n        print(total)\n"
    )
    ported = _ported(tmp_path, text)
    assert "for x in rankup.shard(train):" in ported.text
    assert "for x in valid:" in ported.text
    assert "batches are of one sample" in ported.left[0].text
    larger = text.replace("batch_size=1)", "batch_size=2)").replace(
        "total = 0", "net.eval()\ntotal = 0"
    )
    sharded = _ported(tmp_path, larger.replace("        print(total)\n", ""))
    assert "for x in rankup.shard(valid, train=False):" in sharded.text
    assert "rankup.total(total)" in sharded.text


def test_ranks_wait_for_the_tokenizer_that_rank_0_makes(tmp_path: Path) -> None:
    made = (
        'if not os.path.exists("t.json"):\n    tokenizer = Tokenizer(WordLevel())\n'
        '    tokenizer.save("t.json")\n'
        'else:\n    tokenizer = Tokenizer.from_file("t.json")\n'
    )
    text = (
        "import os\nfrom tokenizers import Tokenizer\n" + HEAD + made + MADE
        + "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + STEP
    )  # fmt: skip
    ported = _ported(tmp_path, text)
    assert "with rankup.rank0_first():\n    if not os" in ported.text
    assert "\n    else:\n        tokenizer" in ported.text
    assert "RK146" in {one.code for one in check([ported.path], ["RK"])}
    assert "RK146" not in _codes(ported)


def test_a_data_set_that_draws_itself_anew_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    data = (
        "import numpy as np\nimport torch\n\nclass Pairs(torch.utils.data.Dataset):\n"
        "    def draw(self):\n        self.items = np.random.randint(9, size=8)\n\n"
        "    def __len__(self):\n        return 8\n"
    )
    text = (
        HEAD + "import pairs\n" + MADE + "loader = DataLoader(pairs.Pairs(), batch_size=4)\n"
        "loader.dataset.draw()\nfor x in loader:\n" + STEP
    )
    ported = _ported(tmp_path, text, pairs=data)
    assert "RK110" in {one.code for one in check([ported.path], ["RK"])}
    assert "RK110" not in _codes(ported), "rankup.setup gives all ranks one random state"


SIMILAR = (
    HEAD
    + MADE
    + "for a, b in DataLoader(pairs, batch_size=4):\n"
    + "    out = torch.cat([net(a), net(b)])\n"
    + "    loss = torch.mm(out, out.t().contiguous()).exp().mean()\n"
    + "    loss.backward()\n    optimizer.step()\n"
)


def test_samples_compared_with_each_other_are_seen_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r":7: .*contrastive"):
        _ported(tmp_path, SIMILAR)
    places = {one.code: one.place for one in check([tmp_path / "train.py"], ["RK"])}
    assert places["RK124"].endswith("train.py:7:12")
    weights = SIMILAR.replace("out.t()", "net.weight.t()")
    assert "rankup.wrap(net)" in _ported(tmp_path, weights).text
    assert "RK124" not in {one.code for one in check([tmp_path / "train.py"], ["RK"])}


def test_a_contrastive_criterion_is_told_from_a_network_of_that_name(tmp_path: Path) -> None:
    text = SIMILAR.replace("torch.mm(out, out.t().contiguous()).exp().mean()", "criterion(out)")
    text = text.replace(
        "net = torch.nn.Linear(2, 1)", "net = SupConNet()\ncriterion = SupConLoss()"
    )
    (tmp_path / "train.py").write_text(text)
    found = [one.place for one in check([tmp_path / "train.py"], select=["RK124"])]
    assert [place.rpartition("train.py:")[2] for place in found] == ["4:13"]


CUT = (
    "import torch\n"
    + MADE
    + "\ndef batch(data, i):\n    return data[i:i + 5]\n\n"
    + "state = None\nfor step, i in enumerate(range(0, len(data), 5)):\n"
    + "    x, state = net(batch(data, i), state)\n"
    + "    x.mean().backward()\n    optimizer.step()\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CUT, r":11: .*batches that are cut by hand; .* where a state goes on from batch to batch"),
        (CUT.replace("net(batch(data, i)", "net(data"), "sees all data at once"),
        ("import gym\n" + CUT.replace("x, state = net", "x = envs.step(1)\n    x = net"),
         r":11: .*reinforcement learning"),
    ],
)  # fmt: skip
def test_why_there_is_nothing_to_deal_is_said_at_its_line(
    text: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        _ported(tmp_path, text)


def test_a_terminal_that_may_be_missing_is_no_finding(tmp_path: Path) -> None:
    loop = MADE + "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + STEP
    asks = "width = int(os.popen('stty size', 'r').read().split()[1])\n"
    path = tmp_path / "train.py"
    for text, found in ((asks, 1), (f"try:\n    {asks}except Exception:\n    width = 80\n", 0)):
        path.write_text("import os\n" + HEAD + text + loop)
        assert len(check([path], select=["RK176"])) == found


FORWARD = """import torch

class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)

    def forward(self, a, b):
        first, second = self.net(a), self.net(b)
        {product}
        return torch.nn.functional.cross_entropy(logits, torch.arange(len(a)))
"""
PAIRED = (
    HEAD
    + "import mine.losses\n"
    + "net = mine.losses.Pairs()\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    + "for a, b in DataLoader(pairs, batch_size=4):\n"
    + STEP.replace("net(x).mean()", "net(a, b)")
)


@pytest.mark.parametrize(
    ("product", "refused"),
    [
        ("logits = first @ second.t()", True),
        ("logits = torch.einsum('nc,mc->nm', first, second)", True),
        ("logits = first @ second.transpose(1, 2)", False),
        ("logits = torch.einsum('bic,bjc->bij', first, second)", False),
        ("logits = first @ self.net.weight.t()", False),
    ],
)
def test_a_loss_in_a_models_forward_in_another_file(
    product: str, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "losses.py").write_text(FORWARD.format(product=product))
    if refused:
        with pytest.raises(UserError, match=r"train\.py:7: .*contrastive.*losses\.py:10"):
            _ported(tmp_path, PAIRED)
    else:
        assert "rankup.wrap" in _ported(tmp_path, PAIRED).text
    assert ("RK124" in {one.code for one in check([tmp_path / "train.py"], ["RK"])}) is refused


LOADED = HEAD + "from helper import batches\n" + MADE + "for x in batches():\n" + STEP


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("from torchtext.data import BucketIterator\n"
         "def batches():\n    return BucketIterator(data, batch_size=8)\n",
         r":6: .*torchtext iterator .*helper\.py:3"),
        ("from torchtext.legacy import data\n"
         "def batches():\n    a, b = data.BucketIterator.splits((x, y))\n    return a\n",
         r":6: .*torchtext iterator"),
        ("from torchdata.datapipes.iter import IterableWrapper\n"
         "def batches():\n    pipe = IterableWrapper(names)\n    return pipe.map(f).batch(8)\n",
         r":6: .*a pipe has no positions"),
        ("from torch.utils.data import DataLoader, IterableDataset\n"
         "class Lines(IterableDataset):\n    pass\n"
         "def batches():\n    return DataLoader(Lines(), batch_size=8)\n",
         r":6: .*a data set that is a stream has no positions"),
        ("from torch.utils.data import DataLoader\nclass Lines:\n"
         "    def __getitem__(self, index):\n        return self.file.readline()\n"
         "def batches():\n    return DataLoader(Lines(), batch_size=8)\n",
         r":6: .*a `__getitem__` that goes by its index"),
        ("from torch.utils.data import DataLoader\nclass Episodes:\n    pass\n"
         "def batches():\n    return DataLoader(data, batch_sampler=Episodes(5, 1))\n",
         r":6: .*Episodes chooses what is together in a batch"),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded_is_refused_wherever_it_is_made(
    made: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says):
        _ported(tmp_path, LOADED, helper=made)


@pytest.mark.parametrize(
    ("collate", "said"),
    [
        ("lambda batch: torch.cat([x for x in batch])", True),
        ("lambda batch: torch.stack([row for x in batch for row in x])", True),
        ("lambda batch: torch.stack([torch.cat([x, rest]) for x in batch])", False),
        ("lambda batch: torch.cat([x for x in batch], dim=1).T", False),
    ],
)
def test_a_mean_over_rows_of_which_samples_have_some_is_said(
    collate: str, said: bool, tmp_path: Path
) -> None:
    made = f"loader = DataLoader(data, batch_size=4, collate_fn={collate})\n"
    [*notes] = _ported(tmp_path, HEAD + MADE + made + "for x in loader:\n" + STEP).left
    rows = [one.line for one in notes if "rows that samples are joined of (train.py:5)" in one.text]
    assert rows == [8] * said


def test_a_loss_that_a_callback_reads_is_of_the_whole_batch(tmp_path: Path) -> None:
    trainer = HEAD + "class Trainer:\n    def fit(self, net, optimizer, then):\n"
    trainer += "        for x in DataLoader(data, batch_size=4):\n"
    trainer += "".join(
        f"        {line}\n" for line in STEP.replace("loss", "self.loss").splitlines()
    )
    text = "import torch\nfrom trainer import Trainer\n" + MADE
    text += "def show(trainer):\n    print(trainer.loss.item())\n\n"
    text += "Trainer().fit(net, optimizer, show)\n"
    ported = _ported(tmp_path, text, trainer=trainer + "            then(self)\n")
    notes = [one.text for file in ported.files for one in file.left]
    assert not notes
    assert "rankup.backward(self.loss)" in ported.modules[0].text


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('stamp = f"run-{datetime.datetime.now():%H%M}"', True),
        ('stamp = "run-" + str(int(time.time()))', True),
        ("stamp = str(uuid.uuid4())", True),
        ('took = f"{time.time() - start:.1f} s"', False),
        ("start = time.time()", False),
        ("for _ in range(2):\n    stamp = time.strftime('%H')", False),
    ],
)
def test_check_and_port_know_the_same_names_of_the_time(
    line: str, named: bool, tmp_path: Path
) -> None:
    text = HEAD + "import datetime, time, uuid\nstart = 0\n" + line + "\n" + MADE
    ported = _ported(tmp_path, text + "for x in DataLoader(torch.randn(8, 2)):\n" + STEP)
    assert ("rankup.broadcast(" in ported.text) is named
    assert ("RK147" in {one.code for one in check([ported.path], ["RK"])}) is named
    assert "RK147" not in _codes(ported)


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("os.mkdir(path)", "os.makedirs(path, exist_ok=True)"),
        ("os.makedirs(path, exist_ok=False)", "os.makedirs(path, exist_ok=True)"),
        ("Path(path).mkdir()", "Path(path).mkdir(exist_ok=True)"),
        ("try: os.mkdir(path)\nexcept OSError: pass", ""),
        ("try:\n    Path(path).unlink()\nexcept OSError:\n    pass",
         "    if rankup.is_root_process(): Path(path).unlink()\n"),
    ],
)  # fmt: skip
def test_check_and_port_know_the_same_races(line: str, becomes: str, tmp_path: Path) -> None:
    text = HEAD + "import os\nfrom pathlib import Path\n" + line + "\n" + MADE
    ported = _ported(tmp_path, text + "for x in DataLoader(torch.randn(8, 2)):\n" + STEP)
    assert (becomes or line) in ported.text
    assert ("RK145" in {one.code for one in check([ported.path], ["RK"])}) is bool(becomes)
    assert "RK145" not in _codes(ported)


def test_packages_are_found_from_the_root_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    for folder in ("tools", "src/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/lib/__init__.py").write_text("from .files import *\n")
    (tmp_path / "src/lib/files.py").write_text(KEEPS)
    loop = "for x in DataLoader(torch.randn(8, 2), batch_size=4):\n" + STEP
    text = HEAD + "from lib import keep\n" + MADE + loop + "keep(net.state_dict())\n"
    ported = _ported(tmp_path / "tools", text)
    assert "if rankup.is_root_process(): keep(net.state_dict())\n" in ported.text
    found = [one for one in check([ported.path], ["RK"]) if one.code == "RK141"]
    assert ["files.py:5" in one.message and "train.py" in one.place for one in found] == [True]
    assert "RK141" not in _codes(ported)


MAKES = """import torch
import torchvision

def get_data(path):
    return torchvision.datasets.MNIST(path, download=True)

def prepare(path):
    torch.save({}, path)

if __name__ == "__main__":
    torch.save({}, "a.pt")
"""


def test_what_another_file_fetches_and_what_the_script_never_comes_to(tmp_path: Path) -> None:
    text = HEAD + "from helper import get_data\n" + MADE + "data = get_data('data')\n"
    loop = "for x in DataLoader(data, batch_size=4):\n" + STEP
    ported = _ported(tmp_path, text + loop, helper=MAKES)
    assert "data = rankup.rank0_first(get_data, 'data')\n" in ported.text
    codes = {one.code for one in check([ported.path], ["RK"])}
    assert "RK177" in codes
    assert "RK141" not in codes, "the script runs neither prepare() nor what is for another start"
    assert "RK177" not in _codes(ported)


@pytest.mark.parametrize(
    "lines",
    [
        "each = (out[:, 0] - y).abs()\n    return (each * mask).sum() / mask.sum()",
        "return F.cross_entropy(out, y, ignore_index=0)",
    ],
)
def test_a_mean_over_some_targets_in_another_file_is_said(lines: str, tmp_path: Path) -> None:
    helper = f"import torch.nn.functional as F\n\n\ndef of(out, y, mask):\n    {lines}\n"
    loop = "for x, y in DataLoader(data, batch_size=4, shuffle=True):\n" + STEP.replace(
        "net(x).mean()", "of(net(x), y, (y != 0).float())"
    )
    ported = _ported(tmp_path, HEAD + "from helper import of\n" + MADE + loop, helper=helper)
    assert "call rankup.count" in ported.text


FOREVER = """class Forever:
    def __init__(self, loader):
        self.loader, self.batches = loader, iter(loader)

    def __next__(self):
        try:
            return next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            return next(self.batches)
"""
AHEAD = """class Ahead:
    def __init__(self, loader):
        self.batches = iter(loader)
        self.load()

    def load(self):
        self.batch = next(self.batches, None)

    def next(self):
        batch = self.batch
        self.load()
        return batch
"""
OTHER = "valid = DataLoader(more, batch_size=4)\n"


def test_the_loader_within_an_iterator_of_the_scripts_own_is_sharded(tmp_path: Path) -> None:
    made = "train = Forever(DataLoader(data, batch_size=4))\nvalid = Forever(valid)\n"
    loop = "for step in range(9):\n    x = next(train)\n" + STEP + "    y = next(valid)\n"
    text = HEAD + "from helper import Forever\n" + MADE + OTHER + made + loop
    ported = _ported(tmp_path, text, helper=FOREVER)
    assert "Forever(rankup.shard(DataLoader(data, batch_size=4)))" in ported.text
    assert ported.text.count("rankup.shard") == 1


def test_an_iterator_that_draws_ahead_is_refused(tmp_path: Path) -> None:
    """The weights of ranks are those of the batch drawn last, which is not yet trained on."""
    loop = (
        "def test(loader):\n    it = Ahead(loader)\n    x = it.next()\n"
        "    while x is not None:\n        net(x)\n        x = it.next()\n"
        "it = Ahead(DataLoader(data, batch_size=4))\nx = it.next()\n"
        "while x is not None:\n" + STEP + "    x = it.next()\ntest(valid)\n"
    )
    with pytest.raises(UserError, match=r"train\.py:13: not ported: this iterator draws a batch"):
        _ported(tmp_path, HEAD + "from helper import Ahead\n" + MADE + OTHER + loop, helper=AHEAD)


def test_a_log_that_another_file_opens_by_pathlib_is_rank_0s(tmp_path: Path) -> None:
    helper = "from pathlib import Path\n\nclass Log:\n    def __init__(self, path):\n"
    helper += "        self.file = Path(path).open('a')\n"
    loop = "for x in DataLoader(data, batch_size=4):\n" + STEP
    text = HEAD + "from helper import Log\nlog = Log('log.csv')\n" + MADE + loop
    assert "log = Log(rankup.path0('log.csv'))" in _ported(tmp_path, text, helper=helper).text


@pytest.mark.parametrize(
    ("path", "sql", "said"),
    [
        ("runs.db", "insert into runs values (1)", True),
        ("runs.db", "select * from runs", False),
        (":memory:", "insert into runs values (1)", False),
    ],
)
def test_tables_that_every_rank_would_change(
    path: str, sql: str, said: bool, tmp_path: Path
) -> None:
    rows = f"import sqlite3\nrows = sqlite3.connect('{path}')\nrows.execute('{sql}')\n"
    loop = "for x in DataLoader(data, batch_size=4):\n" + STEP
    ported = _ported(tmp_path, HEAD + rows + MADE + loop)
    assert ("every rank writes this file" in ported.text) is said


def test_a_sum_that_an_object_returns_is_summed(tmp_path: Path) -> None:
    helper = "class Elbo:\n    def __call__(self, out, x):\n"
    helper += "        each = ((out - x) ** 2).sum(dim=1)\n        return each.sum(), len(each)\n"
    loop = "elbo = Elbo()\nfor x in DataLoader(data, batch_size=4):\n"
    loop += STEP.replace("loss = net(x).mean()", "loss, n = elbo(net(x), x)")
    ported = _ported(tmp_path, HEAD + "from helper import Elbo\n" + MADE + loop, helper=helper)
    assert "rankup.backward(loss, summed=True)" in ported.text


SET = "# rankup: the order of a set is another on each rank"
IN_ORDER = "\nfor x in DataLoader(data, batch_size=4):\n" + STEP


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("ids = {w: i for i, w in enumerate(set(words))}", SET),
        ("names = list(set(words))", SET),
        ("names = list(set(words))\nnames.sort()", ""),
        ("names = set()\nnames.update(words)\nids = {w: i for i, w in enumerate(names)}", SET),
        ("names = set()\nfor w in words:\n    names.add(w)\nids = list(names)", SET),
        ("names = set()\nfor i in range(9):\n    names.add(i)\nids = list(names)", ""),
        ("names = set()\nfor i, w in enumerate(words):\n    names.add(i)\nids = list(names)", ""),
        ("names = set()\nfor i in range(9):\n    names.add((i, 0))\nids = list(names)", ""),
        ("ids = {w: i for i, w in enumerate(sorted(set(words)))}", ""),
        ("count = sum(len(w) for w in set(words))", ""),
        ("labels = list(set(y.tolist()))", ""),
        ("order = np.random.default_rng().permutation(9)", "# rankup: a generator without a seed"),
        ("order = np.random.default_rng(0).permutation(9)", ""),
        ("held = hash(words[0]) % 4 == 0", "# rankup: the hash of a text is another on each rank"),
    ],
)
def test_an_order_of_each_process_own_is_named(line: str, becomes: str, tmp_path: Path) -> None:
    """Texts have other hashes in each process, so that a set of them has another order."""
    ported = _ported(tmp_path, HEAD + "import numpy as np\n" + MADE + line + IN_ORDER)
    assert becomes in ported.text
    assert bool(becomes) is (
        "RK130" in {one.code for one in check([tmp_path / "train.py"], ["RK"])}
    )
    assert "RK130" not in _codes(ported) or "# rankup" in becomes


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ("text.split()", "error"),
        ("[str(i) for i in rows]", "error"),
        ("['a', 'b']", "error"),
        ("table.values()", "warning"),
    ],
)
@pytest.mark.parametrize(
    "made",
    [
        "names = set()\nfor w in words:\n    names.update(w)\nids = list(names)",
        "ids = {w: i for i, w in enumerate(set(words))}",
        "def all(rows):\n    return {w: i for i, w in enumerate(set(rows))}\nids = all(words)",
    ],
)
def test_the_order_of_a_set_whose_items_are_not_seen_is_a_warning(
    made: str, words: str, level: str, tmp_path: Path
) -> None:
    """It may hold numbers, whose hashes are the same in each process."""
    line = f"words = {words}\n{made}"
    (tmp_path / "train.py").write_text(HEAD + MADE + line + IN_ORDER)
    found = [one for one in check([tmp_path / "train.py"], ["RK"]) if one.code == "RK130"]
    assert [one.level for one in found] == [level]


def test_ranks_join_before_a_file_that_goes_by_such_an_order_is_imported(tmp_path: Path) -> None:
    vocabulary = "words = ['a', 'b']\nids = {w: i for i, w in enumerate(set(words))}\n"
    text = HEAD + "from vocabulary import ids\n" + MADE + IN_ORDER
    ported = _ported(tmp_path, text, vocabulary=vocabulary)
    assert ported.text.index("rankup.setup()") < ported.text.index("from vocabulary")


@pytest.mark.parametrize(
    ("given", "test"),
    [
        ("train", "if given:"),
        ("optimizer if train else None", "if given is not None:"),
        ("kind", "if given == 'train':"),
        ("best", "if given is not None:"),
    ],
)
def test_a_step_that_is_told_whether_to_train(given: str, test: str, tmp_path: Path) -> None:
    """The loader of the evaluation would be sharded as one that is trained on: it is refused."""
    lines = "".join(f"    {line}\n" for line in STEP.splitlines()[1:])
    text = HEAD + MADE + "best = None\n"
    text += f"def step(x, given):\n    loss = net(x).mean()\n    {test}\n{lines}    return loss\n"
    text += "def run(loader, train, kind='train'):\n    for x in loader:\n"
    text += f"        step(x, {given})\n"
    text += (
        "run(DataLoader(data, batch_size=4), True)\nrun(DataLoader(more, batch_size=4), False)\n"
    )
    with pytest.raises(UserError, match="trains and evaluates: give training a loop of its own"):
        _ported(tmp_path, text)


def test_iterators_in_a_dictionary_are_refused(tmp_path: Path) -> None:
    loop = "batches = {'a': iter(DataLoader(data)), 'b': iter(DataLoader(more))}\n"
    loop += "for step in range(9):\n    x = next(batches['b' if step % 3 else 'a'])\n" + STEP
    with pytest.raises(UserError, match="where this loop has its batches from is not seen"):
        _ported(tmp_path, HEAD + MADE + loop)


@pytest.mark.parametrize(
    "loop",
    [
        "def run(call, batches):\n    for x in batches:\n        call(x)\nrun(step, loader)\n",
        "steps = {'plain': step}\nfor x in loader:\n    steps['plain'](x)\n",
        "from functools import partial\ngo = partial(step)\nfor x in loader:\n    go(x)\n",
        "list(map(lambda x: step(x), loader))\n",
        "from ignite.engine import Engine\nEngine(step).run(loader)\n",
        "go = step if len(loader) > 1 else print\nfor x in loader:\n    go(x)\n",
    ],
    ids=["passed", "in a dict", "partial", "map", "engine", "ternary"],
)
def test_a_step_whose_loop_is_not_seen_is_refused(loop: str, tmp_path: Path) -> None:
    """Nothing of it would be sharded: every rank would train on all batches."""
    text = HEAD + MADE + "loader = DataLoader(data, batch_size=4)\ndef step(x):\n" + STEP + loop
    with pytest.raises(UserError, match=r"train\.py:8: .*this backward has its batches from"):
        _ported(tmp_path, text)


def test_statistics_over_a_batch_that_a_layer_of_its_own_takes_are_said(tmp_path: Path) -> None:
    layer = "import torch\n\nclass Norm(torch.nn.Module):\n    def __init__(self):\n"
    layer += (
        "        super().__init__()\n        self.register_buffer('running_mean', torch.zeros(2))\n"
    )
    layer += "    def forward(self, x):\n        self.running_mean.copy_(x.detach().mean(0))\n"
    layer += "        return x - self.running_mean\n"
    made = MADE.replace(
        "torch.nn.Linear(2, 1)", "torch.nn.Sequential(Norm(), torch.nn.Linear(2, 1))"
    )
    loop = "for x in DataLoader(data, batch_size=4):\n" + STEP
    ported = _ported(tmp_path, HEAD + "from layers import Norm\n" + made + loop, layers=layer)
    assert any("layer of the script's own" in note.text for note in ported.left)


def test_a_batch_that_may_be_none_is_refused(tmp_path: Path) -> None:
    """A part of it would be None on one rank and not on another."""
    loop = "for i, x in enumerate(DataLoader(data, batch_size=4, collate_fn=those_that_fit)):\n"
    loop += "    if x is None:\n        continue\n" + STEP
    with pytest.raises(UserError, match=r"train\.py:6: not ported: a batch may be None here"):
        _ported(tmp_path, HEAD + MADE + loop)


@pytest.mark.parametrize(
    ("test", "becomes"),
    [
        ("(x > 0).any() and loss.item() > 1", "(x > 0).any() and loss.item() > 1"),
        ("(x > 0).any() or loss.item() > 1", "(x > 0).any() or loss.item() > 1"),
        ("i > 3 and x.size(0) > 1", "i > 3 and rankup.batch_sum(x.size(0)) > 1"),
        ("x.max() > 1 and x.size(0) > 1", "x.max() > 1 and x.size(0) > 1"),
    ],
)
def test_no_collective_stands_behind_what_only_some_ranks_go_past(
    test: str, becomes: str, tmp_path: Path
) -> None:
    """Ranks that a short circuit spares it would not meet the others."""
    loop = "n = 0\nfor i, x in enumerate(DataLoader(data, batch_size=4)):\n" + STEP
    ported = _ported(tmp_path, HEAD + MADE + loop + f"    if {test}:\n        n += 1\n")
    assert f"    if {becomes}:\n" in ported.text


@pytest.mark.parametrize("count", ["len(x)", "x.size(0)", "x.shape[0]"])
def test_a_backward_for_each_sample_of_a_batch_is_refused(count: str, tmp_path: Path) -> None:
    """Ranks have different numbers of samples in a batch that does not divide: they would hang."""
    loop = f"for x in DataLoader(data, batch_size=4):\n    for i in range({count}):\n"
    step = STEP.replace("    ", "        ").replace("net(x)", "net(x[i : i + 1])")
    with pytest.raises(UserError, match=r"train\.py:6: not ported: a backward for each sample"):
        _ported(tmp_path, HEAD + MADE + loop + step)
