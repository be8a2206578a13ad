"""`rankup check` of scripts that join ranks by hand: what they got wrong, and what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.port.check import check, check_python
from rankup.port.rewrite.ported import port
from rankup.script.source import from_bytes

HAND = Path(__file__).parent / "hand"
HEAD = """\
import itertools
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, random_split
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
"""
END = "dist.destroy_process_group()\n"


def codes(text: str) -> list[str]:
    found = check_python(from_bytes(Path("train.py"), (HEAD + text + END).encode()))
    return [one.code for one in found]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a01_ddp", {"RK117"}),
        ("a02_ddp", set()),
        ("a05_ddp", {"RK113", "RK114"}),
        ("a07_ddp", {"RK139"}),
        ("a09_fsdp2", {"RK138", "RK141"}),
        ("a12_acc", {"RK182"}),
    ],
)
def test_the_right_answer(name: str, found: set[str]) -> None:
    assert {one.code for one in check([HAND / f"{name}.txt"])} == found


def test_no_advice_of_a_stream_leads_to_ranks_that_wait_for_each_other() -> None:
    found = {one.code: one for one in check([HAND / "a01_train.txt"], select=["RK"])}
    assert "rankup pack" in found["RK117"].todo
    assert "rankup pack" in found["RK191"].todo
    assert "world_size-th" not in found["RK117"].todo + found["RK191"].todo


STEP = """\
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4, sampler=sampler)):
        {}
"""


@pytest.mark.parametrize(
    ("step", "past"),
    [
        # Gradients add up past the wrapper, and the last forward exchanges the sums.
        ("last = step % 4 == 3; out = model(x) if last else model.module(x); out.mean().backward()"
         "\n        if last: optimizer.step()", False),
        ("if step % 4 == 3:\n            model(x).mean().backward(); optimizer.step()"
         "\n        else:\n            model.module(x).mean().backward()", False),
        ("for part in x[:-1]:\n            model.module(part).mean().backward()"
         "\n        model(x[-1]).mean().backward()\n        optimizer.step()", False),
        # Each round steps, also by gradients that nothing has exchanged.
        ("out = model(x) if epoch else model.module(x); out.mean().backward(); optimizer.step()",
         True),
        ("model.module(x).mean().backward(); optimizer.step()", True),
        ("model.module(x).mean().backward(); optimizer.step()\n    with torch.no_grad(): model(x)",
         True),
    ],
)  # fmt: skip
def test_accumulation_past_the_wrapper(step: str, past: bool) -> None:
    assert ("RK131" in codes(STEP.format(step))) is past


STREAM = """\
class Rows(IterableDataset):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        {rows}
model = DDP(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Rows(105), batch_size=4)
for epoch in range(2):
    for x in {loader}:
        model(x).mean().backward()
        optimizer.step()
