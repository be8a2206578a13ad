"""The numbers of a port: put together where that is right whatever runs, else left and said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.ported import Ported, port

HEAD = """import math
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(22, 5), torch.randn(22, 5))
loader = DataLoader(data, batch_size=6, shuffle=True)
held = DataLoader(data, batch_size=4)
model = torch.nn.Linear(5, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.MSELoss()
"""
TRAINING = """for epoch in range(2):
    model.train()
    a, b = 0, 0
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # in training
    print(a, b)
"""
EVALUATION = """model.eval()
a, b, rows = 0, 0, []
with torch.no_grad():
    for x, y in held:
        out = model(x)
        # in it
print(a, b, rows)
"""


def _ported(folder: Path, text: str) -> Ported:
    path = folder / "train.py"
    path.write_text(text)
    ported = port(path)
    (folder / "train_dist.py").write_text(ported.text)
    found = {one.code for one in check([folder / "train_dist.py"], ["RK"])}
    assert not found & {"RK111", "RK122", "RK127", "RK128", "RK183", "RK184"}
    # What port leaves in the training loop, check still finds.
    assert "RK121" not in found or ported.left
    return ported


@pytest.mark.parametrize(
    ("line", "behind"),
    [
        ("a += (out.argmax(1) == y.argmax(1)).sum().item()", "a = rankup.total(a)"),
        ("a += out.gt(y).float().sum()", "a = rankup.total(a)"),
        ("a += criterion(out, y).item() * x.size(0); b += len(y)", "a, b = rankup.total(a, b)"),
        ("a = a + F.l1_loss(out, y, reduction='sum').item()", "a = rankup.total(a)"),
        ("a += (out > y).float().mean().item() * x.shape[0]", "a = rankup.total(a)"),
        ("rows.extend(out.argmax(dim=1).tolist())", "rows = rankup.gather(rows)"),
    ],
)
def test_an_evaluation_of_sums_over_samples_is_sharded(
    line: str, behind: str, tmp_path: Path
) -> None:
    text = HEAD + TRAINING + EVALUATION.replace("# in it", line)
    ported = _ported(tmp_path, text)
    assert "for x, y in rankup.shard(held, train=False):" in ported.text
    assert f"    {behind}\nprint(a, b, rows)" in ported.text
    assert not ported.left


@pytest.mark.parametrize(
    "line",
    [
        "a += criterion(out, y).item()",
        "a += 10 * math.log10(1 / criterion(out, y).item()) * x.size(0)",
        "a += (out > out.mean()).sum().item()",
        "a += (out[torch.randperm(len(x))] > y).sum().item()",
        "a += out.softmax(0).sum().item()",
        "a += F.cross_entropy(out, y.argmax(1), ignore_index=0).item() * len(x)",
        "a += F.cross_entropy(out, y.argmax(1), weight=w).item() * len(x)",
        "a += unknown(out, y)",
        "a = max(a, out.max().item())",
        "a += 1",
        "rows.append(out.tolist())",
        "rows += [out]",
        "meter.update(out, y)",
        "print((out > y).sum().item())",
        "model.seen = (out > y).sum().item()",
        "if len(x) == 4:\n            a += (out > y).sum().item()",
        "a += (out > y).sum().item()\n        break",
        "a += x.num_graphs",
        "a += (torch.norm(out - y, 2) < 1).sum().item()",
        "a += (out.view(1, -1).argmax(1) > 0).sum().item()",
        "a += (out.flatten().topk(3)[0] > 0).sum().item()",
    ],
)
def test_any_other_evaluation_stays_as_on_one_gpu(line: str, tmp_path: Path) -> None:
    ported = _ported(tmp_path, HEAD + TRAINING + EVALUATION.replace("# in it", line))
    loop = EVALUATION.replace("# in it", line)
    assert ported.text.endswith(loop)
    [note] = ported.left
    assert note.text.startswith("every rank evaluates everything, which is exact: ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("held = DataLoader(data, batch_size=4)", "held = DataLoader(data, 4, collate_fn=pad)"),
        ("held = DataLoader(data, batch_size=4)", "held = DataLoader(data)"),
        ("held = DataLoader(data, batch_size=4)", "held = mine.loader(data)"),
        ("model.eval()\na, b", "a, b"),
        ("a, b, rows = 0, 0, []", "a, b, rows = 5, 0, []"),
        ("print(a, b, rows)", "print(a, b, rows, out)"),
    ],
)
def test_an_evaluation_is_left_whole_where_its_parts_are_not_seen(
    old: str, new: str, tmp_path: Path
) -> None:
    text = HEAD + TRAINING + EVALUATION.replace("# in it", "a += (out > y).sum().item()")
    assert "rankup.total" in _ported(tmp_path, text).text
    assert "rankup.total" not in _ported(tmp_path, text.replace(old, new)).text


@pytest.mark.parametrize(
    ("item", "sharded"),
    [
        ("self.rng.normal(size=5), i", False),
        ("np.random.normal(size=5), i", False),
        ("np.random.default_rng(i).normal(size=5), i", True),
        ("np.ones(5), i", True),
    ],
)
def test_an_evaluation_of_data_that_are_drawn_sample_by_sample_stays_whole(
    item: str, sharded: bool, tmp_path: Path
) -> None:
    """A rank that draws for its own samples alone gives them what others have on one GPU."""
    noise = "import numpy as np\nclass Noise(torch.utils.data.Dataset):\n    def __init__(self):\n"
    noise += "        self.rng = np.random.default_rng(3)\n    def __getitem__(self, i):\n"
    noise += f"        return {item}\n"
    head = HEAD.replace("held = DataLoader(data", f"{noise}held = DataLoader(Noise()")
    text = head + TRAINING + EVALUATION.replace("# in it", "a += (out > y).sum().item()")
    assert ("rankup.total" in _ported(tmp_path, text).text) is sharded


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("a += loss.item()", "a += rankup.batch_mean(loss.item())"),
        ("a += loss.item() * len(x)", "rankup.batch_mean(loss.item()) * rankup.batch_sum(len(x))"),
        ("a = 0.9 * a + 0.1 * loss.item()", "a = 0.9 * a + 0.1 * rankup.batch_mean(loss.item())"),
        ("b = b if epoch else b - loss.item()", "if epoch else b - rankup.batch_mean(loss.item())"),
        ("b += (out > y).sum().item()", "b += rankup.batch_sum((out > y).sum().item())"),
        ("print(f'{float(loss):.3f}')", "{rankup.batch_mean(float(loss)):.3f}"),
        ("if not torch.isfinite(loss):\n            break", "isfinite(rankup.batch_mean(loss))"),
        ("if y.sum() < 0:\n            break", "if rankup.broadcast(y.sum() < 0):"),
    ],
)
def test_what_is_known_of_a_batch_is_of_the_whole_one(
    line: str, becomes: str, tmp_path: Path
) -> None:
    assert becomes in _ported(tmp_path, HEAD + TRAINING.replace("# in training", line)).text


@pytest.mark.parametrize(
    "line",
    [
        "print(out.mean().item(), x.num_graphs)",
        "a += accuracy(out, y); b += len(y); print(a / b)",
        "print(loss.item() / x.num_graphs)",
        "a = 0.9 * a + 0.1 * accuracy(out, y)",
        "print(criterion(out, y + 1).item())",
        "tell(out, y)",
        "if random.random() < 0.1:\n            print(loss.item())",
    ],
)
def test_what_is_not_known_is_rank_0s_and_said(line: str, tmp_path: Path) -> None:
    """Means, counts and ratios are not told apart by their names."""
    tell = "import random\ndef tell(out, y):\n    c = (out > y).sum()\n    print('right', c)\n"
    ported = _ported(tmp_path, tell + HEAD + TRAINING.replace("# in training", line))
    assert line in ported.text
    assert ported.left


ACCURACY = "c = (out.argmax(1) == y.argmax(1)).float().mean().item()"
LOWER = "for group in optimizer.param_groups: group['lr'] "


@pytest.mark.parametrize(
    ("line", "becomes", "said"),
    [
        (  # a test and what is kept by it are of one kind: of the whole batch
            "if loss.item() < best:\n            best = loss.item()",
            "if rankup.batch_mean(loss.item()) < best:\n            best = rankup.batch_mean(loss.",
            False,
        ),
        (
            "if loss.item() < best + c:\n            best = loss.item()\n    print(best)",
            "if loss.item() < best + c:\n            best = loss.item()\n    print(best)",
            True,
        ),
        (  # also where it is tested as a tensor
            "if loss < best:\n            best = loss.detach()",
            "if rankup.batch_mean(loss) < best:\n            best = rankup.batch_mean(loss.",
            False,
        ),
        (  # and kept with its graph
            "if loss < best:\n            best = loss",
            "if rankup.batch_mean(loss) < best:\n            best = rankup.batch_mean(loss)",
            False,
        ),
        (
            "found['n'] = 0.9 * found['n'] + 0.1 * loss.item()",
            "found['n'] = 0.9 * found['n'] + 0.1 * rankup.batch_mean(loss.item())",
            False,
        ),
        ("found['n'] = c\n    print(found)", "found['n'] = c", True),
        ("if 0 < c < loss.item(): print(1)", "if 0 < c < loss.item(): print(1)", False),
        ("if 0 < c < loss: print(1)", "if 0 < c < loss: print(1)", False),
        ("if loss < best:\n            best = c", "if loss < best:\n            best = c", False),
        ("sched.step(loss)", "sched.step(rankup.batch_mean(loss))", False),
        ("sched.step(c)", "sched.step(rankup.broadcast(c))", True),
        (f"if c > 0.5:\n            {LOWER}= 0.01", "if rankup.broadcast(c > 0.5):", True),
        (f"{LOWER}= (0.1 *\n            c)", "= rankup.broadcast((0.1 *", True),
        (f"{LOWER}= 0.1 * c", "group['lr'] = rankup.broadcast(0.1 * c)", True),
        ("if c > 0.5: lower(optimizer)", "if rankup.broadcast(c > 0.5): lower(optimizer)", True),
        ("if c > 0.5: b += 1\n        if b > 3: break", "if rankup.broadcast(b > 3): break", True),
        ("if c > 0.5: b += 1", "if c > 0.5: b += 1", True),
        ("found['c'] = c\n        if found['c'] > 1: break", "if rankup.broadcast(found[", True),
        ("found['c'] = c\n        if found['n'] > 1: break", "if found['n'] > 1: break", False),
        ("stops(c)\n        if stops.now: break", "if rankup.broadcast(stops.now): break", True),
        ("stops(c)\n    if stops.now: break", "if rankup.broadcast(stops.now): break", True),
        ("for row in out:\n            if row.max() > c: break", "if row.max() > c: break", False),
        ("if c > 0.5: print(c)", "if c > 0.5: print(c)", True),
    ],
)
def test_ranks_do_not_part_by_what_each_has_its_own_of(
    line: str, becomes: str, said: bool, tmp_path: Path
) -> None:
    """What later steps go by is rank 0's; a counter is each its own, and said."""
    head = HEAD + "def lower(it):\n    it.param_groups[0]['lr'] *= 0.5\n\nbest = 9.0\n"
    head += "found = {'c': 0, 'n': 0}\nstops = Stopper()\n"
    head += "sched = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    text = head + TRAINING.replace("# in training", f"{ACCURACY}\n        {line}")
    ported = _ported(tmp_path, text)
    assert becomes in re.sub(r" *# rankup: .*\n", "", ported.text)
    assert bool(ported.left) is said


HOOKS = """
class Hook:
    def on_batch(self, trainer, logs):
        pass

class Lower(Hook):
    def on_batch(self, trainer, logs):
        if logs["right"] > 0.5:
            trainer.optimizer.param_groups[0]["lr"] *= 0.9

class Trainer:
    def __init__(self, hooks):
        self.model, self.hooks = torch.nn.Linear(5, 5), hooks
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for epoch in range(3):
            for x, y in loader:
                out = self.model(x)
                loss = criterion(out, y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                logs = {"loss": loss.item(), "right": (out > y).float().mean().item()}
                for hook in self.hooks:
                    hook.on_batch(self, logs)

Trainer([Lower()]).fit()
"""


def test_what_a_hook_decides_by_a_part_of_the_batch_is_rank_0s(tmp_path: Path) -> None:
    made = next(line for line in HEAD.splitlines() if line.startswith("optimizer ="))
    text = _ported(tmp_path, HEAD.replace(made, "") + HOOKS).text
    assert "hook.on_batch(self, rankup.broadcast(logs))" in text


def test_sums_in_a_dictionary_are_of_all_ranks_or_of_none(tmp_path: Path) -> None:
    lines = "a['n'] += len(x)\n        a['right'] += COUNT\n"
    text = HEAD + TRAINING.replace("a, b = 0, 0", "a = {'n': 0, 'right': 0}")
    text = text.replace("print(a, b)", "score = a['right'] / a['n']\n    if score > 9: break")
    for count, known in (("(out > y).sum().item()", 2), ("unknown(out, y)", 0)):
        made = text.replace("# in training", lines.replace("COUNT", count))
        ported = _ported(tmp_path, made)
        assert ported.text.count("+= rankup.batch_sum(") == known
        assert ("score = rankup.broadcast(" in ported.text) is not bool(known)


TRAINER = """
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(5, 5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.right, self.best, self.wait = 0.0, 0.0, 0

    def step(self, x, y):
        out = self.model(x)
        loss = criterion(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.right = 0.9 * self.right + (out > y).float().mean().item()

    def improved(self):
        BODY

    def fit(self):
        for epoch in range(9):
            for x, y in loader:
                self.step(x, y)
            if not self.improved():
                break

Trainer().fit()
"""


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        (
            "if self.right > self.best:\n            self.wait = 0\n        return self.wait < 3",
            "if rankup.broadcast(self.right > self.best):",
        ),
        ("return self.right > self.best", "if not rankup.broadcast(self.improved()):"),
        ("if self.right > self.best:\n            print(1)", "if self.right > self.best:"),
    ],
)
def test_what_another_method_decides_by_a_part_of_the_batches_is_rank_0s(
    body: str, becomes: str, tmp_path: Path
) -> None:
    made = next(line for line in HEAD.splitlines() if line.startswith("optimizer ="))
    text = HEAD.replace(made, "") + TRAINER.replace("BODY", body)
    assert becomes in _ported(tmp_path, text).text


