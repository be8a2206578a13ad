"""`rankup check`: correct scripts are left alone, frameworks known, hostile files survived."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import sysconfig
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.check import SYNTAX, check, check_python, formatted, split
from rankup.port.rewrite.ported import port
from rankup.script.source import from_bytes
from tests.conftest import RunRankup

CASES = Path(__file__).parent / "cases"
CORRECT = sorted((Path(__file__).parent / "correct").glob("*.txt"))
SINGLE = """\
import torch
from torch.utils.data import DataLoader
from helper import make_loader


def train(model, batches, optimizer):
    total = 0
    for x, y in batches:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


loaders = {"train": make_loader(True)}
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(train(model, loaders["train"], optimizer))
torch.save(model.state_dict(), "model.pt")
"""
HELPER = """\
import train
from torch.utils.data import DataLoader


def make_loader(shuffle):
    return DataLoader(data, batch_size=8, shuffle=shuffle)
"""


def codes(data: str | bytes) -> list[str]:
    data = data.encode() if isinstance(data, str) else data
    return [one.code for one in check_python(from_bytes(Path("train.py"), data))]


SHARDS = SINGLE.replace("make_loader(True)", "wds.WebLoader(wds.WebDataset('{names}'), 8)")


@pytest.mark.parametrize("names", ["shards-{0000..0099}.tar", "pieces-{0000..0099}.tar"])
def test_a_name_of_files_does_not_shard_them(names: str) -> None:
    assert "RK111" in codes(SHARDS.replace("{names}", names))


@pytest.mark.parametrize(
    ("condition", "one_rank"),
    [
        ("rank == 0", True),
        ("dist.get_rank() == 0", True),
        ("int(os.environ['LOCAL_RANK']) == 0", True),
        ("lora_rank > 0", False),
        ("not rankup.on_login_node()", False),
    ],
)
def test_a_condition_that_tells_the_rank(condition: str, one_rank: bool) -> None:
    text = SINGLE.replace("torch.save(", f"if {condition}:\n    rankup.barrier()\n    torch.save(")
    found = codes(f"import rankup\nimport os\nworld = rankup.setup()\n{text}")
    assert ("RK182" in found) is one_rank
    assert ("RK141" in found) is not one_rank


@pytest.mark.parametrize(
    ("gpu", "one_rank"), [("0", False), ("world.local_rank", True), ("rankup.setup()[0]", True)]
)
def test_the_number_of_a_gpu_tells_the_rank_where_it_is_one(gpu: str, one_rank: bool) -> None:
    text = SINGLE.replace("torch.save(", f"gpu = {gpu}\nif gpu == 0:\n    rankup.barrier()\n    #(")
    found = codes(f"import rankup\nworld = rankup.setup()\n{text}")
    assert ("RK182" in found) is one_rank


BY_HAND = """\
import rankup
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
world_size = dist.get_world_size()
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3 * len(loader))
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for x in loader:
        net(x).mean().backward()
        optimizer.step()
        schedule.step()