"""
STRIDE = "return iter(range(dist.get_rank(), self.count, dist.get_world_size()))"


@pytest.mark.parametrize(
    ("rows", "loader", "uneven"),
    [
        (STRIDE, "loader", True),
        ("return (n for n in range(self.count) if n % world_size == rank)", "loader", True),
        ("return itertools.islice(open('rows.txt'), rank, None, world_size)", "loader", True),
        (STRIDE, "itertools.islice(loader, 20)", False),
        (STRIDE.replace("self.count", "self.count // world_size * world_size"), "loader", False),
        ("whole = self.count - self.count % world_size; yield from range(rank, whole, world_size)",
         "loader", False),
        ("return itertools.cycle(range(rank, self.count, world_size))", "loader", False),
    ],
)  # fmt: skip
def test_a_stream_of_which_ranks_have_unequal_parts(rows: str, loader: str, uneven: bool) -> None:
    text = STREAM.format(rows=rows, loader=loader)
    assert ("RK117" in codes(text)) is uneven
    joined = text.replace("for epoch", "with model.join():\n  for epoch")
    assert "RK117" not in codes(joined)


SPLIT = """\
def seed_all(seed, offset=0):
    {body}
    torch.manual_seed(seed)
{before}
train, valid = random_split(data, [80, 20])
model = DDP(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(train)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x in DataLoader(train, batch_size=4, sampler=sampler):
        model(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("body", "before", "differs"),
    [
        ("seed += offset", "seed_all(42, rank)", True),
        ("seed = seed + dist.get_rank()", "seed_all(42)", True),
        ("pass", "seed_all(42 + rank)", True),
        ("pass", "torch.manual_seed(0); seed_all(42 + rank)", True),
        ("pass", "torch.manual_seed(0); torch.manual_seed(rank)", True),
        ("seed += offset", "seed_all(42)", False),
        ("seed += offset", "seed_all(42, 7)", False),
        ("pass", "seed_all(42)", False),
        ("pass", "torch.manual_seed(rank); seed_all(42)", False),
    ],
)
def test_a_seed_of_each_rank_before_a_split(body: str, before: str, differs: bool) -> None:
    text = SPLIT.format(body=body, before=before)
    assert ("RK114" in codes(text)) is differs
    behind = text.replace(
        f"{before}\ntrain, valid = random_split(data, [80, 20])",
        f"seed_all(1)\ntrain, valid = random_split(data, [80, 20])\n{before}",
    )
    assert "RK114" not in codes(behind) or "dist.get_rank()" in body


STOP = """\
class Patience:
    def __init__(self):
        self.best, self.bad, self.stop = float("inf"), 0, False
    def {method}(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        self.stop = self.bad >= 3
        return self.stop
model = DDP(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
sampler = DistributedSampler(data)
valid = DataLoader(other, batch_size=4{valid})
patience = Patience()
for epoch in range(60):
    sampler.set_epoch(epoch)
    for x in DataLoader(data, batch_size=4, sampler=sampler):
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        total = 0.0
        for x in valid:
            total += model.module(x).mean().item()
    {decide}
"""
SHARDED = ", sampler=torch.utils.data.Subset(other, range(rank, 100, world_size))"


@pytest.mark.parametrize(
    ("method", "decide", "apart"),
    [
        ("__call__", "patience(total)\n    if patience.stop: break", True),
        ("__call__", "if patience(total): break", True),
        ("update", "patience.update(total)\n    if patience.stop:\n        break", True),
        ("check", "if patience.check(total / len(valid)):\n        break", True),
        ("check", "schedule.step(total)", True),
        ("__call__", "total = torch.tensor(total); dist.all_reduce(total)\n    patience(total)"
         "\n    if patience.stop: break", False),
        ("__call__", "patience(total)\n    stop = torch.tensor(int(patience.stop))"
         "\n    dist.broadcast(stop, 0)\n    if stop: break", False),
        ("__call__", "if epoch > 10: break", False),
    ],
)  # fmt: skip
def test_a_stop_by_each_ranks_own_number(method: str, decide: str, apart: bool) -> None:
    text = STOP.format(method=method, decide=decide, valid=SHARDED)
    assert ("RK139" in codes(text)) is apart
    # A number of the whole evaluation is the same on all ranks.
    assert "RK139" not in codes(STOP.format(method=method, decide=decide, valid=""))


FULLY = """\
net = {wrap}
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x in DataLoader(data, batch_size=8, sampler=sampler):
        net(x).mean().backward()
        {clip}
        optimizer.step()
{save}
"""
UTILS = "nn.utils.clip_grad_norm_(net.parameters(), 0.1)"
BY_ALL = 'torch.save(net.state_dict(), "net.pt")'


@pytest.mark.parametrize(
    ("wrap", "clip", "save", "found"),
    [
        ("FSDP(nn.Linear(8, 1))", UTILS, BY_ALL, {"RK138", "RK141"}),
        ("FSDP(nn.Linear(8, 1))", "net.clip_grad_norm_(0.1)",
         'state = net.state_dict()\nif rank == 0:\n    torch.save(state, "net.pt")', set()),
        ("FSDP(nn.Linear(8, 1))", "", f"if rank == 0:\n    {BY_ALL}", {"RK182"}),
        ("DDP(nn.Linear(8, 1))", UTILS, f"if rank == 0: {BY_ALL.replace('net.', 'net.module.')}",
         set()),
    ],
)  # fmt: skip
def test_a_sharded_model(wrap: str, clip: str, save: str, found: set[str]) -> None:
    text = FULLY.format(wrap=wrap, clip=clip or "pass", save=save)
    assert {"RK138", "RK141", "RK182"} & {*codes(text)} == found


ACCELERATE = """\
import torch
from accelerate import Accelerator
accelerator = Accelerator()
def evaluate(accelerator, model, loader):
    return torch.cat([accelerator.{method}(model(x)) for x in loader]).mean()
for step, x in enumerate(train):
    accelerator.backward(model(x).mean())
    {call}
"""


@pytest.mark.parametrize(
    ("method", "call", "alone"),
    [
        ("gather", "if accelerator.is_main_process: print(evaluate(accelerator, model, v))", True),
        ("gather_for_metrics",
         "if step and accelerator.is_main_process:\n        evaluate(accelerator, model, v)", True),
        ("gather",
         "seen = evaluate(accelerator, model, v)\n    if accelerator.is_main_process: print(seen)",
         False),
        ("gather", "if accelerator.is_main_process: accelerator.wait_for_everyone()", True),
        ("unwrap_model", "if accelerator.is_main_process: evaluate(accelerator, model, v)", False),
    ],
)  # fmt: skip
def test_a_gather_of_the_main_process_alone(method: str, call: str, alone: bool) -> None:
    text = ACCELERATE.format(method=method, call=call)
    found = [one.code for one in check_python(from_bytes(Path("train.py"), text.encode()))]
    assert ("RK182" in found) is alone


def test_ranks_that_meet_at_two_barriers() -> None:
    text = STEP.format("model(x).mean().backward(); optimizer.step()") + (
        "if args.local_rank not in [-1, 0]:\n    dist.barrier()\nmake_data()\n"
        "if args.local_rank == 0:\n    dist.barrier()\n"
    )
    assert "RK182" not in codes(text)


CUSTOM = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
class Rerun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run, ctx.x = run, x
        return run(x)
    @staticmethod
    def backward(ctx, grad):
        for part in ctx.x.split(1):
            torch.autograd.backward(ctx.run(part), grad)
        return None, ctx.x.grad
class Layer:
    def backward(self, grad):
        return grad * 2
def evaluate(model, layer, loader):
    for x in loader:
        print(Rerun.apply(model, x), layer.backward(x))
evaluate(nn.Linear(2, 1), Layer(), DataLoader(data))
"""


def test_a_backward_of_a_function_or_layer_of_its_own_is_no_training() -> None:
    assert not check_python(from_bytes(Path("train.py"), CUSTOM.encode()))
    trained = CUSTOM.replace("print(Rerun", "print(model(x).mean().backward(), Rerun")
    assert "RK101" in {
        one.code for one in check_python(from_bytes(Path("train.py"), trained.encode()))
    }


TRAINER = """\
import torch
def fit(model, loader, optimizer):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
MAIN = """\
{}
import torch
from torch.utils.data import DataLoader
from {} import fit
model = torch.nn.Linear(2, 1)
fit(model, DataLoader(data, shuffle=True), torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.parametrize(
    ("script", "module", "path", "name"),
    [
        ("run.py", "lib/trainer.py", "import sys; sys.path.append('lib')", "trainer"),
        ("bin/run.py", "lib/trainer.py", "import sys; sys.path.insert(0, '../lib')", "trainer"),
        ("bin/run.py", "lib/trainer.py",
         "import os, sys; sys.path.append(os.path.join(os.path.dirname(__file__), '..', 'lib'))",
         "trainer"),
        ("bin/run.py", "lib/trainer.py",
         "import sys; from pathlib import Path\n"
         "sys.path.append(str(Path(__file__).resolve().parent.parent / 'lib'))", "trainer"),
        ("net/__main__.py", "net/trainer.py", "", ".trainer"),
        ("net/cli/__main__.py", "net/core/trainer.py", "", "..core.trainer"),
    ],
)  # fmt: skip
def test_a_module_is_found_where_python_finds_it(
    script: str, module: str, path: str, name: str, tmp_path: Path
) -> None:
    for one, text in ((script, MAIN.format(path, name)), (module, TRAINER)):
        (tmp_path / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / one).write_text(text)
    for folder in ("net", "net/cli", "net/core"):
        if (tmp_path / folder).is_dir():
            (tmp_path / folder / "__init__.py").touch()
    found = check([tmp_path / script], select=["RK111"])
    assert [Path(one.place.split(":")[0]).name for one in found] == ["trainer.py"]
    assert "every rank would train on all" in found[0].message


GROUPS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
class Part(nn.Module):
    def forward(self, x):
        return self.one(x)
    def groups(self, lr):
        return [{{"params": self.one.parameters(), "lr": lr}}]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Part(), nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.body(x))
    def groups(self, lr):
        return self.body.groups(lr) + [{{"params": self.head.parameters(), "lr": lr}}]
model = {}
parameters = model.groups(0.1)
optimizer = torch.optim.SGD(parameters, lr=0.1)
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("made", ["Net()", "timm.create_model('resnet18').cuda()"])
def test_groups_of_parameters_by_a_method_of_the_model(made: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GROUPS.format(made))
    assert "model = rankup.wrap(model)" in port(path).text
    joined = f"{GROUPS.format(made)}torch.distributed.init_process_group()\n"
    found = check_python(from_bytes(path, joined.encode()))
    assert [one.message[:5] for one in found if one.code == "RK106"] == ["model"]


@pytest.mark.parametrize(
    ("printed", "by_all"),
    [
        ("from rich import print", True),
        ("", True),
        ("from rankup import print0 as print", False),
        ("from helper import print", False),
        ("def print(*values): ...", False),
    ],
)
def test_a_print_of_a_library_prints_on_every_rank(printed: str, by_all: bool) -> None:
    step = STEP.format("model(x).mean().backward(); optimizer.step()")
    assert ("RK174" in codes(f"{printed}\n{step}print('done')\n")) is by_all


def _assigned(times: int) -> bytes:
    lines = "\n".join(f"    x = model.layer{n % 7}(x) + x.view({n})" for n in range(times))
    text = TRAINER + f"def run(model, x):\n{lines}\n    return x\n" + MAIN.format("", "helper")
    return f"{text}print(run(model, fit(model, loader, optimizer)))\n".encode()


def test_a_name_that_is_assigned_many_times_takes_no_square_of_them() -> None:
    """Counted in steps of following, which no load of the machine changes."""

    def steps(times: int) -> int:
        from rankup.script.flow import Flow

        taken = 0
        follow = Flow._follow

        def counted(self: Flow, *args: object) -> object:
            nonlocal taken
            taken += 1
            return follow(self, *args)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Flow, "_follow", counted)
            check_python(from_bytes(Path("train.py"), _assigned(times)))
        return taken

    assert steps(800) < 3 * steps(400)
