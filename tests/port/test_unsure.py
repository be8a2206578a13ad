"""What port does not put together: said at its line, or refused, and never passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rankup
from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.ported import Ported, port
from tests.conftest import RunRankup

HEAD = """import time
from itertools import cycle

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8)
test = DataLoader(more, batch_size=8)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
began = time.time()
"""
EPOCHS = """for epoch in range(3):
    # in each epoch
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # after each step
    with torch.no_grad():
        net.eval()
        for x, y in test:
            out = net(x)
            # in an evaluation
    net.train()
"""


def _ported(folder: Path, text: str, **changes: str) -> Ported:
    for old, new in changes.items():
        assert old.replace("_", " ") in text
        text = text.replace(f"# {old.replace('_', ' ')}", new)
    path = folder / "train.py"
    path.write_text(text)
    return port(path)


# What is put in at a comment, and what is said of that; each column is one script.
SAID = {
    "in_each_epoch": [
        ("net[0].requires_grad_(True)", ""),
        ("for p in net.parameters():\n        p.requires_grad = True", ""),
        ("pass", ""),
    ],
    "after_each_step": [
        ("order = torch.randperm(x.size(0))", "but other pairs"),
        ("if net(x).max() > 9:\n            break", "rank 0 decides here for all ranks"),
        ("seen += net(x).max().item()", "seen: of rank 0's part of the batch"),
    ],
    "in_an_evaluation": [
        ("worst = max(worst, out.max().item())", "`max(worst, out.max().item())` is not seen"),
        ("outs = torch.cat((outs, out))", "`torch.cat((outs, out))` is not seen"),
        ("by_name[len(by_name)] = out.sum()", "`by_name[len(by_name)]` outlives it"),
    ],
}


@pytest.mark.parametrize("column", range(3))
def test_it_is_said_at_its_line(column: int, tmp_path: Path) -> None:
    put = {mark: rows[column] for mark, rows in SAID.items()}
    ported = _ported(tmp_path, HEAD + EPOCHS, **{mark: text for mark, (text, _) in put.items()})
    lines = (tmp_path / "train.py").read_text().splitlines()
    for text, said in put.values():
        if not said:
            continue
        [note] = [note for note in ported.left if said in note.text]
        place = next(n for n, line in enumerate(lines, 1) if text.split("\n")[0] in line)
        assert note.line in (place, place + 1) or f"(line {place})" in note.text


def test_a_plain_script_is_left_nothing_but_its_evaluation(tmp_path: Path) -> None:
    [note] = _ported(tmp_path, HEAD + EPOCHS).left
    assert "every rank evaluates everything, which is exact: nothing is counted" in note.text


def test_a_clock_that_ends_a_training_or_seeds_is_rank_0s(tmp_path: Path) -> None:
    put = "if time.time() - began > 60:\n            break"
    seeded = "torch.manual_seed(int(time.time()))\n"
    ported = _ported(tmp_path, HEAD + seeded + EPOCHS, after_each_step=put)
    assert "if rankup.broadcast(time.time() - began > 60):" in ported.text
    assert "torch.manual_seed(rankup.broadcast(int(time.time())))" in ported.text


def test_a_model_that_a_training_gives_back_is_wrapped_before_it(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in EPOCHS.splitlines())
    ported = _ported(tmp_path, HEAD + f"def fit(net):\n{body}    return net\n\nnet = fit(net)\n")
    assert ported.text.index("net = rankup.wrap(net)") < ported.text.index("net = fit(net)")


@pytest.mark.parametrize("part", ["net[1]", "list(net.children())[-1]"])
def test_the_model_is_wrapped_and_no_part_of_it(part: str, tmp_path: Path) -> None:
    """What the loop calls is wrapped: a part of it that DDP has would run beside DDP's forward."""
    made = f"head = {part}\nfor p in head.parameters():\n    p.requires_grad = True\n"
    text = (HEAD + EPOCHS).replace("SGD(net.parameters", "SGD(head.parameters")
    ported = _ported(tmp_path, text.replace("optimizer = ", made + "optimizer = ")).text
    assert "requires_grad = True\nnet = rankup.wrap(net)\n" in ported
    assert "rankup.wrap(head)" not in ported
    (tmp_path / "train_dist.py").write_text(ported)
    assert "RK106" not in {one.code for one in check([tmp_path / "train_dist.py"], ["RK"])}
    text = text.replace("optimizer = ", made + "optimizer = ").replace("net(x), y", "head(x), y")
    assert "head = rankup.wrap(head)" in _ported(tmp_path, text).text


def test_lists_of_a_training_are_rank_0s_and_said_so(tmp_path: Path) -> None:
    put = "hits.extend(net(x).argmax(1).tolist())"
    text = HEAD + "hits = []\n" + EPOCHS + "    print(sum(hits))\n"
    ported = _ported(tmp_path, text, after_each_step=put)
    assert "x: of rank 0's part of the batch" in " ".join(note.text for note in ported.left)


