"""`rankup port` of a script whose modules train: each gets a port beside it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.command import port_file, report
from rankup.port.rewrite.ported import Ported, port

FIT = """import torch


def fit(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = (model(x) - y).abs().mean()
        loss.backward()
        optimizer.step()
"""
HEAD = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
MADE = """
data = TensorDataset(torch.randn(20, 2), torch.randn(20, 1))
model = torch.nn.Linear(2, 1)
loader = DataLoader(data, batch_size=4, shuffle=True)
"""
PLAIN = HEAD + "from engine import fit\n" + MADE + "fit(model, loader)\n"
TRAINER = """import torch


class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self):
        for x, y in self.loader:
            loss = (self.model(x) - y).abs().mean()
            loss.backward()
            self.optimizer.step()
"""


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


def _ported(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The texts of a port, by the names of the files that it goes to."""
    path = _write(folder, files)
    ported = port(path)
    return {str(one.target.relative_to(folder)): one.text for one in ported.files}


def _port_file(path: Path, *, in_place: bool = False, force: bool = False) -> None:
    options = {"diff": False, "sync_bn": False}
    port_file(path, batch="global", in_place=in_place, force=force, **options)


@pytest.mark.parametrize(
    ("imported", "call", "becomes"),
    [
        ("from net.engine import fit", "fit", "from net.engine_dist import fit"),
        ("import net.engine as e", "e.fit", "import net.engine_dist as e"),
        ("from net import engine", "engine.fit", "from net import engine_dist as engine"),
        (
            "from net import other, engine as e",
            "e.fit",
            "from net import other, engine_dist as e",
        ),
        (
            "import net.engine",
            "net.engine.fit",
            "import net.engine_dist\nimport rankup",
        ),
        ("from net.engine import *", "fit", "from net.engine_dist import *"),
    ],
)
def test_a_script_imports_the_port_of_what_trains(
    imported: str, call: str, becomes: str, tmp_path: Path
) -> None:
    text = HEAD + imported + "\n" + MADE + f"{call}(model, loader)\n"
    files = {"net/engine.py": FIT, "net/other.py": "", "net/__init__.py": ""}
    texts = _ported(tmp_path, files | {"train.py": text})
    assert set(texts) == {"train_dist.py", "net/engine_dist.py"}
    assert becomes in texts["train_dist.py"]
    if call == "net.engine.fit":
        assert "\nnet.engine_dist.fit(model, loader)" in texts["train_dist.py"]
    assert "for x, y in rankup.shard(loader):" in texts["net/engine_dist.py"]
    assert "import torch\nimport rankup\n" in texts["net/engine_dist.py"]


def test_a_package_hands_on_the_port(tmp_path: Path) -> None:
    """Its `__init__` gets one, too; what else is imported from the package comes from there."""
    text = HEAD + "from net import fit, other, NAME\n" + MADE + "fit(model, loader)\n"
    files = {
        "net/__init__.py": "from .engine import fit\nfrom . import other\nNAME = 1\n",
        "net/engine.py": FIT,
        "net/other.py": "from . import engine\n",
        "train.py": text,
    }
    texts = _ported(tmp_path, files)
    assert "from net.__init___dist import fit, other, NAME\n" in texts["train_dist.py"]
    assert texts["net/__init___dist.py"] == (
        "from .engine_dist import fit\nfrom . import other_dist as other\nNAME = 1\n"
    )
    assert texts["net/other_dist.py"] == "from . import engine_dist as engine\n"
    for name, ported in texts.items():
        (tmp_path / name).write_text(ported)
    assert not check([tmp_path / "train_dist.py"])  # the originals are imported, and not used


def test_a_package_that_only_runs_on_the_way_stays(tmp_path: Path) -> None:
    files = {"net/__init__.py": "from .engine import fit\n", "net/engine.py": FIT}
    text = PLAIN.replace("from engine", "from net.engine")
    assert set(_ported(tmp_path, files | {"train.py": text})) == {
        "train_dist.py",
        "net/engine_dist.py",
    }
    with pytest.raises(UserError, match="brings the package net"):
        _ported(tmp_path, {"train.py": text.replace("from net.engine import fit", "import net.x")
                           .replace("from torch", "import net\nfrom torch")
                           .replace("fit(", "net.fit("), "net/x.py": ""})  # fmt: skip