def test_a_schedule_takes_the_loss_of_the_whole_last_batch(tmp_path: Path) -> None:
    head = HEAD + "sched = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    ported = _ported(tmp_path, head + TRAINING.replace("print(a, b)", "sched.step(loss)"))
    assert "    sched.step(rankup.batch_mean(loss))\n" in ported.text
    assert "rankup.broadcast" not in ported.text


DECIDES = """def evaluate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in held:
            total += criterion(model(x), y).item()
    return total / len(held)

"""


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("value = evaluate()\n    if value < best: best = value", "rankup.broadcast(evaluate())"),
        ("scheduler.step(evaluate())", "scheduler.step(rankup.broadcast(evaluate()))"),
        ("value = evaluate()\n    stopper(value)", "value = rankup.broadcast(evaluate())"),
        ("values.append(evaluate())\n    if values[-1] > 1: break", "append(rankup.broadcast("),
        ("print(evaluate())", "print(evaluate())"),
        ("value = evaluate()\n    print(f'{value:.3f}')", "value = evaluate()\n"),
    ],
)  # fmt: skip
def test_what_an_evaluation_decides_is_rank_0s(line: str, becomes: str, tmp_path: Path) -> None:
    text = HEAD + DECIDES + "best = 9.0\nvalues = []\n" + TRAINING.replace("print(a, b)", line)
    ported = _ported(tmp_path, text)
    assert becomes in ported.text


