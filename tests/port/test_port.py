"""`rankup port`: what it writes, what it leaves, what it refuses."""

from __future__ import annotations

import random
import sysconfig
import textwrap
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import check
from rankup.port.rewrite.command import port_file
from rankup.port.rewrite.ported import Ported, port

CASES = Path(__file__).parent / "cases"
INPUTS = sorted([*CASES.glob("*.in.py"), *(CASES / "person").glob("*.in.py")])
SCRIPT = """import torch
from torch.utils.data import DataLoader

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(torch.randn(8, 2), batch_size=4):
    loss = net(x).mean()
    loss.backward()
    optimizer.step()
"""


@cache
def _ported(path: Path) -> Ported:
    return port(path)


def _out(path: Path) -> Path:
    return path.with_name(path.name.replace(".in.py", ".out.py"))


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name.removesuffix(".in.py"))
def test_a_case_becomes_what_lies_beside_it(path: Path) -> None:
    """Byte for byte, with the modules that train for it, and it compiles."""
    ported = _ported(path)
    assert ported.text.encode() == _out(path).read_bytes()
    for module in ported.modules:
        assert module.text.encode() == module.target.read_bytes()
    for one in ported.files:
        compile(one.text, one.path.name, "exec")


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a_second_port_changes_nothing(every: int) -> None:
    for path in INPUTS[::every]:
        ported = port(_out(path))
        assert ported.text.encode() == _out(path).read_bytes()
        assert "already" in ported.why


def _script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print('hello')\n", "does not import torch"),
        ("import torch\nprint(torch.ones(1))\n", "no .backward()"),
        ("import torch\ndef f(:\n    pass\n", r"train\.py:2:"),
        ("import torch\nx = y.cuda(async=True)\n", "non_blocking=True"),
        (SCRIPT.replace("optim.SGD", "optim.LBFGS"), r":5: .*LBFGS"),
        (
            "import gymnasium, torch\n" + SCRIPT.replace(
                "for x in DataLoader(torch.randn(8, 2), batch_size=4)", "for x in env.step()"
            ).replace("from torch.utils.data import DataLoader\n", ""),
            "reinforcement learning",
        ),
        (
            SCRIPT.replace(
                "for x in DataLoader(torch.randn(8, 2), batch_size=4)", "for e in range(3)"
            ),
            "no DataLoader",
        ),
        (
            SCRIPT.replace("net(x).mean()", "InfoNCE()(net(x))"),
            "contrastive",
        ),
        (
            "import torch.distributed as dist\ndist.init_process_group()\n" + SCRIPT,
            r"train\.py:2: .*distributed already",
        ),
        ("import torch\nfor a, (_, rankup) in []: pass\n" + SCRIPT, r":2: `rankup` is a name"),
        ("def f(rankup=1): pass\n" + SCRIPT, r":1: `rankup` is a name"),
        ("import numpy as rankup\n" + SCRIPT, r":1: `rankup` is a name"),
        ("from mine import rankup\n" + SCRIPT, r":1: `rankup` is a name"),
        (SCRIPT.replace("net.parameters()", "[torch.ones(1)]"), "which model is trained"),
        (
            SCRIPT + "other = torch.optim.SGD(unknown(), lr=0.1)\n",
            "more than one candidate for the model",
        ),
    ],
)  # fmt: skip
def test_what_must_not_be_ported_is_refused_with_the_place(
    text: str, says: str, tmp_path: Path
) -> None:
    path = _script(tmp_path, text)
    with pytest.raises(UserError, match=says):
        _port_file(path)
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"], "nothing was written"


def _port_file(path: Path, **options: bool | str) -> None:
    defaults: dict[str, bool | str] = {
        "batch": "global", "in_place": False, "diff": False,
        "sync_bn": False, "force": False,
    }  # fmt: skip
    port_file(path, **{**defaults, **options})  # type: ignore[arg-type]