REGISTRY = """ALL = {}


def register(one):
    if one.__name__ in ALL:
        raise KeyError(one.__name__)
    ALL[one.__name__] = one
    return one


def timed(one):
    return one


class Registry:
    def __init__(self):
        self.all = []

    def add(self, name):
        return lambda one: self.all.append((name, one)) or one


REGISTRY = Registry()
"""


@pytest.mark.parametrize(
    ("imported", "decorator"),
    [
        ("from registry import register", "@register"),
        ("import registry", "@registry.register"),
        ("from registry import REGISTRY", "@REGISTRY.add('fit')"),
    ],
)
def test_what_a_package_registers_would_be_there_twice(
    imported: str, decorator: str, tmp_path: Path
) -> None:
    """The original of a package runs before its port."""
    engine = f"{imported}\n{FIT}".replace("def fit", f"{decorator}\ndef fit")
    files = {"registry.py": REGISTRY, "net/engine.py": engine}
    text = PLAIN.replace("from engine", "from net")
    for package, script in (
        ("from .engine import fit\n", text),
        ("from . import engine\n", PLAIN.replace("from engine", "from net.engine")),
    ):
        path = _write(tmp_path, files | {"net/__init__.py": package, "train.py": script})
        with pytest.raises(UserError, match=r"engine\.py:5: `@.*would register `fit` twice"):
            port(path)
        assert "rankup.shard" in port(path, in_place=True).modules[0].text
    # Where the original stays out, or the decorator keeps nothing, there is no second one.
    _ported(tmp_path, {"net/__init__.py": "", "train.py": script})
    timed = f"from registry import timed\n{FIT}".replace("def fit", "@timed\ndef fit")
    files = {"net/engine.py": timed, "net/__init__.py": "from .engine import fit\n"}
    _ported(tmp_path, files | {"train.py": text})


STAMP = "import os\nimport time\n\n\ndef stamp():\n    os.makedirs(time.strftime('%H%M%S'))\n"
STAMPS = HEAD + "from net.utils import stamp\n" + MADE + "stamp()\n" + FIT.split("\n\n\n")[1]


@pytest.mark.parametrize(
    ("package", "utils", "script", "reason"),
    [
        ("from .utils import stamp\n", f"from registry import register\n{STAMP}".replace(
            "def stamp", "@register\ndef stamp"), "", "utils.py:6: `@register` would register"),
        ("", STAMP, "import net.utils\nnet.utils.stamp()\nnet = model\n",
         "`net` is the package of `import net.utils` and something else"),
        (STAMP, "", "import net\nimport net.utils\nnet.stamp()\n",
         "`import net.utils` brings the package"),
        ("", f"{STAMP}rankup = 3\n", "", "`rankup` is a name of the script's own"),
    ],
)  # fmt: skip
def test_a_module_beside_the_training_that_cannot_be_ported_stays_as_it_is(
    package: str, utils: str, script: str, reason: str, tmp_path: Path
) -> None:
    """It alone, with what is left to do there; what trains is right by itself."""
    text = STAMPS.replace("from net.utils import stamp\n", "").replace("stamp()\n", "")
    text = text + script if script else STAMPS
    text += "fit(model, loader)\n"
    files = {"registry.py": REGISTRY, "net/__init__.py": package, "net/utils.py": utils}
    ported = port(_write(tmp_path, files | {"train.py": text}))
    assert [one.path.name for one in ported.files] == ["train.py"]
    assert "rankup.shard(DataLoader(" in ported.text
    notes = [one.text for one in ported.left]
    named = f"net/{'utils' if utils else '__init__'}.py stays as it is: "
    assert any(reason in one and one.startswith(named) for one in notes)
    assert any("(utils.py:" in one or "(__init__.py:" in one for one in notes)


def test_a_name_of_its_own_is_not_that_of_the_package(tmp_path: Path) -> None:
    """`net` of a function is not the `net` of `import net.engine`."""
    own = "def shape(net):\n    return net.engine.weight.shape\n"
    text = HEAD + "import net.engine\n\n\n" + own + MADE + "net.engine.fit(model, loader)\n"
    files = {"net/engine.py": FIT, "net/__init__.py": "", "train.py": text}
    script = _ported(tmp_path, files)["train_dist.py"]
    assert own in script
    assert "\nnet.engine_dist.fit(model, loader)" in script
    path = _write(tmp_path, {"train.py": text + "net = model\n"})
    with pytest.raises(UserError, match=r"`net` is the package of `import net\.engine`"):
        port(path)