def test_what_is_written_in_an_evaluation_is_of_whole_batches(tmp_path: Path) -> None:
    text = f"import numpy\n{HEAD}def train():\n" + "".join(
        f"    {line}\n" for line in EPOCHS.split("    with")[0].splitlines()
    )
    text += (
        "def show():\n    for x, y in test:\n        numpy.save('out', net(x))\n\ntrain()\nshow()\n"
    )
    ported = _ported(tmp_path, text)
    assert "rankup.is_root_process(): numpy.save" in ported.text
    assert not [note for note in ported.left if "is of rank 0's part of a batch" in note.text]


def test_a_port_names_a_helpers_file_for_rank_0(tmp_path: Path) -> None:
    """What the port has put right, a check of the port does not find."""
    (tmp_path / "notes.py").write_text(
        "class Notes:\n    def __init__(self, path):\n        self.file = open(path, 'w')\n"
    )
    text = f"from notes import Notes\n{HEAD}notes = Notes('log')\n{EPOCHS}"
    ported = _ported(tmp_path, text, after_each_step="notes.file.write('step')")
    assert "Notes(rankup.path0('log'))" in ported.text
    (tmp_path / "train_dist.py").write_text(ported.text)
    assert "RK146" not in {one.code for one in check([tmp_path / "train_dist.py"], ["RK"])}


def test_a_model_made_of_a_trained_one_is_given_what_there_is(tmp_path: Path) -> None:
    """The advice names nothing that rankup has not."""
    more = "net = torch.nn.Sequential(net, torch.nn.Linear(2, 2))\n"
    more += "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    ported = _ported(tmp_path, HEAD + EPOCHS + more + EPOCHS)
    advice = next(note.text for note in ported.left if "made of a net" in note.text)
    assert 'getattr(net, "module", net)' in advice
    assert all(hasattr(rankup, name) for name in re.findall(r"rankup\.(\w+)", advice))


def test_a_file_that_is_changed_twice_is_rank_0s_twice(tmp_path: Path) -> None:
    """A barrier does not come between a condition and what it guards."""
    block = "    with open('f', 'r+b') as f:\n        n = f.fileno()\n"
    text = HEAD + f"def mend():\n{block}\n    # again\n{block}"
    ported = _ported(tmp_path, text + "\n" + EPOCHS + "mend()\n").text
    assert ported.count("if rankup.is_root_process():\n        with open('f'") == 2


@pytest.mark.parametrize(
    ("given", "shape"), [("size", "size"), ("8", "8"), ("8", "loader.batch_size")]
)
def test_a_shape_of_the_whole_batch_made_before_the_loop_is_said(
    tmp_path: Path, given: str, shape: str
) -> None:
    """Labels of the whole batch beside a rank's part of it end the first step with an error."""
    text = HEAD.replace("batch_size=8)\ntest", f"batch_size={given})\ntest")
    text = text.replace("loader =", "size = 8\nloader =") + f"real = torch.ones({shape}, 2)\n"
    used = _ported(tmp_path, text + EPOCHS.replace("net(x), y)", "net(x), real)"))
    assert "make it in the loop" in next(n.text for n in used.left if f"of {shape}" in n.text)
    assert "RK118" in {one.code for one in check([tmp_path / "train.py"], ["RK"])}
    shown = _ported(tmp_path, text + EPOCHS, in_each_epoch="net(real)")
    assert not [note for note in shown.left if "make it in the loop" in note.text]


def test_a_number_as_that_of_the_whole_batch_is_named_in_a_loop(tmp_path: Path) -> None:
    made = EPOCHS.replace("net(x), y)", "net(x), torch.ones(8, 2))")
    left = [note.text for note in _ported(tmp_path, HEAD + made).left]
    assert "8 is the size of the whole batch: take that of a rank's part from it" in left
    other = EPOCHS.replace("net(x), y)", "net(x), torch.ones(len(x), 8)[:, :2])")
    assert not [note for note in _ported(tmp_path, HEAD + other).left if "8 is" in note.text]


def test_a_draw_that_chooses_the_model_is_rank_0s(tmp_path: Path) -> None:
    """Ranks that train different models wait for each other forever."""
    text = "import random\n" + (HEAD + EPOCHS).replace(
        "optimizer = ", "other = torch.nn.Linear(4, 2)\noptimizer = "
    ).replace("SGD(net.parameters()", "SGD([*net.parameters(), *other.parameters()]")
    chosen = "if random.random() < 0.5:\n            loss = loss + other(x).mean()\n        "
    text = text.replace("optimizer.zero_grad()", chosen + "optimizer.zero_grad()")
    ported = _ported(tmp_path, text).text
    assert "if rankup.broadcast(random.random() < 0.5):" in ported
    assert "RK186" in {one.code for one in check([tmp_path / "train.py"], ["RK"])}
    both = text.replace("loss + other(x).mean()", "loss * 2")
    assert "rankup.broadcast(random" not in _ported(tmp_path, both).text


