"""The numbers of a port: put together where that is right whatever runs, else left and said."""

from __future__ import annotations

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
        "rows.extend(out.argmax(dim=1).tolist())",
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
        # Behind its backward the loss is of the whole batch, wherever it is read.
        ("a += loss.item()", "a += loss.item()"),
        ("print(f'{float(loss):.3f}')", "print(f'{float(loss):.3f}')"),
        ("if not torch.isfinite(loss):\n            break", "if not torch.isfinite(loss):"),
        ("if loss < a:\n            a = loss.detach()", "if loss < a:"),
        ("sched.step(loss)", "sched.step(loss)"),
        ("stops(loss)\n        if stops.now: break", "if stops.now: break"),
        # What is counted beside it is put together.
        ("a += loss.item() * len(x)", "a += rankup.batch_sum(loss.item() * len(x))"),
        ("b += (out > y).sum().item()", "b += rankup.batch_sum((out > y).sum().item())"),
        ("a, b = a + loss.item(), b + len(x)", "a + loss.item(), b + rankup.batch_sum(len(x))"),
        ("c = (out > y).float().mean().item()\n        print(c)", "print(rankup.batch_mean(c))"),
        ("print((out > y).sum() / len(y))", "print(rankup.batch_mean((out > y).sum() / len(y)))"),
        ("if len(x) < 6:\n            break", "if rankup.batch_sum(len(x)) < 6:"),
        # What decides and is no such number is rank 0's.
        ("if out.max() > 9:\n            break", "if rankup.broadcast(out.max() > 9):"),
        ("sched.step(out.max())", "sched.step(rankup.broadcast(out.max()))"),
        ("stops(out.max())\n        if stops.now: break", "if rankup.broadcast(stops.now): break"),
        ("if out.max() > 9: b += 1\n        if b > 3: break", "if rankup.broadcast(b > 3): break"),
    ],
)
def test_what_is_known_of_a_batch_is_of_the_whole_one(
    line: str, becomes: str, tmp_path: Path
) -> None:
    head = "stops = Stopper()\nsched = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    ported = _ported(tmp_path, HEAD + head + TRAINING.replace("# in training", line))
    assert becomes in ported.text
    assert "        rankup.backward(loss)\n" in ported.text
    assert bool(ported.left) is ("broadcast" in becomes)


@pytest.mark.parametrize(
    ("before", "becomes"),
    [
        ("print(loss.item())", "print(rankup.batch_mean(loss.item()))"),
        (
            "if not torch.isfinite(loss): continue",
            "if not torch.isfinite(rankup.batch_mean(loss)):",
        ),
        ("was = loss.item()\n        a += was", "a += rankup.batch_mean(was)"),
    ],
)
def test_a_loss_that_is_read_before_its_backward(before: str, becomes: str, tmp_path: Path) -> None:
    text = HEAD + TRAINING.replace(
        "optimizer.zero_grad()", f"{before}\n        optimizer.zero_grad()"
    )
    ported = _ported(tmp_path, text)
    assert becomes in ported.text
    assert not ported.left


@pytest.mark.parametrize(
    ("old", "new", "becomes"),
    [
        ("loss.backward()", "(loss / 4).backward()", "rankup.backward(loss, scale=1 / 4)"),
        ("loss.backward()", "(loss * w).backward()", "rankup.backward(loss, scale=w)"),
        (
            "loss.backward()",
            "(loss / (2 * w)).backward()",
            "rankup.backward(loss, scale=1 / (2 * w))",
        ),
        (
            "loss.backward()",
            "scaler.scale(loss).backward()",
            "rankup.backward(loss, scaler=scaler)",
        ),
        (
            "loss.backward()",
            "scaler.scale(loss / 2).backward()",
            "rankup.backward(loss, scaler=scaler, scale=1 / 2)",
        ),
        ("loss.backward()", "torch.autograd.backward(loss)", "rankup.backward(loss)"),
        (
            "loss.backward()",
            "loss.backward(retain_graph=True)",
            "rankup.backward(loss, retain_graph=True)",
        ),
        ("loss.backward()", "loss.backward(torch.ones(()))", "loss.backward(torch.ones(()))"),
        ("loss = criterion(out, y)", "loss, n = criterion(out, y), 1", "rankup.backward(loss)"),
    ],
)
def test_a_backward_that_all_ranks_do_together(
    old: str, new: str, becomes: str, tmp_path: Path
) -> None:
    text = "w = 0.5\nscaler = Scaler()\n" + HEAD + TRAINING.replace(old, new)
    assert f"        {becomes}\n" in _ported(tmp_path, text).text