def test_a_model_that_is_saved_whole_names_the_port_of_its_class(tmp_path: Path) -> None:
    engine = FIT + "\n\nclass Net(torch.nn.Linear):\n    pass\n"
    text = PLAIN.replace("import fit", "import Net, fit").replace(
        "torch.nn.Linear(2, 1)", "Net(2, 1)"
    )
    for saved, told in (
        ("model", True),
        ("{'net': model}", True),
        ("model.state_dict()", False),
    ):
        script = f"{text}torch.save({saved}, 'model.pt')\n"
        path = _write(tmp_path, {"engine.py": engine, "train.py": script})
        left = "\n".join(note.text for note in port(path).left)
        assert ("the file names engine_dist.Net" in left) is told
        assert not port(path, in_place=True).left


def test_in_place_all_files_stay_where_they_are(tmp_path: Path) -> None:
    path = _write(tmp_path, {"engine.py": FIT, "train.py": PLAIN})
    _port_file(path, in_place=True)
    assert "from engine import fit\n" in path.read_text()
    assert "rankup.shard(loader)" in (tmp_path / "engine.py").read_text()
    assert {one.name for one in tmp_path.glob("*.py")} == {"engine.py", "train.py"}
    assert not check([path])


def test_a_port_of_a_module_that_was_edited_is_kept(tmp_path: Path) -> None:
    path = _write(tmp_path, {"engine.py": FIT, "train.py": PLAIN})
    _port_file(path)
    _port_file(path)  # the same again
    engine, script = tmp_path / "engine_dist.py", tmp_path / "train_dist.py"
    engine.write_text("# mine\n")
    script.unlink()
    with pytest.raises(UserError, match=r"engine_dist\.py is there and is not what port would"):
        _port_file(path)
    assert engine.read_text() == "# mine\n"
    assert not script.exists()
    _port_file(path, force=True)
    assert "rankup.shard" in engine.read_text()


def test_the_report_names_the_file(tmp_path: Path) -> None:
    evaluated = FIT + "    model.eval()\n    for x, y in loader:\n        print(model(x))\n"
    path = _write(tmp_path, {"engine.py": evaluated, "train.py": PLAIN})
    ported = port(path)
    lines = report(ported)
    assert any(one.startswith("  engine.py:6  each rank takes its part") for one in lines)
    assert "+++ " + str(tmp_path / "engine_dist.py") in ported.diff


def test_a_module_that_the_script_does_not_come_to_stays(tmp_path: Path) -> None:
    unused = FIT.replace("def fit", "def unused") + "\nif __name__ == '__main__':\n    unused()\n"
    text = PLAIN.replace("from engine", "import other\nfrom engine")
    texts = _ported(tmp_path, {"engine.py": FIT, "other.py": unused, "train.py": text})
    assert set(texts) == {"train_dist.py", "engine_dist.py"}


def test_a_module_that_chooses_a_gpu_or_writes_behind_a_method_is_ported(tmp_path: Path) -> None:
    keep = (
        "import os\nimport torch\n\n\ndef device():\n    os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n"
        "    return torch.device('cuda:0')\n\n\nclass Stopper:\n    def __call__(self, model):\n"
        "        torch.save(model.state_dict(), 'best.pt')\n"
    )
    text = PLAIN.replace("from engine", "from keep import Stopper, device\nfrom engine")
    text += "stopper = Stopper()\nstopper(model.to(device()))\n"
    texts = _ported(tmp_path, {"engine.py": FIT, "keep.py": keep, "train.py": text})
    assert "environ" not in texts["keep_dist.py"]
    assert "torch.device('cuda')" in texts["keep_dist.py"]
    assert "rankup.save0(model.state_dict()" in texts["keep_dist.py"]