def test_other_mistakes_of_a_user(tmp_path: Path) -> None:
    for name, text, options, says in (
        ("none.py", "", {}, "there is no file"),
        ("train.py", SCRIPT, {"batch": "node"}, "global or per-gpu"),
    ):
        if text:
            _script(tmp_path, text)
        with pytest.raises(UserError, match=says):
            _port_file(tmp_path / name, **options)  # type: ignore[arg-type]
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import torch\nfrom transformers import Trainer\nTrainer().train()\n", "Hugging Face"),
        ("import torch\nimport lightning as L\nL.Trainer().fit(m)\n", "num_nodes"),
        ("import torch\nfrom accelerate import Accelerator\na = Accelerator()\n", "accelerate"),
    ],
)
def test_a_framework_needs_launch_settings_alone(
    text: str, says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _port_file(_script(tmp_path, text))
    assert says in capfd.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_the_batch_per_gpu_is_said_with_what_two_rules_make_of_the_rate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _port_file(_script(tmp_path, SCRIPT), batch="per-gpu")
    said = capfd.readouterr().out
    assert "4 times the number of GPUs" in said
    assert "0.1 x GPUs" in said
    assert "0.1 x sqrt(GPUs)" in said
    text = (tmp_path / "train_dist.py").read_text()
    assert 'batch="per-gpu"' in text
    assert "lr=0.1" in text


def test_batch_norm_is_said_and_can_be_synchronised(tmp_path: Path) -> None:
    path = _script(tmp_path, SCRIPT.replace("Linear(2, 1)", "BatchNorm1d(2)"))
    assert any("--sync-bn" in note.text for note in port(path).left)
    ported = port(path, sync_bn=True)
    assert "net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)\n" in ported.text
    assert not any("--sync-bn" in note.text for note in ported.left)


def test_in_place_keeps_mode_and_encoding(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(("# -*- coding: latin-1 -*-\n# Grün\n" + SCRIPT).encode("latin-1"))
    path.chmod(0o750)
    _port_file(path, in_place=True)
    assert "Grün".encode("latin-1") in path.read_bytes()
    assert b"rankup.wrap(net)" in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o750
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_a_diff_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _script(tmp_path, SCRIPT)
    _port_file(path, diff=True)
    out = capfd.readouterr().out
    assert "+net = rankup.wrap(net)\n" in out
    (tmp_path / "x.patch").write_text(out)
    assert not (tmp_path / "train_dist.py").exists()


@pytest.mark.parametrize("number", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_any_python_file_is_survived(number: int) -> None:
    """Files of the standard library and of site-packages."""
    places = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    files = sorted(path for place in places for path in place.glob("*/*.py"))
    for path in random.Random(number).sample(files, number):
        if path.stat().st_size < 8_000 or number > 10:
            with suppress(UserError):
                port(path)


def test_what_differs_is_said() -> None:
    """A port that cannot be the same in a place says so."""
    for case, said in (
        ("text_optimizer_by_the_model", "rankup.count("),
        ("text_parts_of_a_loss", "rank 0's part of a batch"),
        ("run_eval_lists", "every rank evaluates everything, which is exact: `losses.append("),
        ("text_bar_of_its_own", "`module.` no longer"),
        ("text_bar_of_its_own", "that the model is in evaluation mode is not seen"),
    ):
        assert any(said in note.text for note in _ported(CASES / f"{case}.in.py").left), case


def test_what_draws_numbers_beside_a_loader_draws_no_batches(tmp_path: Path) -> None:
    """Neither where it draws a box to cut out, nor where it trains."""
    drawn = "def box():\n    return int(torch.randint(0, 4, ()))\n\n"
    text = SCRIPT.replace("net = ", f"{drawn}net = ", 1).replace(
        "    loss =", "    at = box()\n    loss ="
    )
    assert "rankup.deal" not in port(_script(tmp_path, text)).text
    head, loop = text[: text.index("for x in")], text[text.index("for x in") :]
    step = loop.replace("\n", "\n    ").replace(
        "loss = ", "x = x[torch.randint(0, 4, (4,))]\n        loss = "
    )
    text = (
        f"{head}def train():\n    {step}return loss\n\nfor epoch in range(2):\n    loss = train()\n"
    )
    assert "rankup.deal" not in port(_script(tmp_path, text)).text


def test_a_state_of_the_whole_batch_is_refused(tmp_path: Path) -> None:
    """A rank has a part of the batch: the first step would end with an error of shapes."""
    text = SCRIPT.replace("loss = net(x).mean()", "out, h = net(x, h)\n    loss = out.mean()")
    text = text.replace("for x in", "h = torch.zeros(4, 1)\nfor x in")
    with pytest.raises(UserError, match=r":6: not ported: `h` goes from batch to batch"):
        port(_script(tmp_path, text))


def test_a_trainer_in_another_file_that_is_given_no_loader_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(
        "import torch\n\ndef train(net, batches):\n"
        "    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n    for x in batches:\n"
        "        net(x).mean().backward()\n        optimizer.step()\n"
    )
    text = "import torch\nfrom engine import train\n\nclass Batches:\n    pass\n\n"
    text += "net = torch.nn.Linear(2, 1)\ntrain(net, Batches())\n"
    with pytest.raises(UserError, match=r"engine\.py:6: not ported: the batches come from"):
        port(_script(tmp_path, text))


def test_a_file_that_starts_nothing_says_so(tmp_path: Path) -> None:
    """What starts it imports the file as it was."""
    said = "nothing in this file starts the training"
    head, made, rest = SCRIPT.partition("net =")
    inside = f"{head}def train():\n" + textwrap.indent(made + rest, "    ")
    for text, starts in ((inside, False), (inside + "\ntrain()\n", True)):
        notes = [note.text for note in port(_script(tmp_path, text)).left]
        assert any(said in note for note in notes) is not starts, text


def test_ranks_join_before_a_loop_over_epochs_that_is_not_in_the_guard(tmp_path: Path) -> None:
    head, made, rest = SCRIPT.partition("net =")
    text = f"{head}def train():\n{textwrap.indent(made + rest, '    ')}\n"
    text += "for epoch in range(2):\n    train()\nif __name__ == '__main__':\n    print('done')\n"
    ported = port(_script(tmp_path, text)).text
    assert "import rankup\n\nrankup.setup()\n" in ported


def test_a_rank_that_goes_on_alone_and_a_seed_within_a_pass_are_said(tmp_path: Path) -> None:
    head, made, rest = SCRIPT.partition("for x in")
    rest = rest.replace("    loss", "    torch.manual_seed(1)\n    loss", 1)
    text = f"{head}def train():\n{textwrap.indent(made + rest, '    ')}\ntry:\n    train()\n"
    text += "except torch.cuda.OutOfMemoryError:\n    train()\n"
    notes = {note.line: note.text for note in port(_script(tmp_path, text)).left}
    assert "`except torch.cuda.OutOfMemoryError` around a training step" in notes[15]
    assert "all ranks draw the same noise" in notes[8]


def test_batches_that_are_no_loaders_are_named(tmp_path: Path) -> None:
    text = SCRIPT.replace("DataLoader(torch.randn(8, 2), batch_size=4)", "buckets")
    with pytest.raises(UserError, match="the batches come from `buckets`"):
        port(_script(tmp_path, text))


def test_ways_to_a_loader_without_number(tmp_path: Path) -> None:
    """Each name may come from each of many others: not all ways are gone."""
    chain = "".join(f"x = x[{number}:]\n" for number in range(60))
    functions = "".join(f"def f{k}(a):\n    for b in a:\n        pass\n" for k in range(40))
    calls = "".join(f"f{k}(x)\n" for k in range(40))
    text = SCRIPT.replace("net = ", f"{chain}{functions}{calls}net = ", 1)
    text = text.replace("for x in Data", "for rows in Data").replace("net(x)", "net(rows)")
    assert "rankup.shard(DataLoader" in port(_script(tmp_path, text)).text


def test_a_port_that_was_edited_is_not_overwritten(tmp_path: Path) -> None:
    path = _script(tmp_path, SCRIPT)
    _port_file(path)
    _port_file(path)  # what port wrote itself is written anew
    ported = tmp_path / "train_dist.py"
    written = ported.read_text()
    ported.write_text(written + "# mine\n")
    with pytest.raises(UserError, match=r"is not what port would write.*--force"):
        _port_file(path)
    assert ported.read_text() == written + "# mine\n"
    _port_file(path, force=True)
    assert ported.read_text() == written


OWN_TRAINER = """
import torch
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self):
        for x in self.loader:
            loss = self.model(x).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

model = torch.nn.Linear(2, 1)
loader = DataLoader(torch.randn(8, 2), batch_size=4, shuffle=True)
trainer = Trainer(model, loader)
for epoch in range(2):
    trainer.train()
    total = 0.0
    with torch.no_grad():
        for x in DataLoader(torch.randn(5, 2), batch_size=2):
            model.train(False)
            total += model(x).sum().item()
    print(total)
"""


def test_a_models_own_train_is_no_trainers(tmp_path: Path) -> None:
    """A collective in the evaluation would hang: ranks have different numbers of batches."""
    ported = port(_script(tmp_path, OWN_TRAINER))
    loop = ported.text[ported.text.index("with torch.no_grad():") :].split("print(")[0]
    assert "batch_sum" not in loop
    assert "batch_mean" not in loop
    (tmp_path / "train_dist.py").write_text(ported.text)
    assert "RK183" not in {one.code for one in check([tmp_path / "train_dist.py"], ["RK"])}


WRITES = """
import numpy as np
import torch
from torch.utils.data import DataLoader

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x in DataLoader(torch.randn(8, 2), batch_size=4):
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
    {line}
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ok = cv2.imwrite('w.png', picture)", "every rank writes this file; let"),
        ('f = h5py.File("w.h5", "w")', "every rank writes this file; let"),
        ('f = open("w.txt", "r+")', "every rank writes this file; let"),
        ('with h5py.File("w.h5", "a") as f: f["x"] = total = 1', "every rank writes this file"),
        ("with h5py.File('w.h5', 'w') as f:\n        net(x)", "every rank writes this file"),
        ("json.dump({}, handle)", ""),
        ("picture = Image.open('a.png').resize(8).save('b.png')", ""),
    ],
)
def test_what_every_rank_would_write_is_changed_or_named(
    tmp_path: Path, line: str, said: str
) -> None:
    head = "import cv2, h5py, json\nfrom PIL import Image\n"
    path = _script(tmp_path, head + WRITES.format(line=line) + "print(total)\n")
    ported = port(path)
    assert "RK146" in {one.code for one in check([path], ["RK"])}
    notes = [note.text for note in ported.left]
    assert any(said in note for note in notes) if said else not notes
    (tmp_path / "train_dist.py").write_text(ported.text)
    found = {one.code for one in check([tmp_path / "train_dist.py"], ["RK"])}
    assert ("RK146" in found) is bool(said)


def test_what_is_in_memory_or_opened_before_is_no_file_of_its_own(tmp_path: Path) -> None:
    line = (
        "buffer = io.BytesIO(); torch.save(net, buffer); json.dump({}, sys.stdout)\n"
        "    with open('w.pt', 'wb') as f: torch.save(net.state_dict(), f)"
    )
    path = _script(tmp_path, "import io, json, sys\n" + WRITES.format(line=line))
    text = port(path).text
    assert "torch.save(net, buffer); json.dump({}, sys.stdout)" in text
    assert "with open(rankup.path0('w.pt'), 'wb') as f: torch.save(net.state_dict(), f)" in text


def test_ranks_meet_where_all_come_by(tmp_path: Path) -> None:
    """What files there are differs between ranks while rank 0 removes some."""
    line = (
        "for name in os.listdir('.'):\n        if os.path.exists(name):\n"
        "            os.remove(name)\n    try:\n        os.rename('a', 'b')\n"
        "    except OSError:\n        pass"
    )
    path = _script(tmp_path, "import os\n" + WRITES.format(line=line))
    assert port(path).text.endswith(
        "            if rankup.is_root_process(): os.remove(name)\n    rankup.barrier()\n"
        "    try:\n        if rankup.is_root_process(): os.rename('a', 'b')\n"
        "    except OSError:\n        pass\n    rankup.barrier()\n"
    )


def test_a_path_is_wrapped_wherever_it_stands(tmp_path: Path) -> None:
    path = _script(tmp_path, WRITES.format(line='f = open(mode="w", file="a.txt")'))
    assert 'open(mode="w", file=rankup.path0("a.txt"))' in port(path).text


def test_a_function_may_end_a_file_without_a_line_end(tmp_path: Path) -> None:
    text = WRITES.format(line='open("a.txt", "w")') + "\ndef last():\n    return (1)"
    assert "rankup.path0(" in port(_script(tmp_path, text)).text


def test_a_comment_in_parentheses_is_left_alone(tmp_path: Path) -> None:
    text = SCRIPT.replace(
        "    optimizer.step()\n",
        "    optimizer.step()\nwith torch.no_grad():\n    total = 0\n"
        "    for x in DataLoader(torch.randn(5, 2), batch_size=2):\n"
        "        total += (  # mean (of batch)\n            net(x).mean().item()\n        )\n"
        "print(total / 3)\n",
    )
    assert "# mean (of batch)" in port(_script(tmp_path, text)).text


@pytest.mark.parametrize(
    "written",
    [
        'f"{x.size(0):3d}"',
        '"Zeile ü" f"{{}} {epoch!r} {x.size(0):>{epoch + 1}}" \'x\'',
        'f"""{epoch}\n  {\n    x.size(0)\n  }"""',
        "f'{x.size(0)=}'",
        'f"{[x.size(0), {1: 2}][0]}"',
    ],
)
def test_what_an_f_string_says_is_found_at_its_place(written: str, tmp_path: Path) -> None:
    """Python 3.11 and earlier count positions there wrongly."""
    text = SCRIPT.replace("net = ", "epoch = 1\nnet = ") + f"    print({written})\n"
    for newline in ("\n", "\r\n"):
        path = tmp_path / "train.py"
        path.write_bytes(text.replace("\n", newline).encode())
        expected = written.replace("x.size(0)", "rankup.batch_sum(x.size(0))")
        assert f"print({expected})".replace("\n", newline) in port(path).text


def test_what_stands_on_one_row_is_changed_alone(tmp_path: Path) -> None:
    line = 'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "0"; seed = 1\n'
    ported = port(_script(tmp_path, SCRIPT.replace("net = ", f"{line}net = ")))
    assert "import os; pass; seed = 1\n" in ported.text


def test_a_method_is_known_by_the_class_of_what_it_is_called_on(tmp_path: Path) -> None:
    """Two classes have a `train`, and one of them trains."""
    text = """import torch
from torch.utils.data import DataLoader


class Other:
    def train(self):
        pass


class Trainer:
    def __init__(self, net, loader):
        self.net, self.loader = net, loader
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train(self):
        for x in self.loader:
            self.net(x).mean().backward()
            self.optimizer.step()
        torch.save(self.net.state_dict(), "net.pt")


net = torch.nn.Linear(2, 1)
trainer = Trainer(net, DataLoader(torch.randn(8, 2), batch_size=4))
trainer.train()
net.load_state_dict(torch.load("net.pt"))
"""
    ported = port(_script(tmp_path, text)).text
    assert "rankup.barrier()\nnet.load_state_dict(" in ported


def test_a_part_of_a_batch_divided_by_the_size_of_the_whole_is_said(tmp_path: Path) -> None:
    text = SCRIPT.replace("batch_size=4", "batch_size=size").replace("for x", "size = 4\nfor x")
    text += "    print(net(x).topk(1, dim=0)[0].sum() / (size * 2))\n"
    notes = [one.text for one in port(_script(tmp_path, text)).left]
    assert any("x: of rank 0's part of the batch" in one for one in notes)


def test_noise_of_a_generator_with_one_seed_is_said(tmp_path: Path) -> None:
    """Of one that is seeded by rank, or by each process, it is each rank's own."""
    made = "torch.Generator().manual_seed({})"
    for generator, said in (
        (made.format(0), True),
        (made.format("rank"), False),
        ("random.Random()", False),
    ):
        text = SCRIPT.replace("loss =", "x = x + torch.randn(x.shape, generator=made)\n    loss =")
        text = "import random\nrank = 0\n" + text.replace(
            "for x in", f"made = {generator}\nfor x in"
        )
        notes = [one.text for one in port(_script(tmp_path, text)).left]
        assert any("from a generator of its own" in one for one in notes) is said


def test_what_is_printed_at_import_is_printed_by_rank_0_alone(tmp_path: Path) -> None:
    head, made, rest = SCRIPT.partition("net =")
    inside = textwrap.indent(made + rest, "    ")
    text = (
        f"{head}print('names')\n\ndef main():\n{inside}\nif __name__ == '__main__':\n    main()\n"
    )
    lines = port(_script(tmp_path, text)).text.splitlines()
    assert lines.index("    rankup.quiet()") < lines.index("print('names')")


def test_a_folder_whose_making_must_not_fail_may_be_there(tmp_path: Path) -> None:
    made = "import os, sys\n" + SCRIPT.replace(
        "net = ",
        "try:\n    if not os.path.exists('out'):\n        os.makedirs('out')\n"
        "except OSError:\n    HANDLED\n\nnet = ",
        1,
    )
    for handled, changed in (("sys.exit(1)", True), ("pass", False)):
        text = port(_script(tmp_path, made.replace("HANDLED", handled))).text
        assert ("os.makedirs('out', exist_ok=True)" in text) is changed


GROUPS = """class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.body(x))

    def groups(self):
        return [{"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 1.0}]

net = Net()
optimizer = torch.optim.SGD(net.groups(), lr=0.1)
"""


def test_a_model_that_groups_its_parameters_is_wrapped_as_a_whole(tmp_path: Path) -> None:
    head, _, loop = SCRIPT.partition("net = ")
    text = port(_script(tmp_path, head + GROUPS + loop[loop.index("for x") :])).text
    assert "net = rankup.wrap(net)" in text
    assert text.count("rankup.wrap") == 1


STEP = """class Worker:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def learn(self, x):
        loss = self.net(x[torch.argsort(x[:, 0])]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss = loss.item()
        return loss

worker = Worker(torch.nn.Linear(2, 1))
losses, total = [], 0.0
for x in DataLoader(torch.randn(8, 2), batch_size=4):
    losses.append(worker.learn(x))
    loss = worker.learn(x)
    total += loss
"""


def test_what_a_step_returns_of_its_loss_is_no_number_of_a_part(tmp_path: Path) -> None:
    ported = port(_script(tmp_path, SCRIPT.partition("net = ")[0] + STEP))
    assert "rankup.backward(loss)" in ported.text
    assert "rankup.batch_" not in ported.text
    assert "net):\n        net = rankup.wrap(net)\n        self.net = net\n" in ported.text
    assert "in rankup.shard(DataLoader(" in ported.text
    assert not ported.left


def test_a_method_that_is_called_as_an_optimizers_is_not_taken_for_one(tmp_path: Path) -> None:
    """Its loop is not seen to train, and its batches would not be sharded."""
    text = SCRIPT.partition("net = ")[0] + STEP.replace("learn(", "step(")
    with pytest.raises(UserError, match="this backward has its batches from is not seen"):
        port(_script(tmp_path, text))


def test_all_numbers_of_a_part_are_named_once(tmp_path: Path) -> None:
    """And `check` of the port has them as a warning: a person was told."""
    head, rows = SCRIPT.replace("    loss", "    a, b = x.amax(), x.amin()\n    loss", 1), []
    path = _script(tmp_path, "total = 0\n" + head + "    print(a)\n    total += b\nprint(total)\n")
    rows = [note.text for note in port(path).left]
    assert any(one.startswith("a, total: of rank 0's part") for one in rows), rows
    target = path.with_name("port.py")
    target.write_text(port(path).text)
    assert {one.level for one in check([target], ["RK"]) if one.code == "RK121"} == {"warning"}
