"""Wrong ports that look right: as long as all ranks draw alike, or where nothing is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.rewrite.ported import port
from rankup.port.verify.compare.said import Said, SaidFile

from .several import KINDS, differing, results

SCRIPTS = Path(__file__).parent / "scripts"
DRAWN, UNSEEN, BATCHES, LATER = (
    (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    for name in ("drawn", "unseen", "batches", "later")
)
SETUP = """
import rankup


def states():
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore(kept):
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


_, rank, _, world = rankup.setup()
rankup.quiet()
restore(rankup.broadcast(states()))
folder = rankup.broadcast("""


def changed(text: str, *pairs: tuple[str, str]) -> str:
    """A script with some of its texts replaced, each of which is there."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def said_at(script: str, *texts: str) -> Said:
    """What port would say: at the first line with each of these texts there is a rank's part."""
    lines = [script[: script.index(text)].count("\n") + 1 for text in texts]
    remarks = tuple((line, "of rank 0's part of the batch") for line in lines)
    return Said((SaidFile("train.py", script, remarks),))


PORT = changed(
    DRAWN,
    ("\nfolder = ", SETUP),
    ("time.strftime('%d')}\"", "time.strftime('%d')}\")"),
    ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
    ("os.makedirs(folder)", "os.makedirs(folder, exist_ok=True)"),
    (
        "    for x, y in loader:\n",
        "    kept = states()\n    random.seed(rank)\n    np.random.seed(rank)\n"
        "    for x, y in rankup.shard(loader):\n",
    ),
    ("random.random() < 0.2", "rankup.broadcast(random.random()) < 0.2"),
    ("    model.eval()\n", "    restore(kept)\n    model.eval()\n"),
    ("    with open(", "    if rank == 0:\n     with open("),
    ("        log.write(", "         log.write("),
    ("torch.save(model", "rankup.save0(model"),
)
OTHERS = "hits / seen"  # a number that the port leaves to rank 0
# What is wrong -> the port, its runs, the check that finds it, and a word of what it says.
WRONG = {
    "split": (
        [("restore(rankup.broadcast(states()))\n", "if rank:\n    np.random.seed(rank)\n")],
        ("2",),
        ("samples", "is another one on rank"),
    ),
    "noise": (
        [("        output = model(x)\n", "        output = model(x)\n        np.random.seed(5)\n")],
        ("free",),
        ("samples", "the same numbers from NumPy's random in the training loop"),
    ),
    "crops": (
        [
            (
                "        output = model(x)\n",
                "        output = model(x)\n        torch.manual_seed(3)\n",
            )
        ],
        ("free",),
        ("samples", "the same numbers from torch's random in a data set"),
    ),
    "values behind the wrap": (
        [
            (
                "model = rankup.wrap(model)\n",
                "model = rankup.wrap(model)\ntorch.manual_seed(rank)\n"
                "with torch.no_grad():\n    model[0].weight.normal_()\n",
            )
        ],
        ("2",),
        ("parameters", "before the first step 1 of 4 parameters"),
    ),
    "mean of logarithms": (
        [
            (
                "        for x, y in valid_loader:\n",
                "        for x, y in rankup.shard(valid_loader, train=False):\n",
            ),
            (
                "10 * math.log10(count / total):",
                "rankup.all_reduce(10 * math.log10(count / total)) / world:",
            ),
            (
                "{total / count:.5f}",
                "{seen_error:.5f}",
            ),
            (
                '    print(f"epoch',
                '    seen_error = rankup.mean(total, count)\n    print(f"epoch',
            ),
        ],
        ("2",),
        ("evaluation", "decibel"),
    ),
    "a number of one rank in a file": (
        [
            (
                "        for x, y in valid_loader:\n",
                "        for x, y in rankup.shard(valid_loader, train=False):\n",
            ),
            (
                "10 * math.log10(count / total):",
                "10 * math.log10(1 / rankup.mean(total, count)):",
            ),
        ],
        ("2", "alike"),
        ("output", "log.csv"),
    ),
    "another number": (
        [(OTHERS, "2 * hits / seen")],
        ("2", "alike"),
        ("evaluation", "hits"),
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wrong_ports_that_an_aligned_run_proves(tmp_path: Path) -> None:
    """Each is found, by its check and with its reason; the right one's numbers are rank 0's."""
    ports = {name: changed(PORT, *pairs) for name, (pairs, *_) in WRONG.items()}
    kinds = {name: runs for name, (_, runs, _) in WRONG.items()}
    said = said_at(DRAWN, 'print(f"epoch')
    every = {"right": PORT, **ports}
    found = results(tmp_path, DRAWN, every, kinds={**kinds, "right": KINDS}, said=said)
    states = {one.check: (one.state, one.differences) for one in found["right"]}
    for check, (state, differences) in states.items():
        assert state == ("rank 0's" if check == "output" else "same"), (check, differences)
    for name, (*_, (check, word)) in WRONG.items():
        one = next(one for one in found[name] if one.check == check)
        assert one.state == "differs", (name, found[name])
        assert any(word in text for text in one.differences), (name, one)


# A wrong port that computes the losses of the first steps -> what is wrong, and what is said.
WRONG_LATER = {
    "average": (("b, 0.01", "b, 0.1"), "losses", "the parameters of Linear are not the original's"),
    "gradient": (
        (
            "        nn.utils",
            "        [one.grad.div_(world) for one in model.parameters()]\n        nn.utils",
        ),
        "losses",
        "before it is clipped",
    ),
    "epochs": (("range(10)", "range(10 // world)"), "losses", "has 10 rounds"),
    "schedule": (("T_max=300", "T_max=300 // world"), "losses", "step 2: lr is 0.099989"),
    "plateau": (("step(total / count)", "step(total / count + rank)"), "parameters", "rates part"),
    "log": (('%.5f", total', '%.5f", 3 * total'), "evaluation", "INFO:train:validation"),
    "array": (("np.array(history)", "2 * np.array(history)"), "saved", "history.npy"),
    "another rank": (
        ("if rank == 0:\n    with", "history = history[::-1]\nif rank == 1:\n    with"),
        "output",
        "history.json",
    ),
    "checkpoint": (("min(history)", "max(history) + 1"), "saved", "['best']"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wrong_ports_whose_first_steps_are_right(tmp_path: Path) -> None:
    """Faults that show only in later epochs, in what no loss depends on, or in a file or a log."""
    port = changed(
        LATER,
        ("import numpy", "import rankup\nimport numpy"),
        (
            "torch.manual_seed(0)",
            "_, rank, _, world = rankup.setup()\nrankup.quiet()\ntorch.manual_seed(0)",
        ),
        ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
        ("in loader:", "in rankup.shard(loader):"),
        ("np.save(", "if rank == 0:\n    np.save("),
        ("with open", "if rank == 0:\n    with open"),
        ("    json.dump", "        json.dump"),
        ("torch.save(", "rankup.save0("),
    )
    wrong = {name: changed(port, pair) for name, (pair, *_) in WRONG_LATER.items()}
    found = results(tmp_path, LATER, {"right": port, **wrong})
    assert {one.state for one in found["right"]} <= {"same", "-"}, found["right"]
    for name, (_, check, word) in WRONG_LATER.items():
        one = next(one for one in found[name] if one.check == check)
        assert one.state == "differs", (name, found[name])
        assert any(word in text for text in one.differences), (name, one)


def test_what_only_a_bar_shows_or_was_not_reached_is_not_proved(tmp_path: Path) -> None:
    port = changed(
        UNSEEN,
        (
            "torch.manual_seed(0)",
            "import rankup\nrankup.setup()\nrankup.quiet()\ntorch.manual_seed(0)",
        ),
        ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
        ("in loader", "in rankup.shard(loader)"),
        ("hits / len(x)", "rankup.mean(0.0, 1.0)"),
        ("with open(", "if rankup.is_root_process():\n with open("),
        ("    file.write", "  file.write"),
    )
    states = {one.check: one for one in results(tmp_path, UNSEEN, {"port": port})["port"]}
    assert states["losses"].state == states["samples"].state == "same"
    assert states["evaluation"].state == states["saved"].state == "not seen", states
    assert "not reached: train.py:" in states["evaluation"].detail
    assert "model.safetensors: it cannot be read" in states["saved"].unseen[0]


@pytest.mark.slow
def test_batches_that_are_drawn_without_gradients_are_trained_on(tmp_path: Path) -> None:
    """A port that shards none of them has each rank draw them all."""
    drawn = changed(
        UNSEEN,
        ("for epoch", "torch.set_grad_enabled(False)\nfor epoch"),
        ("        F.", "        with torch.enable_grad():\n            F."),
    )
    port = changed(
        drawn,
        ("torch.manual_seed(0)", "import rankup\nrankup.setup()\ntorch.manual_seed(0)"),
        ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
    )
    states = {one.check: one for one in results(tmp_path, drawn, {"port": port})["port"]}
    assert states["samples"].state == "differs", states


@pytest.mark.slow
def test_batches_drawn_by_a_function(tmp_path: Path) -> None:
    port = changed(
        BATCHES,
        (
            "torch.manual_seed(0)",
            "import rankup\n_, rank, _, world = rankup.setup()\ntorch.manual_seed(0)",
        ),
        ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
        ("= get_batch()", "= rankup.deal(get_batch())"),
        ("torch.save", "rankup.save0"),
    )
    ports = {
        "right": port,
        "own": changed(
            port,
            ("rankup.deal(get_batch())", "get_batch()"),
            ("for _", "torch.manual_seed(rank)\nfor _"),
        ),
        "same": changed(port, ("rankup.deal(get_batch())", "get_batch()")),
    }
    found = results(tmp_path, BATCHES, ports)
    right = {one.check: one for one in found["right"]}
    assert right["losses"].state == right["saved"].state == "same", right
    assert right["samples"].state == "not seen"
    assert "losses" in {one.check for one in found["own"] if one.state == "differs"}
    assert differing(found["same"]) == {"samples"}


@pytest.mark.slow
def test_a_rank_that_decides_by_itself_is_ended(tmp_path: Path) -> None:
    """The ranks leave out other batches, and wait for each other from then on."""
    port = changed(PORT, ("rankup.broadcast(random.random()) < 0.2", "random.random() < 0.2"))
    found = results(tmp_path, DRAWN, {"port": port}, kinds={"port": ("free",)}, seconds=20.0)
    losses = next(one for one in found["port"] if one.check == "losses")
    assert losses.state == "differs"
    assert "random numbers and a clock of each rank's own" in losses.differences[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_without_a_sample_is_met(tmp_path: Path) -> None:
    """It computes on a sample of weight zero, which a sum over the loop's batches counts."""
    script, port = (
        (SCRIPTS / name).read_text(encoding="utf-8") for name in ("one.py", "one_dist.py")
    )
    wrong = changed(
        port,
        ("rankup.batch_mean(loss.item()) * rankup.batch_sum(len(y))", "loss.item() * len(y)"),
        ("seen += rankup.batch_sum(len(y))", "seen += len(y)"),
        ("return total / seen", "return float(rankup.mean(total, seen))"),
    )
    kinds = {"right": ("2", "one"), "wrong": ("2", "one")}
    found = results(tmp_path, script, {"right": port, "wrong": wrong}, kinds=kinds)
    assert {one.state for one in found["right"]} == {"same"}
    differ = {(one.check, one.world) for one in found["wrong"] if one.state != "same"}
    assert differ == {("evaluation", 3)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_drawn_between_passes_is_alike(tmp_path: Path) -> None:
    """By the runtime itself: with several models, and loaders side by side."""
    script = (SCRIPTS / "between.py").read_text(encoding="utf-8")
    wrapped = "generator, critic, classifier = map(rankup.wrap, (generator, critic, classifier))\n"
    port = changed(
        script,
        ("data = Negatives", "import rankup\n\nrankup.setup()\nrankup.quiet()\ndata = Negatives"),
        ("of_generator = torch", f"{wrapped}of_generator = torch"),
        ("zip(loader, real_loader", "zip(rankup.shard(loader), rankup.shard(real_loader)"),
        (
            "    for x, y in train_loader:\n        of",
            "    for x, y in rankup.shard(train_loader):\n        of",
        ),
    )
    wrong = changed(
        port,
        ("    data.draw()", "    if rankup.setup().rank:\n        random.seed(5)\n    data.draw()"),
    )
    kinds = {"right": ("2", "free"), "wrong": ("2",)}
    found = results(tmp_path, script, {"right": port, "wrong": wrong}, kinds=kinds)
    assert {one.state for one in found["right"]} == {"same", "-"}, found["right"]
    samples = next(one for one in found["wrong"] if one.check == "samples")
    assert "is another one on rank 1" in samples.differences[0]


@pytest.mark.slow
def test_a_pass_of_a_model_left_in_eval_draws_apart_from_its_first_backward(tmp_path: Path) -> None:
    """The states that the port sets there are not drawn from."""
    script = (SCRIPTS.parents[1] / "cases" / "run_eval_lists.in.py").read_text(encoding="utf-8")
    (tmp_path / "one.py").write_text(script, encoding="utf-8")
    ports = {"right": port(tmp_path / "one.py").text}
    found = results(tmp_path, script, ports, kinds={"right": ("free",)})
    assert not differing(found["right"]), found["right"]


LIBRARIES = """from datetime import datetime

import pandas
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

started = str(datetime.now())
x = torch.randn(24, 3)
sampler = RandomSampler(TensorDataset(x), replacement=True, num_samples=10**10)
batches = iter(DataLoader(TensorDataset(x), batch_size=6, sampler=sampler))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(4):
    (rows,) = next(batches)
    loss = model(rows).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_library_built_upon_the_clock_and_a_sampler_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(LIBRARIES, encoding="utf-8")
    found = results(tmp_path, LIBRARIES, {"port": port(tmp_path / "one.py").text})
    assert not [one for one in found["port"] if one.state == "differs"]
    assert any(one.check == "losses" and one.state == "same" for one in found["port"])


SHOWN = """import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.arange(60.0).view(20, 3) / 60)
loader = DataLoader(data, batch_size=5)
valid = DataLoader(TensorDataset(torch.arange(36.0).view(12, 3) / 36), batch_size=5)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def check():
    with torch.no_grad():
        print(f"{sum(model(rows).sum().item() for (rows,) in valid):.6f}")


def show():
    with torch.no_grad():
        for (rows,) in list(valid)[:2]:
            model(rows)


for epoch in range(2):
    for (rows,) in loader:
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    show()
    check()
"""


PIECES = """import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.arange(60.0).view(20, 3) / 60)
loader = DataLoader(data, batch_size=5)
rows_of = iter(DataLoader(data, batch_size=5))
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (rows,) in loader:
        loss = model(rows).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            (rows,) = next(rows_of, (rows,))
            print(f"{model(rows).sum().item():.6f}")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("off", [True, False])
def test_an_iterator_made_with_gradients_on_evaluates_all_the_same(
    off: bool, tmp_path: Path
) -> None:
    """Its batches are drawn between the steps; that nothing of them is differentiated counts."""
    script = PIECES if off else PIECES.replace("with torch.no_grad():", "if True:")
    (tmp_path / "one.py").write_text(script, encoding="utf-8")
    found = results(tmp_path, script, {"port": port(tmp_path / "one.py").text})
    states = {one.check: one for one in found["port"]}
    assert states["samples"].state == "same", states
    assert states["evaluation"].state == "same", states


@pytest.mark.timeout(600)
def test_what_rank_0_alone_looks_at_is_no_other_evaluation(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SHOWN, encoding="utf-8")
    text = changed(
        port(tmp_path / "one.py").text,
        ("    show()\n", "    if rankup.is_root_process(): show()\n"),
    )
    found = results(tmp_path, SHOWN, {"port": text})
    assert not [one for one in found["port"] if one.state == "differs"]


SINKS = (SCRIPTS / "sinks.py").read_text(encoding="utf-8")
# Where a number, a tensor or a picture of the last batch goes -> the check that finds it.
SHOWN_AT = {
    'print(f"epoch': ("output", "acc 0."),
    'tell("pic': ("output", "pictures"),
    "np.save": ("saved", "history.npy has values that differ"),
    'torch.save({"shown"': ("saved", "shown.pt: ['shown'] has shape (3, 4) where the original's"),
    "torch.save(draw": ("saved", "made.pt has shape (3, 3)"),
    'with open("means.pkl': ("saved", "means.pkl: ['means'][0] is "),
    'with open("means.csv': ("output", "means.csv"),
    "Image.from": ("saved", "picture.png has other pixels"),
    "plt.savefig": ("saved", "means.pdf: ['axes 0: line 0'] has values that differ"),
}


def ported(script: str, *pairs: tuple[str, str]) -> str:
    """A port by hand of a script with a loader, a model and one rank that writes."""
    return changed(
        script,
        ("torch.manual_seed(0)", "import rankup\nrankup.setup()\ntorch.manual_seed(0)"),
        ("optimizer = torch", "model = rankup.wrap(model)\noptimizer = torch"),
        ("in loader:", "in rankup.shard(loader):"),
        *pairs,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_made_of_the_last_batch_goes_nowhere_unseen(tmp_path: Path) -> None:
    """Each sink differs, and is rank 0's alone where port says so."""
    port = ported(
        SINKS,
        ("rankup.setup()", "rankup.setup()\nrankup.quiet()"),
        ("np.save(", "if rankup.is_root_process():\n  np.save("),
        ("torch.save(", "rankup.save0("),
        ('with open("means.pkl"', 'with open(rankup.path0("means.pkl")'),
        ('with open("means.csv"', 'with open(rankup.path0("means.csv")'),
        ("Image.from", "if rankup.is_root_process():\n  Image.from"),
        ("plt.savefig(", "if rankup.is_root_process():\n  plt.savefig("),
    )
    found = {one.check: one for one in results(tmp_path, SINKS, {"port": port})["port"]}
    assert {check for check, one in found.items() if one.state == "differs"} == {"output", "saved"}
    for check, text in SHOWN_AT.values():
        assert any(text in one for one in found[check].differences), (text, found[check])
    said = said_at(SINKS, *SHOWN_AT)
    kinds = {"port": ("2", "alike")}
    found = {
        one.check: one
        for one in results(tmp_path, SINKS, {"port": port}, kinds=kinds, said=said)["port"]
    }
    assert found["output"].state == found["saved"].state == "rank 0's", found
    assert not differing([*found.values()])


MINUTES = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 5), torch.randn(40, 5))
loader = DataLoader(data, batch_size=6, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(30, 5), torch.randn(30, 5)), batch_size=4)
model = nn.Linear(5, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss(None, None, "sum")
best = 1e9
for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = 0
    with torch.no_grad():
        for x, y in valid:
            total += criterion(model(x), y).item()
    best = min(best, total / 30)
    print(f"valid {total / 30:.4f} min {best:.4f}")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_number_before_min_and_a_sum_by_position(tmp_path: Path) -> None:
    right = ported(
        MINUTES,
        ("rankup.setup()", "rankup.setup()\nrankup.quiet()"),
        ("in valid:", "in rankup.shard(valid, train=False):"),
        ("    best =", "    total = rankup.all_reduce(total)\n    best ="),
        ("loss.backward()", "rankup.backward(loss, summed=True)"),
    )
    ports = {
        "right": right,
        # `best` is whole, and the number before it rank 0's.
        "minutes": changed(
            right,
            ("    total = rankup.all_reduce(total)\n", ""),
            ("total / 30)", "rankup.all_reduce(total) / 30)"),
        ),
        "mean": changed(right, ("rankup.backward(loss, summed=True)", "loss.backward()")),
    }
    found = results(tmp_path, MINUTES, ports)
    assert not differing(found["right"]), found["right"]
    assert differing(found["minutes"]) == {"evaluation"}
    assert "losses" in differing(found["mean"])


CHANCE = """import os
import random
import uuid

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def collate(rows):
    return torch.stack([row[0] for row in rows])


def test_later():
    torch.set_grad_enabled(False)
    for x in tested:
        print(model(x).sum())


torch.manual_seed(0)
data = TensorDataset(torch.rand(40, 4))
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
tested = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in loader:
        if len(x) == 6:
            x = 2 * x
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch > 7:
        test_later()
for x in tested:
    x[0] + torch.rand_like(x[0])
os.makedirs("runs", exist_ok=True)
with open(f"runs/{uuid.uuid4().hex}.txt", "w") as file:
    file.write("done 7")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_nobody_compares_is_said_and_chance_is_no_difference(tmp_path: Path) -> None:
    """Batch norm in a model; names of files and draws of an evaluation are no faults."""
    right = ported(
        CHANCE,
        ("with open(", "if rankup.is_root_process():\n with open("),
        ("    file.write", "  file.write"),
        ("len(x) == 6", "rankup.batch_sum(len(x)) == 6"),
    )
    wrong = changed(right, ("rankup.batch_sum(len(x)) == 6", "len(x) == 6"))
    kinds = {"right": ("2", "free", "3"), "wrong": ("3",)}
    found = results(tmp_path, CHANCE, {"right": right, "wrong": wrong}, kinds=kinds)
    assert not differing(found["right"]), found["right"]
    evaluation = next(one for one in found["right"] if one.check == "evaluation")
    assert evaluation.state == "not seen"
    assert "train.py:16" in evaluation.detail
    assert differing(found["wrong"]) >= {"losses"}
    draws = ("return torch.stack([row[0] ", "return random.random() * torch.stack([row[0] ")
    script, port = changed(CHANCE, draws), changed(right, draws)
    found = results(tmp_path, script, {"one draw for a batch": port})
    assert "losses" in differing(found["one draw for a batch"])