def test_a_model_is_wrapped_where_it_is_seen_to_be_made(tmp_path: Path) -> None:
    """In the class that inherits the trainer; else before its optimizer is made."""
    base = TRAINER.replace("self.model, self.loader = model, loader", "self.loader = loader")
    own = (
        "import torch\nfrom trainer import Trainer\n\n\nclass Mine(Trainer):\n"
        "    def __init__(self, loader):\n        self.model = torch.nn.Linear(2, 1)\n"
        "        super().__init__(None, loader)\n"
    )
    text = HEAD + "from mine import Mine\n" + MADE + "Mine(loader).train()\n"
    texts = _ported(tmp_path, {"trainer.py": base, "mine.py": own, "train.py": text})
    assert "self.model = rankup.wrap(self.model)\n        super()" in texts["mine_dist.py"]
    assert "wrap" not in texts["trainer_dist.py"] + texts["train_dist.py"]
    text = HEAD + "from trainer import Trainer\n" + MADE
    text += "trainers = {'plain': Trainer}\nprint(Trainer(model, loader))\n"
    text += "trainers['plain'](model, loader).train()\n"
    texts = _ported(tmp_path, {"trainer.py": TRAINER, "train.py": text})
    assert "self.model = rankup.wrap(self.model)" in texts["trainer_dist.py"]
    # What makes the optimizer alone does not see the model that is called.
    base = base.replace("torch.optim.SGD(self.model.parameters(), lr=0.1)", "make(self)")
    made = "import torch\n\n\ndef make(one):\n    net = one.model\n    return optimizer(net)\n\n\n"
    made += "def optimizer(net):\n    torch.save(net, 'a.pt')\n"
    made += "    return torch.optim.SGD(net.parameters(), lr=0.1)\n"
    base = base.replace("import torch\n", "import torch\nfrom made import make\n")
    text = HEAD + "from mine import Mine\n" + MADE + "Mine(loader).train()\n"
    files = {"trainer.py": base, "mine.py": own, "made.py": made, "train.py": text}
    with pytest.raises(UserError, match="which model is trained cannot be seen"):
        _ported(tmp_path, files)


def test_a_model_that_is_kept_among_others_is_wrapped(tmp_path: Path) -> None:
    trainer = TRAINER.replace("self.model.parameters()", "model.parameters()")
    text = HEAD + "from trainer import Trainer\n" + MADE.replace("model = ", "layers = ")
    text += "Trainer(torch.nn.Sequential(layers), loader).train()\n"
    texts = _ported(tmp_path, {"trainer.py": trainer, "train.py": text})
    assert "model = rankup.wrap(model)\n        self.model, self" in texts["trainer_dist.py"]


def test_a_backward_that_cannot_be_followed_is_named(tmp_path: Path) -> None:
    text = HEAD + "import engine\n" + MADE + "getattr(engine, 'f' + 'it')(model, loader)\n"
    path = _write(tmp_path, {"engine.py": FIT, "train.py": text})
    with pytest.raises(UserError, match=r"engine\.py:8 has a \.backward\(\), but how the script"):
        port(path)
    _write(tmp_path, {"engine.py": ""})
    with pytest.raises(UserError, match="Name the script that trains"):
        port(path)


def test_what_another_file_evaluates_is_rank_0s_where_it_decides(tmp_path: Path) -> None:
    tester = (
        "class Tester:\n    def __init__(self, model, loader):\n"
        "        self.model, self.loader = model, loader\n\n    def run(self):\n"
        "        self.model.eval()\n        error = 0.0\n        for x, y in self.loader:\n"
        "            error += (self.model(x) - y).abs().max().item()\n        return error\n"
    )
    text = PLAIN.replace("from engine", "from tester import Tester\nfrom engine")
    text += "tester, best = Tester(model, loader), 1e9\nfor epoch in range(9):\n"
    text += "    fit(model, loader)\n    error = tester.run()\n    if error > best: break\n"
    texts = _ported(tmp_path, {"engine.py": FIT, "tester.py": tester, "train.py": text})
    assert "if rankup.broadcast(error > best): break" in texts["train_dist.py"]
    assert set(texts) == {"train_dist.py", "engine_dist.py"}


def test_a_script_need_not_import_torch(tmp_path: Path) -> None:
    made = (
        HEAD
        + MADE
        + textwrap.dedent(
            """
        def loaders():
            return loader
        """
        )
    )
    text = "from data import loaders, model\nfrom engine import fit\n\nfit(model, loaders())\n"
    path = _write(tmp_path, {"data.py": made, "engine.py": FIT, "train.py": text})
    assert "RK111" in {one.code for one in check([path], ["RK"])}
    engine = port(path).modules[0]  # `model` of another module cannot be given a value here
    assert "    model = rankup.wrap(model)\n    optimizer" in engine.text
    _write(tmp_path, {"train.py": text.replace("fit(model,", "net = model\nfit(net,")})
    assert "net = rankup.wrap(net)" in port(path).text