dist.destroy_process_group()
"""
SHARDED = BY_HAND.replace("sampler=DistributedSampler(data))", "shuffle=True)").replace(
    "    for x in loader:", "    for x in rankup.shard(loader):"
)


@pytest.mark.parametrize(
    ("text", "old", "new", "found"),
    [
        (BY_HAND, "", "", False),
        (BY_HAND, "3 * len(loader)", "3 * len(loader) // world_size", True),
        (BY_HAND, "3 * len(loader)", "1000", True),
        (BY_HAND.replace("=4,", "=4 // world_size,"), "3 * len(loader)", "1000", False),
        (BY_HAND, "schedule.step()", "for _ in range(world_size): schedule.step()", True),
        (BY_HAND, "lr=0.1", "lr=0.1 * world_size", False),  # the batch has grown with the ranks
        (SHARDED, "lr=0.1", "lr=0.1 * world_size", True),
        (SHARDED, "3 * len(loader)", "1000", False),
    ],
)
def test_a_schedule_or_a_rate_times_the_number_of_ranks(
    text: str, old: str, new: str, found: bool
) -> None:
    assert ("RK185" in codes(text.replace(old, new) if old else text)) is found


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SINGLE)
    (tmp_path / "helper.py").write_text(HELPER)  # imports the script in turn
    return path


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.stem)
def test_a_correct_distributed_script_has_no_finding(path: Path) -> None:
    assert check_python(from_bytes(path, path.read_bytes())) == []


def test_a_loader_out_of_a_dict_and_a_helper_is_found_where_it_is_made(script: Path) -> None:
    places = {one.code: one.place for one in check([script], select=["RK"])}
    assert places["RK111"].endswith("train.py:8:17")  # where shard(…) belongs
    assert places["RK141"].endswith("train.py:20:1")
    assert {"RK101", "RK174"} <= set(places)


def test_a_script_that_is_not_distributed_has_one_line_and_what_port_cannot_mend(
    script: Path, rankup_here: RunRankup
) -> None:
    every = check([script], select=["RK"])
    [one] = check([script])
    assert (one.code, split(one.place)[1]) == ("RK101", 8)
    assert f"`rankup port` takes care of these {len(every)} places" in one.message
    assert all(f"{split(each.place)[1]} {each.code}" in one.todo for each in every)
    script.write_text(f"{SINGLE}\nif input('again? ') == 'y':\n    breakpoint()\n")
    assert [each.code for each in check([script])] == ["RK101", "RK176", "RK176"]
    # One that port refuses is not said to be written.
    script.write_text(SINGLE.replace("optim.SGD", "optim.LBFGS"))
    found = {each.code: each for each in check([script])}
    assert {*found} == {"RK101", "RK191"}
    assert "refuses it: RK191" in found["RK101"].message
    # What is distributed already is told line by line.
    script.write_text(f"import rankup\nrankup.setup()\n{SINGLE}")
    assert {"RK111", "RK141"} <= {each.code for each in check([script])}


def test_nothing_found_says_what_was_looked_for(tmp_path: Path, rankup_here: RunRankup) -> None:
    def last(text: str, name: str = "train.py") -> str:
        (tmp_path / name).write_text(text)
        done = rankup_here(["check", tmp_path / name])
        assert done.returncode == 0
        return str(done.stdout.splitlines()[-1])

    right = CORRECT[0].read_text()
    assert re.fullmatch(r"nothing found: \d+ rules on train.py", last(right))
    (tmp_path / "helper.py").write_text("import torch\n")
    said = last(f"import helper\n{right}")
    assert said.endswith("rules on train.py and 1 module of its repository")
    said = last("import torch\nx = torch.ones(3)\n")
    assert said == "nothing found: no training is seen in train.py: it comes to no .backward()"
    batch = "#!/bin/bash\n#SBATCH --time=1\n#SBATCH --nodes=1\nhostname\n"
    assert "rules about batch files on job.sbatch" in last(batch, "job.sbatch")


def test_a_training_is_seen_below_a_base_class_and_in_a_package_of_its_name(tmp_path: Path) -> None:
    """Not found, the training would be for rank 0 alone, as what else writes: others would wait."""
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("from .trainer import *\n")
    (package / "base.py").write_text(
        "import torch\n\n\nclass Base:\n    def train(self):\n        self.epoch()\n"
        "        torch.save(self.model.state_dict(), 'model.pt')\n\n"
        "    def epoch(self):\n        raise NotImplementedError\n"
    )
    (package / "trainer.py").write_text(
        "import torch\nfrom .base import Base\n\n\nclass Trainer(Base):\n"
        "    def __init__(self, model, loader):\n"
        "        self.model, self.loader = model, loader\n\n    def epoch(self):\n"
        "        for x in self.loader:\n            self.model(x).mean().backward()\n\n\n"
        "def keep(model):\n    torch.save(model, 'whole.pt')\n"
    )
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom trainer import Trainer, keep\n\nmodel = Net()\n"
        "Trainer(model, loader).train()\nkeep(model)\n"
    )
    found = [one.place for one in check([path], select=["RK141"])]
    assert found == [f"{package / 'base.py'}:7:9", f"{package / 'trainer.py'}:15:5"]


def test_select_ignore_and_noqa(script: Path) -> None:
    assert {one.code for one in check([script], select=["RK14"])} == {"RK141"}
    assert "RK141" not in {one.code for one in check([script], ignore=["RK14"])}
    assert {one.code for one in check([script], select=["RK141"], ignore=["RK14"])} == {"RK141"}
    script.write_text(SINGLE.replace('"model.pt")', '"model.pt")  # noqa: RK141, E501'))
    assert "RK141" not in {one.code for one in check([script])}
    with pytest.raises(UserError, match="RK199"):
        check([script], select=["RK199"])


def test_three_formats_and_the_exit_code(script: Path, rankup_here: RunRankup) -> None:
    found = check([script], select=["RK141"])
    entries = json.loads(formatted(found, "json"))
    assert [(one["code"], one["line"], one["column"]) for one in entries] == [("RK141", 20, 1)]
    assert formatted(found, "github").startswith("::error file=")
    assert "line=20,col=1,title=RK141::" in formatted(found, "github")
    bad = rankup_here(["check", "--select", "RK141", script])
    assert bad.returncode == 1
    assert "train.py:20:1: RK141 " in bad.stdout
    missing = rankup_here(["check", "nothing.py"])
    assert missing.returncode == 2
    assert "there is no file" in missing.stderr


def test_a_module_is_parsed_once_however_many_scripts_import_it(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        script.with_name(f"other{number}.py").write_text(SINGLE)
    parsed: list[str] = []
    parse = ast.parse

    def counted(text: str) -> ast.Module:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", counted)
    check([script.parent])
    assert parsed.count(HELPER) == 1
    assert parsed.count(SINGLE) == 4


def test_a_name_of_a_file_does_nothing_to_the_terminal(script: Path) -> None:
    script = script.rename(os.fsdecode(os.fsencode(script.parent) + b"/\x1b[2J\xff.py"))
    found = check([script], select=["RK141"])
    for style in ("text", "github"):
        said = formatted(found, style)
        assert "\x1b" not in said
        assert r"\x1b[2J\udcff.py" in said
        said.encode()


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.ones(3)\n",
        "import lightning as L\nL.Trainer().fit(model, DataLoader(data, shuffle=True))\n",
        "from transformers import Trainer\nTrainer(model=model).train()\nprint(1)\n",
        "from accelerate import Accelerator\nimport torch\na = Accelerator()\n"
        "for x in loader:\n    a.backward(model(x))\n",
        "from fastai.vision.all import *\nlearn = Learner(dls, model)\n"
        "with learn.distrib_ctx():\n    learn.fit(1)\n",
        "not python at all, and not about it {{{\n",
    ],
)
def test_no_training_or_somebody_elses_is_not_reported(text: str) -> None:
    assert [code for code in codes(text) if code != "RK101"] == []
    assert ("RK101" in codes(text)) == ("fastai" in text and "distrib_ctx" not in text)


def test_rankup_beside_a_framework_joins_the_ranks() -> None:
    text = "import rankup\nimport lightning as L\n{}rankup.quiet()\nL.Trainer().fit(model, data)\n"
    assert "RK101" in codes(text.format(""))
    assert "RK101" not in codes(text.format("rankup.setup()\n"))


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"import torch\0\n", "null bytes"),
        (b"import torch\nx = '\xff'\n", "encoding"),
        (b"# -*- coding: nonsense -*-\nimport torch\n", "encoding"),
        (b"import torch\nx = " + b"(" * 5000 + b")" * 5000, ""),
        (b"import torch\nx = " + b"-" * 50_000 + b"1", ""),
        (b"import torch\nx = 1" + b"+1" * 3000, ""),
        (b"import torch\nmodel.cuda(async=True)\n", "non_blocking"),
        (b"import torch\nprint 'a'\n", ""),
        (b"import torch\n" + b"#" * (5 * 1024**2), ""),
    ],
)
def test_what_cannot_be_understood_is_a_finding(data: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(data)
    found = check([path])
    if data.endswith(b"+1"):  # deep, but no training: either is right
        assert {one.code for one in found} <= {SYNTAX}
        return
    assert [one.code for one in found] == [SYNTAX]
    assert word in found[0].message + found[0].todo


def test_windows_lines_and_a_byte_order_mark_change_no_place(tmp_path: Path) -> None:
    plain = check_python(from_bytes(tmp_path / "a.py", SINGLE.encode()))
    windows = "\ufeff" + SINGLE.replace("\n", "\r\n")
    assert check_python(from_bytes(tmp_path / "a.py", windows.encode())) == plain


def test_folders_links_and_what_is_no_file(tmp_path: Path, script: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "circle").symlink_to(tmp_path, target_is_directory=True)
    places = [one.place for one in check([tmp_path])]
    assert places
    assert len(places) == len(
        set(zip(places, [one.code for one in check([tmp_path])], strict=True))
    )
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(UserError, match="no regular file"):
        check([tmp_path / "pipe.py"])


def _installed(number: int) -> list[Path]:
    """Python files of the library and of packages, drawn with a fixed seed; no large ones."""
    roots = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    files = sorted(
        {
            path
            for root in roots
            for path in root.glob("*/*.py")
            if path.is_file() and path.stat().st_size < 8_000
        }
    )
    return random.Random(11).sample(files, min(number, len(files)))


@pytest.mark.parametrize(
    ("number", "understood"), [(60, 6), pytest.param(300, 60, marks=pytest.mark.slow)]
)
def test_files_from_anywhere_do_not_stop_it(number: int, understood: int) -> None:
    files = _installed(number)
    for path in files:
        data = path.read_bytes()
        if path in files[:understood]:  # as if it were about training: parsed, and looked at
            data += b"\nimport torch\n"
        found = check_python(from_bytes(Path("elsewhere.py"), data))
        if not re.search(rb"\.backward\(|fit|rainer", data):
            assert {one.code for one in found} <= {SYNTAX}, path


FOR_BOTH = """\
import torch, rankup
from torch.utils.data import DataLoader
net = rankup.wrap(torch.nn.Linear(2, 1))
def run(loader, train):
    net.train(train)
    total = 0.0
    for x in {head}:
        loss = net(x).mean()
        if train:
            loss.backward()
        total += rankup.batch_mean(loss.item())
    return total
