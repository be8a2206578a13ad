"""Wrong ports that look right: as long as all ranks draw alike, or where nothing is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.rewrite.ported import port

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
    found = results(tmp_path, DRAWN, {"right": PORT, **ports}, kinds={**kinds, "right": KINDS})
    states = {one.check: (one.state, one.differences) for one in found["right"]}
    for check, (state, differences) in states.items():
        assert state == ("rank 0's" if check == "output" else "proved"), (check, differences)
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
    "array": (("np.array(history)", "2 * np.array(history)"), "output", "history.npy"),
    "another rank": (
        ("if rank == 0:\n    with", "history = history[::-1]\nif rank == 1:\n    with"),
        "output",
        "history.json",
    ),
    "checkpoint": (("min(history)", "max(history) + 1"), "output", "['best']"),
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
    assert {one.state for one in found["right"]} == {"proved"}, found["right"]
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
    assert states["losses"].state == states["samples"].state == "proved"
    assert states["evaluation"].state == states["saved"].state == "not seen", states
    assert "not reached: train.py:" in states["evaluation"].detail
    assert "model.safetensors" in states["saved"].detail


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
    assert right["losses"].state == right["saved"].state == "proved", right
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
    kinds = {"right": ("2", "3"), "wrong": ("2", "3")}
    found = results(tmp_path, script, {"right": port, "wrong": wrong}, kinds=kinds)
    assert {one.state for one in found["right"]} == {"proved"}
    differ = {(one.check, one.world) for one in found["wrong"] if one.state != "proved"}
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
    assert {one.state for one in found["right"]} == {"proved", "not seen"}, found["right"]
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
    assert any(one.check == "losses" and one.state == "proved" for one in found["port"])


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
    assert states["samples"].state == "proved", states
    assert states["evaluation"].state == ("proved" if off else "not seen"), states


@pytest.mark.timeout(600)
def test_what_rank_0_alone_looks_at_is_no_other_evaluation(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SHOWN, encoding="utf-8")
    text = changed(
        port(tmp_path / "one.py").text,
        ("    show()\n", "    if rankup.is_root_process(): show()\n"),
    )
    found = results(tmp_path, SHOWN, {"port": text})
    assert not [one for one in found["port"] if one.state == "differs"]