def _weighted(folder: Path, weights: str) -> Ported:
    engine = FIT.replace("(model(x) - y).abs().mean()", "criterion(model(x), y)").replace(
        "loader):", "loader, criterion):", 1
    )
    text = PLAIN.replace("(model, loader)", "(model, loader, criterion)")
    text = text.replace("fit(", f"{weights}\ncriterion = torch.nn.CrossEntropyLoss(weight=w)\nfit(")
    return port(_write(folder, {"engine.py": engine, "train.py": text}))


def test_weights_of_classes_may_be_none(tmp_path: Path) -> None:
    asked = "y.numel() if criterion.weight is None else criterion.weight[y].sum()"
    for weights, counted in (
        ("w = torch.ones(3)", "criterion.weight[y].sum()"),
        ("w = torch.ones(3) if len(loader) > 2 else None", asked),
    ):
        (module,) = _weighted(tmp_path, weights).modules
        assert f"rankup.count({counted})" in module.text


def test_a_main_function_of_a_library_is_no_guard(tmp_path: Path) -> None:
    """`@hydra.main()` runs on every rank."""
    body = MADE + "fit(model, loader)\ntorch.save(model.state_dict(), 'model.pt')\n"
    text = (
        "import hydra\n" + HEAD + "from engine import fit\n\n\n@hydra.main()\ndef main(config):\n"
    )
    text += textwrap.indent(body, "    ") + "\nmain()\n"
    texts = _ported(tmp_path, {"engine.py": FIT, "train.py": text})
    assert "rankup.save0(model.state_dict(), 'model.pt')" in texts["train_dist.py"]


def test_a_step_in_another_file_than_its_loop(tmp_path: Path) -> None:
    step = (
        "def step(model, x, y, optimizer):\n    loss = (model(x) - y).abs().mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "    return loss.item()\n"
    )
    text = HEAD + "from steps import step\n" + MADE
    text += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\ntotal = 0\n"
    text += "for x, y in loader:\n    total += step(model, x, y, optimizer)\nprint(total)\n"
    path = _write(tmp_path, {"steps.py": step, "train.py": text})
    ported = port(path)
    assert "loader = rankup.shard(DataLoader(" in ported.text
    assert "rankup.backward(loss)" in ported.modules[0].text
    assert "total += step(" in ported.text
    assert not [note for one in ported.files for note in one.left]


METER = """class Meter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n
"""


def test_a_part_s_number_that_another_file_returns_is_rank_0s_where_it_decides(
    tmp_path: Path,
) -> None:
    """Also what a meter has been given, and the statistics of a model that stays are named."""
    engine = FIT.replace("import torch\n", "import torch\nfrom meter import Meter\n").replace(
        "    for x", "    hits = Meter()\n    for x"
    )
    engine += "        hits.update((model(x) > y).float().amax(), 1)\n    return hits.sum\n"
    text = PLAIN.replace("from engine", "from net import build\nfrom engine")
    text = text.replace("torch.nn.Linear(2, 1)", "build()").replace(
        "fit(model, loader)\n",
        "while True:\n    hits = fit(model, loader)\n    if hits > 3: break\n",
    )
    net = (
        "import torch\n\n\ndef build():\n    return torch.nn.Sequential(\n"
        "        torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)\n    )\n"
    )
    files = {"engine.py": engine, "meter.py": METER, "net.py": net, "train.py": text}
    ported = port(_write(tmp_path, files))
    assert "if rankup.broadcast(hits > 3): break" in ported.text
    assert {one.target.name for one in ported.files} == {"train_dist.py", "engine_dist.py"}
    assert any("(net.py:6)" in note.text for note in ported.left)


def test_a_number_of_a_configuration_is_none_of_the_batch(tmp_path: Path) -> None:
    engine = FIT.replace("(model, loader)", "(model, loader, config)")
    engine = engine.replace(".abs().mean()", ".abs().mean() / config.accumulate")
    text = PLAIN.replace("fit(model, loader)", "fit(model, loader, parser.parse_args())")
    text = text.replace("from engine", "import argparse\nfrom engine")
    text = text.replace("\ndata =", "\nparser = argparse.ArgumentParser()\ndata =")
    path = _write(tmp_path, {"engine.py": engine, "train.py": text})
    assert not [note for one in port(path).files for note in one.left]