print(run(DataLoader(data, batch_size=4, shuffle=True), True))
with torch.no_grad():
    print(run(DataLoader(other, batch_size=4), False))
"""


@pytest.mark.parametrize(
    ("head", "uneven"),
    [
        ("rankup.shard(loader)", True),
        ("rankup.shard(loader, train=True)", False),
        ("rankup.shard(loader) if train else loader", False),
    ],
)
def test_a_loop_for_training_and_evaluation_waits_in_uneven_rounds(head: str, uneven: bool) -> None:
    """Only where what it evaluates is sharded as an evaluation."""
    assert ("RK183" in codes(FOR_BOTH.replace("{head}", head))) is uneven


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_collective_in_an_evaluation(shuffled: bool) -> None:
    text = f"""\
import torch, rankup
from torch.utils.data import DataLoader
net = rankup.wrap(torch.nn.Linear(2, 1))
for x in rankup.shard(DataLoader(data, batch_size=4, shuffle=True)):
    net(x).mean().backward()
right = 0
with torch.no_grad():
    for x in rankup.shard(DataLoader(other, batch_size=4, shuffle={shuffled})):
        right += rankup.all_reduce(net(x).sum().item())
print(right)
"""
    assert "RK183" in codes(text)
    assert "RK183" not in codes(text.replace(f"={shuffled}))", f"={shuffled}), train=True)"))
    behind = text.replace("rankup.all_reduce(net(x).sum().item())", "net(x).sum().item()")
    assert "RK183" not in codes(behind.replace("print(right)", "print(rankup.all_reduce(right))"))


def test_a_model_out_of_a_checkpoint_is_wrapped() -> None:
    """What is loaded is the state of a run; the model in it is what a script wraps."""
    text = """\