@pytest.mark.parametrize(("head", "deals"), [("", False), ("net.eval()\n", True)])
def test_a_model_in_its_evaluation_mode_may_train(head: str, deals: bool, tmp_path: Path) -> None:
    """Without a shuffle it is the mode that tells the ranks what the batches are for."""
    text = HEAD + head + EPOCHS.replace("    net.train()\n", "").replace("        net.eval()\n", "")
    ported = _ported(tmp_path, text).text
    assert ("rankup.shard(DataLoader(data, batch_size=8), train=True)" in ported) is deals


@pytest.mark.parametrize(
    ("loss", "becomes"),
    [
        ("F.cross_entropy(net(x), y, reduction='none').sum() / 8", "summed=True"),
        (
            "(F.cross_entropy(net(x), y, reduction='none') * w[y]).sum() / w[y].sum()",
            "divides by what",
        ),
    ],
)
def test_a_sum_divided_by_hand(loss: str, becomes: str, tmp_path: Path) -> None:
    text = (HEAD + "w = torch.ones(2)\n" + EPOCHS).replace(
        "F.cross_entropy(net(x), y)\n", f"{loss}\n"
    )
    ported = _ported(tmp_path, text)
    assert becomes in ported.text
    if "w[y]" in loss:
        assert "RK125" in {one.code for one in check([tmp_path / "train.py"], ["RK"])}


def test_losses_between_the_samples_of_a_batch(tmp_path: Path) -> None:
    def text(*body: str) -> str:
        lines = "".join(f"    {line}\n" for line in body)
        own = f"def own_loss(a, b):\n{lines}\n"
        return own + (HEAD + EPOCHS).replace("F.cross_entropy(net(x), y)", "own_loss(net(x), y)")

    with pytest.raises(UserError, match=r":3: .*contrastive"):
        _ported(tmp_path, text("z = torch.cat([a, b])", "return (z @ z.T).logsumexp(1).mean()"))
    with pytest.raises(UserError, match="contrastive"):
        _ported(tmp_path, text("return F.cross_entropy(a @ b.t(), torch.arange(len(a)))"))
    assert _ported(tmp_path, text("return (a @ w.t() - b).pow(2).mean()")).text
    ratio = text("both = (a * b).sum()", "return 1 - (2 * both + 1) / (a.sum() + b.sum() + 1)")
    assert [n for n in _ported(tmp_path, ratio).left if "divides by what counts" in n.text]


def test_what_cannot_be_ported_leaves_nothing(tmp_path: Path, rankup_here: RunRankup) -> None:
    (tmp_path / "train.py").write_text(HEAD + EPOCHS)
    (tmp_path / "deep.py").write_text(HEAD + "net" + ".to(0)" * 1500 + "\n" + EPOCHS)
    (tmp_path / "train_dist.py").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for words, said in (
        (["."], "is a folder"),
        (["deep.py"], "nested too deeply"),
        (["train.py"], "train_dist.py is a folder"),
    ):
        done = rankup_here(["port", *words])
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert said in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == before


PASSED_OVER = {
    "a seed of each process' own": [
        ("began =", "torch.seed()\nbegan ="),
        ("began =", "g = torch.Generator()\ng.seed()\nbegan ="),
    ],
    "a generator without a seed": [
        ("began =", f"order = {made}.permutation(9)\nbegan =")
        for made in ("np.random.Generator(np.random.PCG64())", "np.random.default_rng(seed=None)")
    ]
    + [
        ("began =", f"{line}\nbegan =")
        for line in (
            "keep = np.random.default_rng().random(9) < 0.5",
            "keep = [secrets.choice(data) for _ in range(9)]",
            "keep = sorted(data, key=lambda one: uuid.uuid4())",
            "keep = sorted(data, key=lambda one: os.urandom(4))",
        )
    ],
    "has lazy layers": [("torch.nn.Linear(4, 2)", "torch.nn.LazyLinear(2)")],
    "": [
        ("optimizer.step()", "for p in net.parameters():\n            p.grad.mul_(0.5)"),
        ("began =", "np.random.default_rng(secrets.randbits(64)).shuffle(data)\nbegan ="),
    ],
}