SHARED = (
    FIT
    + """

def test(model, loader):
    for x, y in loader:
        print(model(x))
    torch.save(model.state_dict(), "tested.pt")
"""
)
TWICE = PLAIN.replace("import fit", "import fit, test") + "test(model, loader)\n"


def test_a_module_of_two_scripts_is_not_overwritten_unsaid(tmp_path: Path) -> None:
    path = _write(tmp_path, {"engine.py": SHARED, "train.py": PLAIN})
    other = tmp_path / "other.py"
    other.write_text(TWICE)
    _port_file(path)
    before = (tmp_path / "engine_dist.py").read_text()
    with pytest.raises(UserError, match="it is the port for another script"):
        _port_file(other)
    assert (tmp_path / "engine_dist.py").read_text() == before
    assert not (tmp_path / "other_dist.py").exists()
    _port_file(other, force=True)


def test_a_script_that_is_a_module_of_another(tmp_path: Path) -> None:
    text = HEAD + "\n\ndef main(rate):\n" + textwrap.indent(MADE, "    ")
    text += textwrap.indent(textwrap.dedent(FIT.partition("loader):\n")[2]), "    ")
    text += "\n\nif __name__ == '__main__':\n    main(0.1)\n"
    path = _write(tmp_path, {"train.py": text})
    sweep = tmp_path / "sweep.py"
    sweep.write_text("from train import main\n\nfor rate in (0.1, 0.01):\n    main(rate)\n")
    _port_file(path)
    with pytest.raises(UserError, match=r"train_dist\.py is there .* the port for another script"):
        _port_file(sweep)
    (tmp_path / "train_dist.py").unlink()
    _port_file(sweep)
    with pytest.raises(UserError, match=r"train_dist\.py is there .* the port for another script"):
        _port_file(path)


def test_a_module_is_not_ported_twice(tmp_path: Path) -> None:
    path = _write(tmp_path, {"engine.py": SHARED, "train.py": PLAIN})
    other = tmp_path / "other.py"
    other.write_text(TWICE)
    _port_file(path, in_place=True)
    before = (tmp_path / "engine.py").read_text()
    for in_place in (True, False):
        with pytest.raises(UserError, match=r"engine\.py:\d+: this module calls rankup\.shard"):
            _port_file(other, in_place=in_place)
    assert (tmp_path / "engine.py").read_text() == before


def test_what_a_module_imports_from_the_script_is_the_port_s(tmp_path: Path) -> None:
    engine = FIT + "    from train import evaluate\n\n    evaluate(model)\n"
    text = HEAD + "import engine\n\n\ndef evaluate(model):\n"
    text += "    torch.save(model.state_dict(), 'a.pt')\n\n\n"
    work = MADE + "engine.fit(model, loader)\n"
    guarded = text + "if __name__ == '__main__':\n" + textwrap.indent(work, "    ")
    texts = _ported(tmp_path, {"engine.py": engine, "train.py": guarded})
    assert "    from train_dist import evaluate\n" in texts["engine_dist.py"]
    # It is no original that would register a class again.
    kept = "MODELS = []\n\n\ndef register(one):\n    MODELS.append(one)\n    return one\n"
    registered = engine + "\n\n@register\nclass Net(torch.nn.Module):\n    pass\n"
    registered = registered.replace("import torch\n", "import torch\nfrom kept import register\n")
    texts = _ported(tmp_path, {"kept.py": kept, "engine.py": registered, "train.py": guarded})
    assert "    from train_dist import evaluate\n" in texts["engine_dist.py"]
    # A module that does not train is ported for it, and one that names a type alone is not.
    hook = "def hook(model):\n    import train\n\n    train.evaluate(model)\n"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from train import Net\n"
    files = {"engine.py": FIT, "hook.py": hook, "typed.py": typed}
    guarded = guarded.replace("import engine\n", "import engine\nimport typed\nimport hook\n")
    texts = _ported(tmp_path, files | {"train.py": guarded + "    hook.hook(model)\n"})
    assert "    import train_dist as train\n" in texts["hook_dist.py"]
    assert set(texts) == {"train_dist.py", "engine_dist.py", "hook_dist.py"}
    with pytest.raises(UserError, match=r"engine\.py:10: not ported: this imports from train\.py"):
        _ported(tmp_path, {"engine.py": engine, "train.py": text + work})