import torch, rankup
from torch.utils.data import DataLoader
rankup.setup()
net = torch.nn.Linear(2, 1)
if path:
    state = torch.load(path, map_location="cpu")
    net = state["net"]
net = rankup.wrap(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in rankup.shard(DataLoader(data, batch_size=4, shuffle=True)):
    net(x).mean().backward()
"""
    assert "RK106" not in codes(text)
    assert "RK106" in codes(text.replace("net = rankup.wrap(net)\n", ""))


def test_a_model_wrapped_behind_its_training() -> None:
    text = (CASES / "run_model_made_anew.out.py").read_text()
    wrap = "net = rankup.wrap(net)\n"
    assert "RK106" not in codes(text)
    late = "net = Net()\n".join(text.replace(wrap, "").rsplit("net = Net()\n", 1))
    late = late.replace("net.load_state_dict", wrap + "net.load_state_dict")
    assert wrap in late
    assert "RK106" in codes(late)
    # In a loop around both the next round may train it.
    body = "".join(f"    {line}\n" for line in late.splitlines())
    assert "RK106" not in codes("for fold in range(3):\n" + body)


def test_check_and_port_agree() -> None:
    """What port changes by a rule, check has found at the same line."""
    changed = 0
    for path in sorted(CASES.glob("*.in.py")):
        rules = {(note.fix, note.line) for note in port(path).done if note.fix.startswith("RK")}
        rules = {one for one in rules if one[0] != "RK101"}  # of the whole file
        changed += len(rules)
        found = {(one.code, split(one.place)[1]) for one in check([path], ["RK"])}
        assert rules <= found, path.name
    assert changed > 100


def test_a_sum_that_is_divided_by_the_number_of_samples_is_no_summed_loss() -> None:
    loop = "model = Net()\nfor x, y in loader:\n    loss = {}\n    loss.backward()\n"
    head = "import torch\nimport torch.nn.functional as F\n"
    summed = 'F.mse_loss(model(x), y, reduction="sum")'
    assert "RK123" in codes(head + loop.format(summed))
    assert "RK123" not in codes(head + loop.format(f"{summed}.div(x.size(0))"))
    assert "RK123" not in codes(head + loop.format(f"{summed} / x.size(0)"))


def test_a_loader_that_is_only_evaluated_on_is_not_trained_on() -> None:
    text = """\
import torch
from itertools import cycle
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 2)
loader = rankup.shard(cycle(DataLoader(data, batch_size=8)))
held = cycle(DataLoader(valid, batch_size=8))
for step in range(20):
    model(next(loader)).mean().backward()
    if step % 5 == 0:
        print(model(next(held)).mean().item())