def test_what_an_evaluation_of_its_own_loop_decides_is_rank_0s(tmp_path: Path) -> None:
    body = EVALUATION.replace("# in it", "a += criterion(out, y).item()")
    ended = body.replace("print(a, b, rows)", "mean = a / 6\nif mean < 1:\n    torch.save(a, 'a')")
    assert "mean = rankup.broadcast(a / 6)" in _ported(tmp_path, HEAD + TRAINING + ended).text
    bare = body.replace("print(a, b, rows)", "if a < 1:\n    torch.save(a, 'a')")
    assert "a = rankup.broadcast(a)\n" in _ported(tmp_path, HEAD + TRAINING + bare).text


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("scheduler.step(b)", "    b = rankup.broadcast(b)\n    scheduler.step(b)"),
        ("if b > 9: break", "    b = rankup.broadcast(b)\n    if b > 9: break"),
        ("print(b)", "    print(b)"),
    ],
)
def test_what_a_part_of_the_batches_decides_is_rank_0s(
    line: str, becomes: str, tmp_path: Path
) -> None:
    text = TRAINING.replace("# in training", "b += spread(out)").replace("print(a, b)", line)
    assert f"b += spread(out)\n{becomes}" in _ported(tmp_path, HEAD + text).text


def test_what_a_training_returns_of_a_part_is_rank_0s_where_it_decides(tmp_path: Path) -> None:
    engine = (
        "import torch\ndef run(loader, model, optimizer):\n    loss = 0\n    for x, y in loader:\n"
    )
    engine += "        loss = (model(x) - y).abs().mean()\n        right = (x > y).sum().item()\n"
    engine += "        loss.backward()\n        optimizer.step()\n    return RETURNED\n"
    loop = "from engine import run\nfor epoch in range(9):\n"
    loop += "    found = run(loader, model, optimizer)\n    if found > 9: break\n"
    for returned, becomes in (
        ("right * 2", "found = rankup.broadcast(run(loader, model, optimizer))"),
        ("model", "found = run(loader, model, optimizer)"),
    ):
        (tmp_path / "engine.py").write_text(engine.replace("RETURNED", returned))
        assert becomes in _ported(tmp_path, HEAD + loop).text
    (tmp_path / "engine.py").write_text(engine.replace("RETURNED", "loss.item()"))
    (module,) = _ported(tmp_path, HEAD + loop).modules
    assert "return rankup.batch_mean(loss.item())" in module.text