def test_a_module_that_makes_a_folder_by_the_clock_is_ported(tmp_path: Path) -> None:
    made = (
        "import os\nimport time\n\n\ndef named():\n    name = time.strftime('%H%M%S')\n"
        "    return name\n"
    )
    folder = "import os\n\n\ndef make(name):\n    os.makedirs(name)\n"
    text = PLAIN.replace("from engine", "import folder\nimport named\nfrom engine")
    text += "folder.make(named.named())\n"
    files = {"engine.py": FIT, "named.py": made, "folder.py": folder, "train.py": text}
    texts = _ported(tmp_path, files)
    assert "name = rankup.broadcast(time.strftime('%H%M%S'))" in texts["named_dist.py"]
    assert "os.makedirs(name, exist_ok=True)" in texts["folder_dist.py"]
    # One that is made as its module is imported is shared where the ranks have joined before.
    text = HEAD + "from engine import fit\nfrom named import name\n\n\ndef main():\n"
    text += textwrap.indent(MADE + "fit(model, loader)\nprint(name)\n", "    ")
    text += "\n\nif __name__ == '__main__':\n    main()\n"
    for named in (
        "name = time.strftime('%H%M%S')\n",
        made.partition("\n\n")[2] + "name = named()\n",
    ):
        files |= {"named.py": "import time\n" + named, "train.py": text}
        texts = _ported(tmp_path, files)
        assert "= rankup.broadcast(time.strftime('%H%M%S'))" in texts["named_dist.py"]
        before = texts["train_dist.py"].partition("from named_dist import name")[0]
        assert "    rankup.setup()\n" in before


def test_a_learner_s_script_imports_the_modules_as_they_are(tmp_path: Path) -> None:
    text = PLAIN.replace("from engine", "from fastai.vision.all import *\nfrom engine")
    text += "learn = Learner(loader, model)\nlearn.fit(1)\n"
    texts = _ported(tmp_path, {"engine.py": FIT, "train.py": text})
    assert set(texts) == {"train_dist.py"}
    assert "from engine import fit\n" in texts["train_dist.py"]


ACCURACIES = """
class Trainer(Base):
    def _epoch(self):
        found = []
        for x, y in self.loader:
            loss = (self.model(x) - y).abs().mean()
            loss.backward()
            self.optimizer.step()
            found.append((self.model(x) > y).float().amax().item())
        log = {"accuracy": sum(found) / len(found)}
        return log
"""
BASE = """import torch


class Base:
    def __init__(self, model, loader):
        self.model, self.loader, self.best = model, loader, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def _epoch(self):
        raise NotImplementedError

    def train(self):
        while True:
            log = self._epoch()
            if log["accuracy"] <= self.best:
                break
            self.best = log["accuracy"]
            torch.save(self.model.state_dict(), "best.pt")
"""


@pytest.mark.parametrize("apart", [False, True])
def test_a_part_s_number_is_rank_0s_also_by_a_name_of_its_own(tmp_path: Path, apart: bool) -> None:
    """And where a base class decides by what a class derived from it returns."""
    together = BASE + ACCURACIES
    engine = f"from base import Base\n{ACCURACIES}" if apart else together
    text = PLAIN.replace("import fit", "import Trainer")
    text = text.replace("fit(model, loader)", "Trainer(model, loader).train()")
    texts = _ported(tmp_path, {"base.py": BASE, "engine.py": engine, "train.py": text})
    decided = texts["base_dist.py" if apart else "engine_dist.py"]
    assert 'if rankup.broadcast(log["accuracy"] <= self.best):' in decided


def test_a_number_that_a_loss_is_divided_by_is_none_of_the_batch(tmp_path: Path) -> None:
    engine = FIT.replace("for x, y in loader", "for i, (x, y) in enumerate(loader)")
    engine = engine.replace("loss.backward()", "(loss / steps).backward()")
    engine = engine.replace("(model, loader)", "(model, loader, steps=2)")
    engine = engine.replace("        opt", "        if (i + 1) % steps == 0:\n            opt")
    texts = _ported(tmp_path, {"engine.py": engine, "train.py": PLAIN})
    assert "if (i + 1) % steps == 0:" in texts["engine_dist.py"]