"""
    assert "RK111" not in codes("import rankup\n" + text)
    assert "RK111" in codes(text.replace("rankup.shard", ""))


HELD = """\
import random
import numpy as np
import rankup
import torch
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self, rank):
        self.rng = {made}

    def __getitem__(self, index):
        {first}
        return self.shift() + torch.rand(3), 0

    def shift(self):
        return {draw}


world = rankup.setup()
model = rankup.wrap(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in rankup.shard(DataLoader(Crops(world.rank), batch_size=8)):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "draw", "first", "found"),
    [
        ("random.Random(3)", "self.rng.random()", "", True),
        ("np.random.default_rng(3)", "self.rng.normal(size=3)", "", True),
        ("torch.Generator().manual_seed(3)", "torch.randn(3, generator=self.rng)", "", True),
        ("torch.Generator()", "torch.randn(3, generator=self.rng)", "", True),
        ("random.Random(3 + rank)", "self.rng.random()", "", False),
        ("random.Random()", "self.rng.random()", "", False),  # another seed in each process
        ("None", "self.rng.random()", "self.rng = random.Random(index)", False),
        ("random.Random()", "self.rng.random()", "self.rng.seed(index)", False),
        ("None", "np.random.default_rng(3).random()", "", False),
    ],
)
def test_a_generator_that_a_data_set_holds_draws_the_same_on_all_ranks(
    made: str, draw: str, first: str, found: bool
) -> None:
    text = HELD.format(made=made, draw=draw, first=first or "pass")
    assert ("RK188" in codes(text)) is found
    # A data set that evaluations alone read may draw so: each rank goes over all of it.
    trained = text.replace("DataLoader(Crops(world.rank)", "DataLoader(TensorDataset(a, b)")
    held = "with torch.no_grad():\n    for x, y in DataLoader(Crops(0), batch_size=8):\n"
    assert "RK188" not in codes(trained + held + "        print(model(x))\n")
    base = text.replace("\n\nworld =", "\n\nclass Held(Crops):\n    pass\n\n\nworld =")
    base = base.replace("DataLoader(Crops(world.rank)", "DataLoader(Held(world.rank)")
    assert ("RK188" in codes(base + held + "        print(model(x))\n")) is found