def test_a_metric_of_torchmetrics_in_a_whole_evaluation_has_a_remark(
    tmp_path: Path,
) -> None:
    made = "import torchmetrics\nmetric = torchmetrics.Accuracy(task='binary').to('cpu')\n"
    text = made + HEAD + TRAINING + EVALUATION.replace("# in it", "metric.update(out, y)")
    ported = _ported(tmp_path, text)
    assert any("give sync_on_compute=False there" in note.text for note in ported.left)
    assert "sync_on_compute=" not in ported.text.split("metric = ")[1].split("\n")[0]


BOTH = """def run(loader, train):
    for x, y in loader:
        loss = criterion(model(x), y)
        {test}
            loss.backward()
            optimizer.step()

run(loader, True)
with torch.no_grad():
    run(held, False)
"""


def test_a_loop_that_trains_and_evaluates_is_refused(tmp_path: Path) -> None:
    for test in ("if train:", "if chosen(train):", "with torch.enable_grad():"):
        with pytest.raises(UserError, match="trains and evaluates"):
            _ported(tmp_path, HEAD + BOTH.replace("{test}", test))


@pytest.mark.parametrize(
    ("loss", "becomes"),
    [
        ("criterion(out, y).sum()", "loss.backward()"),
        ("F.mse_loss(out, y, reduction='sum') + out.abs().sum()", "rankup.summed(loss).backward()"),
        ("(out - y).pow(2).sum() / len(x)", "loss.backward()"),
        ("(out - y).pow(2).sum() / 6", "rankup.summed(loss).backward()"),
        ("criterion(out, y) + sum(p.pow(2).sum() for p in model.parameters())", "loss.backward()"),
    ],
)
def test_a_sum_is_told_from_a_mean_by_what_it_is_made_of(
    loss: str, becomes: str, tmp_path: Path
) -> None:
    text = HEAD + TRAINING.replace("criterion(out, y)", loss)
    assert f"        {becomes}\n" in _ported(tmp_path, text).text


KEPT = "(y[:, 0] > 0).nonzero().flatten()"
EACH = "F.cross_entropy(out, y.argmax(1), reduction='none')"


@pytest.mark.parametrize(
    ("loss", "seen"),
    [
        ("criterion(out, y)", True),
        ("0.5 * criterion(out, y) + F.l1_loss(out, y) / 3", True),
        ("(out - y).abs().mean(dim=1).mean()", True),
        ("own(out, y)", True),
        ("torch.sqrt(criterion(out, y))", False),
        ("own(out, y).log()", False),
        ("1 - (out * y).sum() / (out.sum() + y.sum())", False),
        ("(out - y).pow(2).sum(1).topk(3)[0].mean()", False),
        ("(out.mean(0) - y.mean(0)).pow(2).sum()", False),
        ("criterion(out, y) / out.std()", False),
        ("library.loss(out, y)", False),
        ("criterion(out.roll(1, dims=1), y)", True),
        ("criterion(out - out.roll(1, 0), y)", False),
        ("criterion(F.normalize(out, dim=1), y)", True),
        ("criterion(F.normalize(out, dim=0), y)", False),
        ("criterion(F.layer_norm(out, out.shape[1:]), y)", True),
        ("criterion(F.layer_norm(out, out.shape), y)", False),
        ("criterion(out.flip(0), y)", False),
        ("criterion(out, y) * len(x)", False),
        ("criterion(out, y) * x.size(1)", True),
        ("F.mse_loss(out, y).mul(x.shape[0])", False),
        ("weighted(out, y)", False),
        ("(out - y).pow(2)[torch.where(y[:, 0] > 0)[0]].mean()", False),
        ("(out - y).pow(2)[(y[:, 0] > 0).nonzero()[0]].mean()", False),
        ("(out - y).pow(2).index_select(0, torch.where(y[:, 0] > 0)[0]).mean()", False),
        ("criterion(out.index_select(0, kept), y.index_select(0, kept))", False),
        ("criterion(out.index_select(1, order), y)", True),
        ("((out - y).abs() * (out > torch.quantile(out, 0.3))).mean()", False),
        ("((out - y).abs() * (out > torch.quantile(out, 0.3, dim=1, keepdim=True))).mean()", True),
        ("torch.zeros(5, 5).index_add(0, y.argmax(1), out).pow(2).mean()", False),
        ("torch.zeros(9, 5).scatter_add(1, y.long(), out).pow(2).mean()", True),
        ("(each.detach().softmax(-1) * each).mean()", False),
        ("(out.softmax(-1) * (out - y)).mean()", True),
        ("set_later(out, y)", False),
        ("(out[1:] - out[:-1]).pow(2).mean()", False),
        ("(out[:, 1:] - out[:, :-1]).pow(2).mean()", True),
        ("(out - y).pow(2).mean(1).sort(descending=True)[0][:4].mean()", False),
        ("(out - y).abs()[(out - y).abs().mean(1).argsort()[:4]].mean()", False),
        ("(out - y).abs()[(out - y).abs().mean(1).topk(4)[1]].mean()", False),
        ("(out - y).abs()[(out - y).abs().mean(1).argsort()].mean()", True),
        ("(out - y).abs().gather(0, (out - y).argsort(0)[:4]).mean()", False),
        ("(out - y).masked_select(y > 0).view(-1).pow(2).mean()", False),
        ("by_mask(out, y, x)", False),
        ("(out - y).pow(2)[:4].mean()", False),
        ("criterion(out[2:], y[2:])", False),
        ("criterion(out[: len(x)], y[: len(x)])", True),
        ("(out - y).pow(2)[:, :4].mean()", True),
    ],
)
def test_a_loss_that_is_not_seen_to_be_a_mean_is_said(
    loss: str, seen: bool, tmp_path: Path
) -> None:
    own = "def own(a, b):\n    found = (a - b).pow(2).mean(1)\n    return found.mean()\n"
    own += "w = torch.ones(5)\nset_later = torch.nn.MSELoss()\nset_later.reduction = 'sum'\n"
    own += "def weighted(a, b):\n    each = (a - b).pow(2).mean(1) * w[b.argmax(1)]\n"
    own += "    return each.sum() / w[b.argmax(1)].sum()\n"
    own += "class ByMask(torch.nn.Module):\n    def forward(self, a, b, mask):\n"
    own += "        return (a - b).pow(2).sum() / mask.sum()\n\nby_mask = ByMask()\n"
    own = "import torch\n" + own
    loop = TRAINING.replace("criterion(out, y)", loss)
    loop = loop.replace(
        "        loss =", f"        kept = {KEPT}\n        each = {EACH}\n        loss ="
    )
    text = "import library\n" + own + "order = torch.arange(5)\n" + HEAD + loop
    notes = [one.text for one in _ported(tmp_path, text).left]
    assert any(one.startswith("not seen to be a mean over the samples") for one in notes) != seen