def test_a_value_that_stays_a_ranks_own_is_put_together_where_it_is_read(tmp_path: Path) -> None:
    """Under `retain_graph`; and the terms of a loss, which no backward starts from."""
    kept = TRAINING.replace("backward()", "backward(retain_graph=True)")
    text = _ported(tmp_path, HEAD + kept.replace("# in training", "a += loss.item()")).text
    assert "a += rankup.batch_mean(loss.item())" in text
    terms = "first, second = own(out, y), own(out, x)\n        loss = first + 0.1 * second"
    for line in ("a += first.item()", "print(second.item())"):
        made = TRAINING.replace("loss = criterion(out, y)", terms).replace("# in training", line)
        part = "first" if "first" in line else "second"
        assert f"rankup.batch_mean({part}.item())" in _ported(tmp_path, HEAD + made).text


@pytest.mark.parametrize(
    ("loss", "becomes"),
    [
        ("criterion(out, y).sum()", "backward(loss)"),
        ("F.mse_loss(out, y, reduction='sum') + out.abs().sum()", "backward(loss, summed=True)"),
        ("F.mse_loss(out, y, None, None, 'sum')", "backward(loss, summed=True)"),
        ("F.mse_loss(out, y, False)", "backward(loss, summed=True)"),
        ("torch.nn.MSELoss(None, None, 'sum')(out, y)", "backward(loss, summed=True)"),
        ("torch.nn.MSELoss(reduce=False)(out, y).sum()", "backward(loss, summed=True)"),
        ("elbo(out, y)", "backward(loss, summed=True)"),
        ("criterion(out, y) * len(x)", "backward(loss, summed=True)"),
        ("(out - y).pow(2).sum() / len(x)", "backward(loss)"),
        ("(1 / len(x)) * (out - y).pow(2).sum()", "backward(loss)"),
        ("(out - y).pow(2).sum().div(x.shape[0])", "backward(loss)"),
        ("(out - y).pow(2).sum() / 6", "backward(loss, summed=True)"),
        ("(out - y).pow(2).sum(dim=1).mean()", "backward(loss)"),
        ("criterion(out, y) + sum(p.pow(2).sum() for p in model.parameters())", "backward(loss)"),
    ],
)
def test_a_sum_is_told_from_a_mean_by_what_it_is_made_of(
    loss: str, becomes: str, tmp_path: Path
) -> None:
    elbo = "def elbo(out, y):\n    likely = F.mse_loss(out, y, reduction='sum')\n"
    elbo += "    apart = -0.5 * torch.sum(out)\n    return likely + apart\n"
    text = HEAD + elbo + TRAINING.replace("criterion(out, y)", loss)
    ported = _ported(tmp_path, text)
    assert f"        rankup.{becomes}\n" in ported.text
    assert not ported.left


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("losses.append({})", "losses.append({})"),
        ("losses += [{}]", "losses.extend([{}])"),
    ],
)
@pytest.mark.parametrize("made", ["sum(losses)", "torch.stack(losses).sum()"])
def test_the_terms_that_a_list_keeps_for_the_loss_stay_in_the_graph(
    first: str, second: str, made: str, tmp_path: Path
) -> None:
    lines = [
        "losses = []",
        first.format("criterion(out, y)"),
        second.format("0.5 * F.l1_loss(out, y)"),
        f"loss = {made}",
    ]
    body = TRAINING.replace("loss = criterion(out, y)", "\n        ".join(lines))
    text = _ported(tmp_path, HEAD + body).text
    assert "rankup.backward(loss)" in text
    assert "batch_mean" not in text
    assert "batch_sum" not in text