SIDE_BY_SIDE = """\
import rankup
import torch
from torch.utils.data import DataLoader

rankup.setup()
model = rankup.wrap(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in rankup.shard(DataLoader(train_set, batch_size=8)):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
hits, n = 0, 0
with torch.no_grad():
    for x, y in rankup.shard(DataLoader(valid_set, batch_size=8)):
        {counted}
{behind}
rankup.print0(hits / n)
"""


@pytest.mark.parametrize("behind", ["", "hits, n = rankup.total(hits), rankup.total(n)"])
@pytest.mark.parametrize(
    "counted",
    [
        "hits, n = hits + (model(x).argmax(1) == y).sum().item(), n + len(x)",
        "hits = hits + (model(x).argmax(1) == y).sum().item(); n = n + len(x)",
    ],
)
def test_counters_that_an_assignment_adds_to(counted: str, behind: str) -> None:
    found = codes(SIDE_BY_SIDE.format(counted=counted, behind=behind))
    assert ("RK121" in found) is (not behind)


def test_nothing_is_said_of_a_function_that_the_script_does_not_come_to() -> None:
    """Its evaluation is of a file that has a function that trains, too."""
    assert not check([CASES / "text_evaluated_elsewhere.out.py"])


HDF5 = """\
import h5py, torch
from torch.utils.data import DataLoader, Dataset

class Clouds(Dataset):
    def __init__(self, path):
        self.path = path
        {opened}
    def __len__(self):
        return 8
    def __getitem__(self, index):
        {first}
        return self.points[index], 0

model = torch.nn.Linear(16, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Clouds("a.h5"), batch_size=8, shuffle=True, num_workers={workers}):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
"""
WHOLE = 'file = h5py.File(path, "r"); self.points = self.file["points"]'


@pytest.mark.parametrize(
    ("opened", "first", "workers", "line"),
    [
        (f"self.{WHOLE}", "pass", "4", 7),
        ("self.points = h5py.File(path)", "pass", "os.cpu_count()", 7),
        (f"self.{WHOLE}", "pass", "0", None),
        (f"self.{WHOLE}", "self.points = h5py.File(self.path)['points']", "4", None),
        ("self.points = h5py.File(path)['points'][:]", "pass", "4", None),
        (f"self.{WHOLE}[:]", "pass", "4", None),
        ("self.n = len(h5py.File(path)['points'])", "self.points = range(8)", "4", None),
    ],
)
def test_an_hdf5_file_that_workers_share(
    opened: str, first: str, workers: str, line: int | None
) -> None:
    text = HDF5.format(opened=opened, first=first, workers=workers)
    found = check_python(from_bytes(Path("train.py"), text.encode()))
    at = [split(one.place)[1] for one in found if one.code == "RK192"]
    assert at == ([line] if line else [])