@pytest.mark.parametrize(
    ("line", "behind", "becomes"),
    [
        ("total = total + criterion(out[i : i + 1], y[i : i + 1])", "", "summed(loss).backward()"),
        ("total += criterion(out[i : i + 1], y[i : i + 1])", " / len(x)", "loss.backward()"),
    ],
)
def test_a_loss_added_up_sample_by_sample_is_a_sum(
    line: str, behind: str, becomes: str, tmp_path: Path
) -> None:
    rows = f"        total = 0\n        for i in range(len(x)):\n            {line}\n"
    loop = TRAINING.replace(
        "        loss = criterion(out, y)", f"{rows}        loss = total{behind}"
    )
    ported = _ported(tmp_path, HEAD + loop)
    assert becomes in ported.text
    assert ("rankup.summed" in ported.text) is not bool(behind)


def test_the_number_of_an_epoch_that_a_function_is_given_is_none_of_the_batch(
    tmp_path: Path,
) -> None:
    loop = TRAINING.split("\n", 1)[1].replace("criterion(out, y)", "criterion(out, y) * epoch")
    text = HEAD + f"def train(epoch):\n{loop}\nfor epoch in range(2):\n    train(epoch)\n"
    assert not [one for one in _ported(tmp_path, text).left if "not seen to be" in one.text]


def test_what_a_function_makes_of_an_evaluation_is_decided_by_where_it_is(tmp_path: Path) -> None:
    text = HEAD + TRAINING + EVALUATION.replace("# in it", "rows.append(out.sum())")
    text = "from library import bleu\n" + text.replace(
        "print(a, b, rows)", "score = bleu(rows)\nBACK"
    )
    ported = _ported(tmp_path, text.replace("BACK", "print(score)"))
    assert "rankup.broadcast" not in ported.text
    assert not any("something is decided by" in one.text for one in ported.left)
    ported = _ported(tmp_path, text.replace("BACK", "if score > 1:\n    print(score)"))
    assert "score = rankup.broadcast(bleu(rows))" in ported.text


def test_a_batch_that_is_taken_together_is_said(tmp_path: Path) -> None:
    """In a name that is made of itself, and in a model."""
    text = HEAD + TRAINING.replace(
        "loss =", "out = (out - out.mean(0)) / out.std(0)\n        loss =", 1
    )
    notes = [one.text for one in _ported(tmp_path, text).left]
    assert any(one.startswith("not seen to be a mean over the samples") for one in notes)
    net = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
    net += "        super().__init__()\n        self.layer = nn.Linear(5, 5)\n"
    net += "    def forward(self, x):\n        x = self.layer(x)\n        return x - x.mean(0)\n"
    made = next(line for line in HEAD.splitlines() if line.startswith("model ="))
    text = net + HEAD.replace(made, "model = Net()") + TRAINING
    notes = [one.text for one in _ported(tmp_path, text).left]
    assert any(one.startswith("the model takes a batch together") for one in notes)


def test_a_state_of_batches_that_a_loss_is_made_with_is_said(tmp_path: Path) -> None:
    text = "center = 0\n" + TRAINING.replace("criterion(out, y)", "criterion(out - center, y)")
    for kept, said in (("center", True), ("other", False)):
        made = text.replace("# in training", f"{kept} = 0.9 * center + 0.1 * out.detach().mean(0)")
        notes = [one.text for one in _ported(tmp_path, HEAD + made).left]
        assert any(one.startswith("`center` goes from batch to batch") for one in notes) is said


def test_a_model_that_returns_itself_is_wrapped_once(tmp_path: Path) -> None:
    text = TRAINING.replace("model.train()", "model = model.train()")
    made = "try:\n    load()\nexcept OSError:\n    model = model.apply(start)\n"
    ported = _ported(tmp_path, HEAD + made + text)
    assert ported.text.count("rankup.wrap(") == 1
    assert "    model = model.apply(start)\nmodel = rankup.wrap(model)\n" in ported.text


def test_sums_that_are_divided_by_one_number_are_of_all_ranks_or_of_none(tmp_path: Path) -> None:
    line = "a += loss.item() * len(x); b += COUNT"
    text = HEAD + TRAINING.replace("print(a, b)", "print(a / len(data), b / len(data))")
    for count, known in (("torch.sum(out.argmax(1) == y.data[:, 0])", 2), ("unknown(out)", 0)):
        ported = _ported(tmp_path, text.replace("# in training", line.replace("COUNT", count)))
        assert ported.text.count("+= rankup.batch_") == known


DRAWN = """train, test = iter(loader), iter(held)
for step in range(9):
    try:
        x, y = next(train)
    except StopIteration:
        train = iter(loader)
        x, y = next(train)
    torch.manual_seed(step)
    x = x + torch.randn_like(x)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    p, q = next(test)
    print(loss.item(), criterion(model(p), q).item())
"""