def test_the_value_of_a_loss_whose_graph_is_kept_stays_of_a_part(tmp_path: Path) -> None:
    body = TRAINING.replace("loss.backward()", "loss.backward(retain_graph=True)")
    ported = _ported(tmp_path, HEAD + body.replace("print(a, b)", "print(loss.item())"))
    done = [note.text for note in ported.done if "rankup.backward" in note.text]
    assert done == ["ranks take the step together (rankup.backward)"]
    assert any(note.text.startswith("loss:") for note in ported.left)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("torch.sqrt(criterion(out, y))", "not seen to be a mean"),
        ("sum(parts.values())", "nor a sum"),
        ("sum(l for l in parts.values())", "nor a sum"),
        ("sum(w[0] * v for v in parts.values())", "nor a sum"),
        ("torch.stack(list(parts.values())).sum()", "nor a sum"),
        ("(w[0] * torch.cat(list(parts.values()))).view(-1).sum()", "nor a sum"),
        ("torch.mean(torch.stack([F.mse_loss(o, y, reduction='sum') for o in out]))", "nor a sum"),
        ("either(out, y)", "not seen to be a mean"),
        ("(out - y).pow(2)[kept].mean()", "divides by what counts"),
        ("((out - y).pow(2) * w[0]).sum() / w[0].sum()", "divides by what counts"),
    ],
)
def test_a_loss_of_which_it_is_not_seen_what_it_is_is_said(
    loss: str, said: str, tmp_path: Path
) -> None:
    either = (
        "def either(out, y):\n    if ALL: return (out - y).sum()\n    return criterion(out, y)\n"
    )
    ported = _ported(tmp_path, HEAD + either + TRAINING.replace("criterion(out, y)", loss))
    assert [one for one in ported.left if said in one.text]
    assert "summed" not in ported.text.replace("of a sum: rankup.backward(loss, summed=True)", "")


@pytest.mark.parametrize("decides", ["if acc < best:\n        break", "plateau.step(acc)"])
def test_a_sharded_evaluation_decides_for_all_ranks(decides: str, tmp_path: Path) -> None:
    evaluate = """def evaluate():
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in held:
            right += (model(x).argmax(1) == y.argmax(1)).sum().item()
    return right / len(data)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
best = 0
"""
    text = HEAD + evaluate + TRAINING + f"    acc = evaluate()\n    {decides}\n    best = acc\n"
    ported = _ported(tmp_path, text)  # RK122 is not among what check finds of it
    assert "right = rankup.total(right)" in ported.text
    assert "rankup.broadcast" not in ported.text


@pytest.mark.parametrize(
    "line",
    [
        "print(out.mean().item(), x.num_graphs)",
        "a += accuracy(out, y); b += len(y); print(a / b)",
        "print(loss.item() / x.num_graphs)",
        "a = 0.9 * a + 0.1 * accuracy(out, y)",
    ],
)
def test_what_is_not_known_is_rank_0s_and_said(line: str, tmp_path: Path) -> None:
    """All that a loop counts is of all ranks, or none of it."""
    if "mean().item()" in line:
        line = line.replace("out.mean", "out.std")
    ported = _ported(tmp_path, HEAD + TRAINING.replace("# in training", line))
    assert line in ported.text
    assert ported.left