@pytest.mark.parametrize(
    ("said", "old", "new"), [(said, *one) for said, found in PASSED_OVER.items() for one in found]
)
def test_what_one_gpu_would_do_otherwise_is_said(
    said: str, old: str, new: str, tmp_path: Path
) -> None:
    imports = "import os, secrets, uuid\nimport numpy as np\nfrom itertools import islice\n"
    text = imports + (HEAD + EPOCHS).replace(old, new, 1)
    found = [one.text for one in _ported(tmp_path, text).left if "evaluates" not in one.text]
    assert any(said in one for one in found) if said else not found


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("torch.optim.SGD([*net.parameters(), w], lr=0.1)", "trains a tensor that no model holds"),
        (
            "torch.optim.SGD(net.parameters(), lr=0.1)\noptimizer.add_param_group({'params': [w]})",
            "trains a tensor that no model holds",
        ),
        ("torch.optim.SGD([*both.net.parameters()], lr=0.1)", "cannot be seen"),
    ],
)
def test_an_optimizer_of_what_no_model_holds_is_refused(
    made: str, said: str, tmp_path: Path
) -> None:
    """Its gradient would stay each rank's own."""
    before = "w = torch.nn.Parameter(torch.zeros(2))\nboth = SimpleNamespace(net=net)\noptimizer = "
    text = "from types import SimpleNamespace\n" + HEAD + EPOCHS
    with pytest.raises(UserError, match=said):
        _ported(
            tmp_path,
            text.replace("optimizer = torch.optim.SGD(net.parameters(), lr=0.1)", before + made),
        )


def test_a_model_is_traced_without_its_wrapper(tmp_path: Path) -> None:
    text = HEAD + EPOCHS + 'torch.onnx.export(net, torch.ones(1, 2), "b.onnx")\n'
    text += "def keep(model):\n    torch.jit.trace(model, torch.ones(1, 2)).save('net.pt')\n"
    text += "keep(net)\n"
    ported = _ported(tmp_path, text).text
    assert 'onnx.export(getattr(net, "module", net), torch.ones(1, 2), "b.onnx")' in ported
    assert 'process(): torch.jit.trace(getattr(model, "module", model), torch.ones(1, 2))' in ported


def test_what_comes_behind_a_statement_stands_before_the_rest_of_its_row(tmp_path: Path) -> None:
    text = (HEAD + EPOCHS).replace("\nbegan =", "; began =").replace("y)\n", "y, ignore_index=0); ")
    text = text.replace("; " + " " * 8 + "optimizer", "; optimizer").replace(
        "\noptimizer =", "; optimizer ="
    )
    ported = _ported(tmp_path, text)
    assert "Linear(4, 2)); net = rankup.wrap(net); optimizer = " in ported.text
    assert "ignore_index=0); rankup.count((y != 0).sum()); optimizer.zero_grad()" in ported.text


@pytest.mark.parametrize("made", ["F = torch.nn.functional", "mse = F.mse_loss"])
def test_a_loss_of_torch_by_another_name(made: str, tmp_path: Path) -> None:
    body = EPOCHS.replace("F.cross_entropy(", "F.cross_entropy(" if "torch" in made else "mse(")
    text = HEAD.replace("from torch.nn import functional as F\n", "") if "torch" in made else HEAD
    ported = _ported(tmp_path, f"{text}{made}\n{body}")
    assert "not seen to be a mean" not in ported.text
    _ported(tmp_path, f"{text}{made}\n{body}".replace("y)\n", "y, reduction='sum')\n"))
    assert "rankup.backward(loss, summed=True)" in port(tmp_path / "train.py").text


def test_valid_targets_of_a_loss_by_another_name_are_counted(tmp_path: Path) -> None:
    body = EPOCHS.replace("F.cross_entropy(net(x), y)", "ce(net(x), y, ignore_index=0)")
    ported = _ported(tmp_path, f"{HEAD}ce = F.cross_entropy\n{body}")
    assert "rankup.count((y != 0).sum())" in ported.text


@pytest.mark.parametrize("inside", [False, True])
def test_a_weighted_total_of_losses_is_not_a_sum_over_samples(inside: bool, tmp_path: Path) -> None:
    total = "(torch.exp(-self.s) * losses + self.s).sum()"
    model = f"""class Total(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.s = torch.nn.Parameter(torch.zeros(2))
        self.net = torch.nn.Linear(4, 2)

    def forward(self, {"x, y" if inside else "losses"}):
        {"losses = torch.stack([self.net(x).mean(), F.mse_loss(self.net(x), y)])" if inside else ""}
        return {total}


total = Total()
learned = torch.optim.SGD(total.parameters(), lr=0.1)
"""
    losses = "total(torch.stack([F.cross_entropy(net(x), y), net(x).mean()]))"
    body = EPOCHS.replace("F.cross_entropy(net(x), y)", "total(x, y)" if inside else losses)
    ported = _ported(
        tmp_path, HEAD + model + body.replace("step()", "step()\n        learned.step()")
    )
    assert "summed=True" not in ported.text