def test_of_drawn_batches_those_of_an_evaluation_are_whole(tmp_path: Path) -> None:
    """Noise that is added to a batch is no counter; a seed amid the batches is said."""
    path = tmp_path / "train.py"
    path.write_text(HEAD + DRAWN)
    ported = port(path)
    [note] = ported.left
    assert "all ranks draw the same noise" in note.text
    assert "criterion(model(p), q).item())" in ported.text


HELD = """it = iter(held)
for epoch in range(2):
    for x, y in loader:
        with torch.no_grad():
            try:
                p, q = next(it)
            except StopIteration:
                it = iter(held)
                p, q = next(it)
            seen = criterion(model(p), q)
            print(seen.item())
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_batch_that_is_drawn_without_gradients_before_a_step_is_whole(tmp_path: Path) -> None:
    """Unless what is made of it is differentiated."""
    ported = _ported(tmp_path, HEAD + HELD)
    assert "held = DataLoader(" in ported.text
    assert not ported.left
    for line in ("criterion(model(p), q)", "criterion(model(x), y) + seen"):
        trained = HELD.replace("criterion(model(x), y)", line)
        assert "held = rankup.shard(DataLoader(" in _ported(tmp_path, HEAD + trained).text
    stops = HELD.replace("print(seen.item())", "if seen < 1: break")
    assert "if rankup.broadcast(seen < 1): break" in _ported(tmp_path, HEAD + stops).text


def test_no_collective_stands_where_not_all_ranks_come(tmp_path: Path) -> None:
    """In a data worker, and where rank 0 alone writes what a sharded evaluation gives."""
    worker = """import random
import time
def seed_worker(number):
    random.seed(torch.initial_seed() % 2**32)
    torch.manual_seed(int(time.time()))
"""
    head = HEAD.replace("shuffle=True", "shuffle=True, num_workers=1, worker_init_fn=seed_worker")
    text = _ported(tmp_path, worker + head + TRAINING).text
    assert "random.seed(torch.initial_seed() % 2**32)\n    torch.manual_seed(int(time" in text
    evaluate = EVALUATION.replace("# in it", "a += (out > y).sum().item()").replace(
        "print(a, b, rows)", "return a"
    )
    inside = "".join(f"    {line}\n" for line in evaluate.splitlines())
    writes = "import numpy as np\nnp.savetxt('a.txt', [evaluate()])\n"
    text = _ported(tmp_path, f"{HEAD}def evaluate():\n{inside}{TRAINING}{writes}").text
    assert "rankup.total(a)" in text
    assert "\nnp.savetxt(" in text


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ('print(f"{loss:.4f}")', 'print(f"{rankup.batch_mean(loss):.4f}")'),
        ('print("%d %.4f" % (epoch, loss))', "(epoch, rankup.batch_mean(loss))"),
        ('print("{:.4f}".format(loss))', '"{:.4f}".format(rankup.batch_mean(loss))'),
        ("kept.append(loss)", "kept.append(rankup.batch_mean(loss))"),
        ("if loss < best: best = loss", "best = rankup.batch_mean(loss)"),
    ],
)
def test_a_loss_that_is_shown_or_kept_behind_its_loop(
    line: str, becomes: str, tmp_path: Path
) -> None:
    """A tensor as it stands, of the last batch: each rank has a part of that."""
    text = f"{HEAD}best, kept = 9.0, []\n{TRAINING.replace('print(a, b)', line)}"
    ported = _ported(tmp_path, text)
    assert becomes in ported.text
    assert not ported.left


def test_a_loss_that_a_function_of_the_script_is_given(tmp_path: Path) -> None:
    note = "def note(value):\n    kept.append(value.item())\n\nkept = []\n"
    noted = _ported(tmp_path, HEAD + note + TRAINING.replace("# in training", "note(loss)"))
    assert "note(rankup.batch_mean(loss))" in noted.text
    line = "kept.append(note(loss))"  # what becomes of it there is not seen
    shown = _ported(tmp_path, HEAD + note + TRAINING.replace("# in training", line))
    assert [one for one in shown.left if "loss, what note() keeps: of rank 0's" in one.text]


BANK = """bank = torch.zeros(22, 5)


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bank, self.mean = torch.zeros(22, 5), torch.zeros(5)

    def forward(self, out, y):
        # in it
        return ((out - y + self.bank.mean() + self.mean) ** 2).mean()


own = Own()
"""


@pytest.mark.parametrize(
    ("module", "line", "said"),
    [
        ("", "bank[y.argmax(1)] = out.detach()", "`bank`"),
        ("", "bank.index_add_(0, y.argmax(1), out.detach())", "`bank`"),
        ("", "bank.mul_(0.9).add_(0.1 * out.detach().mean(0))", "`bank`"),
        ("self.bank[y.argmax(1)] = out.detach()", "pass", "`self.bank`"),
        ("self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)", "pass", "`self.mean`"),
        ("", "targets = torch.zeros(6, 5).scatter_(1, y.argmax(1, True), 1)", ""),
        ("", "bank[epoch] = 1", ""),
        ("", "past.append(out.detach())", "`past`"),
        ("", "past.append(out.detach())\n        past = past[-5:]", "`past`"),
        ("", "past = []\n        past.append(out.detach())", ""),
        ("", "past += [out.detach()]", "`past`"),
        ("", "past = (past + [out.detach()])[-5:]", "`past`"),
        ("", "bank = torch.cat([bank, out.detach()])[-9:]", "`bank`"),
        ("", "slots[epoch].append(out.detach())", "`slots`"),
        ("", "past.append(epoch)", ""),
        ("", "shown.append(loss.item())", ""),
    ],
)
def test_what_is_kept_of_samples_for_the_next_loss_is_each_ranks(
    module: str, line: str, said: str, tmp_path: Path
) -> None:
    """A memory of targets, a running mean: a rank changes it by the samples that it sees."""
    loss = "own(out, y) + bank.mean() + sum(past).mean() + sum(slots[0])"
    text = TRAINING.replace("criterion(out, y)", loss)
    text = (
        HEAD
        + "past, shown, slots = [torch.zeros(5)], [], {0: [], 1: []}\n"
        + BANK.replace("# in it", module or "pass")
        + text.replace("# in training", line)
    )
    left = [one.text for one in _ported(tmp_path, text).left if "batch to batch" in one.text]
    assert [said in one for one in left] == ([True] if said else [])


STEP = """past, center = [torch.zeros(5)], torch.zeros(5)
class Replay:
    def __init__(self):
        self.rows = [torch.zeros(5)]
    def push(self, row):
        self.rows.append(row)
    def sample(self):
        return self.rows[-1]