@pytest.mark.parametrize(
    ("loss", "units"),
    [
        ("(out - y).pow(2)[y > 0].mean()", "(y > 0).sum()"),
        ("((out - y).pow(2) * y).sum() / y.sum()", "y.sum()"),
        ("((out - y).pow(2) * y).sum() / y.sum().clamp(min=1)", "y.sum()"),
        ("F.cross_entropy(out, q, ignore_index=0)", "(q != 0).sum()"),
        ("F.cross_entropy(out, q, weight=torch.ones(5))", ""),
        ("nn.CrossEntropyLoss(ignore_index=0)(out, q)", "(q != 0).sum()"),
    ],
)
def test_what_a_mean_over_some_targets_divides_by_is_counted(
    loss: str, units: str, tmp_path: Path
) -> None:
    made = f"q = y.argmax(1)\n        loss = {loss}"
    text = "from torch import nn\n" + HEAD + TRAINING.replace("loss = criterion(out, y)", made)
    ported = _ported(tmp_path, text)
    assert (f"        rankup.count({units})\n" in ported.text) is bool(units)
    assert bool(ported.left) is not bool(units)


DECIDES = """def evaluate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in held:
            total += criterion(model(x), y).item()
    return total / len(held)

best, values, stopper = 9.0, [], Stopper()
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
"""


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("scheduler.step(evaluate())", "scheduler.step(rankup.broadcast(evaluate()))"),
        ("v = evaluate()\n    scheduler.step(v)", "scheduler.step(rankup.broadcast(v))"),
        (
            "stopper(evaluate())\n    if stopper.now: break",
            "if rankup.broadcast(stopper.now): break",
        ),
        (
            "values.append(evaluate())\n    if values[-1] > 1: break",
            "if rankup.broadcast(values[-1]",
        ),
        ("if evaluate() > best: a = 1\n    if a: break", "if rankup.broadcast(a): break"),
        # No plain decision: each rank has its number, rank 0's are written.
        ("cosine.step()", "    cosine.step()"),
        ("v = evaluate()\n    if v < best: best = v", "    if v < best: best = v"),
        ("print(evaluate())", "    print(evaluate())"),
    ],
)
def test_what_an_evaluation_decides_plainly_is_rank_0s(
    line: str, becomes: str, tmp_path: Path
) -> None:
    text = HEAD + DECIDES + TRAINING.replace("print(a, b)", line)
    ported = _ported(tmp_path, text)
    assert becomes in ported.text
    assert ("rankup.broadcast(" in ported.text) is ("rankup.broadcast(" in becomes)


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
        assert ported.text.count("+= rankup.batch_sum(") == known


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
        ("self.right += unknown(out)", "self.right: of rank 0's part of the batch"),
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
    # Who reads the list behind the step has a remark of its own.
    left = [one for one in left if not one.startswith("self.rows: of this rank's part")]
    assert [one.startswith(said) for one in left] == ([True] if said else [])


def test_what_is_made_of_a_last_batch_is_said_to_be_of_rank_0s_part(tmp_path: Path) -> None:
    behind = "picture = out.detach().cpu()\n    torchvision.utils.save_image(picture, 'a.png')"
    text = "import torchvision.utils\n" + HEAD + TRAINING.replace("print(a, b)", behind)
    assert [one for one in _ported(tmp_path, text).left if "what is written here" in one.text]
    rows = "for i in range(len(x)):\n            table[len(table)]['x'] = out[i].mean().item()"
    text = HEAD + "import pandas\ntable = {}\n" + TRAINING.replace("# in training", rows)
    text = text.replace("print(a, b)", "frame = pandas.DataFrame.from_dict(table)")
    assert [one for one in _ported(tmp_path, text).left if "of rank 0's part" in one.text]


def test_a_sum_beside_a_mean_is_refused(tmp_path: Path) -> None:
    text = TRAINING.replace("criterion(out, y)", "criterion(out, y) + (out - y).abs().sum()")
    with pytest.raises(UserError, match="adds up over the samples in one part"):
        _ported(tmp_path, HEAD + text)


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