replay = Replay()
def remember(row):
    past.append(row)
def step(x, y):
    global center
    out = model(x)
    loss = criterion(out, y) + past[-1].mean() + center.mean() + model(replay.sample()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # in it
for epoch in range(2):
    for x, y in loader:
        step(x, y)
"""


COUNTING = """class Trainer:
    def __init__(self):
        self.right, self.rows = 0, []
    def step(self, x, y):
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # in it
        return loss.item()
    def fit(self):
        for x, y in loader:
            self.step(x, y)
        print(self.right, self.rows)
Trainer().fit()
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("self.right += (out > y).sum().item()", "self.right is of rank 0's part of the batches"),
        ("self.rows.append(out.max().item())", "out: of rank 0's part of the batch"),
        ("print((out > y).sum().item())", "out, y: of rank 0's part of the batch"),
        ("self.right += loss.item()", ""),
        ("self.right += 1", ""),
        ("self.rows.append(loss.item())", ""),
    ],
)
def test_what_a_step_counts_and_shows_is_of_rank_0s_part(
    line: str, said: str, tmp_path: Path
) -> None:
    left = [one.text for one in _ported(tmp_path, HEAD + COUNTING.replace("# in it", line)).left]
    assert [one.startswith(said) for one in left] == ([True] if said else [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("past.append(out.detach().mean(0))", "`past` is kept from batch to batch"),
        ("remember(out.detach().mean(0))", "`past` is kept from batch to batch"),
        ("replay.push(out.detach().mean(0))", "`self.rows` is kept from batch to batch"),
        ("center = 0.9 * center + 0.1 * out.detach().mean(0)", "`center` goes from batch to batch"),
        ("remember(torch.ones(5))", ""),
        ("past = [out.detach().mean(0)]", ""),
    ],
)
def test_what_a_step_keeps_for_the_next_loss_is_each_ranks(
    line: str, said: str, tmp_path: Path
) -> None:
    """Also where a function or an object of the script keeps it."""
    ported = _ported(tmp_path, HEAD + STEP.replace("# in it", line))
    left = [one.text for one in ported.left if "batch to batch" in one.text]
    assert [one.startswith(said) for one in left] == ([True] if said else [])


TABLES = """from torch.utils.data import DataLoader, Subset
import torch
HARD, RANKS = torch.zeros(22), []
def loader_of(data):
    chosen = list(RANKS)
    for i in range(8):
        if HARD[i] > 0:
            chosen.append(i)
    return DataLoader(Subset(data, chosen + [0]), batch_size=6)
def note(rows):
    RANKS.extend(rows)
"""
CHANGE = "HARD[y.argmax(1)] = (out - y).abs().mean(1).detach()"
MADE = "loader = DataLoader(Subset(data, HARD.argsort()[:8].tolist()), batch_size=6)"


@pytest.mark.parametrize(
    ("each_epoch", "before", "line", "said"),
    [
        (MADE, "", CHANGE, "`HARD`"),
        ("", MADE, CHANGE, ""),
        (MADE, "", "HARD[epoch] = 1", ""),
        ("loader = tables.loader_of(data)", "", CHANGE, "`HARD`"),
        ("loader = tables.loader_of(data)", "", "note(out.argmax(1).tolist())", "(tables.py:11)"),
        ("", "loader = tables.loader_of(data)", CHANGE, ""),
        ("loader = pick()", f"def pick():\n    {MADE}\n    return loader", CHANGE, "`HARD`"),
        (f"{MADE.replace('HARD.argsort()[:8].tolist()', 'found')}; found = []",
         "found = [0]", "found += out.argmax(1).tolist()", "`found`"),
    ],
)  # fmt: skip
def test_what_chooses_the_next_epochs_samples_is_each_ranks(
    each_epoch: str, before: str, line: str, said: str, tmp_path: Path
) -> None:
    """A table or a list, of this file or of a helper; the loader is made anew in each epoch."""
    (tmp_path / "tables.py").write_text(TABLES)
    epochs = "for epoch in range(2):\n"
    text = TRAINING.replace("# in training", line)
    text = text.replace(epochs, f"{before}\n{epochs}    {each_epoch or 'pass'}\n")
    head = "import tables\nfrom tables import HARD, note\n" + HEAD
    left = [one.text for one in _ported(tmp_path, head + text).left if "batch to batch" in one.text]
    assert [said in one for one in left] == ([True] if said else [])
    if said and not before:  # made by who calls the loop
        fit = "def fit(loader, epoch):\n" + text[text.index("    for ") : text.index("    print(")]
        again = f"{fit}for epoch in range(2):\n    {each_epoch}\n    fit(loader, epoch)\n"
        _ported(tmp_path, head + again)
        assert [one for one in port(tmp_path / "train.py").left if said in one.text]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sampler.weights[y.argmax(1)] = out[:, 0].detach()", "`sampler.weights`"),
        ("chances[y.argmax(1)] = out[:, 0].detach()", "`chances`"),
        ("loader.dataset.table[y.argmax(1)] = 1", "`loader.dataset.table`"),
        ("own.update(y.argmax(1), 1)", "`self.table` is kept"),
        ("own.update(epoch, 1)", ""),
        ("seen[y.argmax(1)] = 1", ""),
    ],
)
def test_what_a_loader_goes_by_is_each_ranks(line: str, said: str, tmp_path: Path) -> None:
    """The weights of a sampler, a table of the data set."""
    made = """from torch.utils.data import Dataset, WeightedRandomSampler
class Own(Dataset):
    def __init__(self):
        self.table = torch.ones(22)
    def __getitem__(self, i):
        return data[i][0] * self.table[i], data[i][1]
    def update(self, i, value):
        self.table[i] = value
own, chances, seen = Own(), torch.ones(22), torch.ones(22)
sampler = WeightedRandomSampler(chances, 22)
loader = DataLoader(own, batch_size=6, sampler=sampler)
"""
    text = HEAD + made + TRAINING.replace("# in training", line)
    left = [one.text for one in _ported(tmp_path, text).left if "batch to batch" in one.text]
    assert [said in one for one in left] == ([True] if said else [])


def test_what_is_made_of_a_last_batch_is_said_to_be_of_rank_0s_part(tmp_path: Path) -> None:
    behind = "picture = out.detach().cpu()\n    torchvision.utils.save_image(picture, 'a.png')"
    text = "import torchvision.utils\n" + HEAD + TRAINING.replace("print(a, b)", behind)
    assert [one for one in _ported(tmp_path, text).left if "what is written here" in one.text]
    rows = "for i in range(len(x)):\n            table[len(table)]['x'] = out[i].mean().item()"
    text = HEAD + "import pandas\ntable = {}\n" + TRAINING.replace("# in training", rows)
    text = text.replace("print(a, b)", "frame = pandas.DataFrame.from_dict(table)")
    assert [one for one in _ported(tmp_path, text).left if "table: of rank 0's" in one.text]


def test_a_last_batch_by_which_is_decided_is_said_to_be_rank_0s(tmp_path: Path) -> None:
    text = TRAINING.replace("# in training", "c = (out > y).sum().item()")
    ported = _ported(tmp_path, HEAD + text.replace("print(a, b)", "if c > 3: print(1)"))
    assert "c = rankup.broadcast(c)" in ported.text
    assert [one for one in ported.left if "c: rank 0's on every rank" in one.text]


def test_one_of_several_losses_may_be_a_mean_over_some_targets(tmp_path: Path) -> None:
    own = """class Own(torch.nn.Module):
    def forward(self, out, y):
        mask = y > 0
        return ((out - y) ** 2 * mask).sum() / mask.sum()


criteria = [Own(), torch.nn.MSELoss()]
"""
    text = TRAINING.replace("criterion(out, y)", "sum(one(out, y) for one in criteria)")
    left = _ported(tmp_path, HEAD + own + text).left
    assert [one for one in left if "not seen to be a mean" in one.text]


def test_a_sum_beside_a_mean_is_refused(tmp_path: Path) -> None:
    text = TRAINING.replace("criterion(out, y)", "criterion(out, y) + (out - y).abs().sum()")
    with pytest.raises(UserError, match="adds up over the samples in one part"):
        _ported(tmp_path, HEAD + text)


MASKED = "F.cross_entropy(out, q, ignore_index=0)"


@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (f"{MASKED} + criterion(out, y)", True),
        (f"{MASKED} + F.cross_entropy(out, r, ignore_index=0)", True),
        (f"sum([{MASKED}, criterion(out, y)])", True),
        ("sum(one(out, q) for one in criteria)", True),
        (f"{MASKED} + F.cross_entropy(2 * out, q, ignore_index=0)", False),
        (f"{MASKED} + 0.1 * sum(p.pow(2).sum() for p in model.parameters())", False),
    ],
)
def test_means_over_different_targets_are_not_weighed_as_one(
    loss: str, refused: bool, tmp_path: Path
) -> None:
    criteria = "criteria = [torch.nn.CrossEntropyLoss(ignore_index=0), torch.nn.CrossEntropyLoss()]"
    text = f"{HEAD}{criteria}\n" + TRAINING.replace(
        "loss = criterion(out, y)", f"q, r = y.argmax(1), x.argmax(1)\n        loss = {loss}"
    )
    if refused:
        with pytest.raises(UserError, match="a mean over some targets in one part"):
            _ported(tmp_path, text)
    else:
        counts = _ported(tmp_path, text).text.count("rankup.count((q != 0).sum())")
        assert counts == 1


def test_noise_of_a_batch_is_left_alone_but_for_its_size(tmp_path: Path) -> None:
    head = HEAD.replace("batch_size=6", "batch_size=size")
    head = head.replace("import math", "import numpy as np\nsize = 6")
    noise = "z = torch.tensor(np.random.normal(0, 1, (x.shape[0], 3)))"
    text = head + TRAINING.replace("# in training", noise)
    assert noise in _ported(tmp_path, text).text
    whole = text.replace("(x.shape[0], 3)", "(size, 3)")
    assert "(0, 1, (x.size(0), 3))" in _ported(tmp_path, whole).text


COUNTED = """
def train(epochs):
    seen, last, kept = 0, 0, []
    for epoch in range(epochs):
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
            more = seen - last
            last = seen
            kept.append(more)
    return kept


def main():
    kept = train(2)
    return kept


main()
"""


def test_check_and_port_know_the_same_evaluations(tmp_path: Path) -> None:
    """By the name of a loader that nobody passes, and where a function runs the model."""
    body = "        step(x)\n\ndef step(x):\n    return model(x)\n"
    named = f"def score(valid_loader):\n    for x, y in valid_loader:\n{body}"
    path = tmp_path / "named.py"
    path.write_text(HEAD + named + TRAINING)
    assert any(one.code == "RK119" and ":13:" in one.place for one in check([path], ["RK"]))
    text = HEAD + f"def score():\n    for x, y in held:\n{body}score()\n" + TRAINING
    left = [one.text for one in _ported(tmp_path, text).left]
    assert any("every rank evaluates everything" in one for one in left)


def test_a_counter_that_is_put_together_stays_so_for_check(tmp_path: Path) -> None:
    ported = _ported(tmp_path, HEAD + COUNTED)
    assert "seen += rankup.batch_sum(len(x))" in ported.text
