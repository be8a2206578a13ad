"""`rankup mesh`: which rank holds what, in words and drawn, and what it refuses."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rankup.base.errors import UserError
from rankup.launch.mesh import show
from tests.conftest import RunRankup

LM = "language-model"
SMALL = ("--vocab", "byte", "--dim", "16", "--layers", "3", "--seq-len", "8")
NOTHING = (None,) * 7
ONLY_CP = (None, None, None, 2, None, None, None)

MODELS = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8), nn.Linear(8, 4))

def of_size(width):
    return nn.Linear(width, width)

def branches():
    return nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})

def attention():
    return nn.TransformerEncoderLayer(16, 4)

def reads_values():
    model = nn.Linear(2, 2)
    model.weight.sum().item()
    return model

def nothing():
    return 3

class Breaks(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def chain(self):
        return self.missing

    tensor_plan = chain
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mymodels.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("import no_such_package_at_all")
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("mymodels", "broken", "ends"):
        sys.modules.pop(name, None)


def test_a_recipe_in_3d(rankup_here: RunRankup) -> None:
    words = ["mesh", "--nodes", "2", "--nproc", "4", "--strategy", "3d", LM]
    done = rankup_here([*words, *SMALL])
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "8 ranks on 2 nodes of 4: pp 2 x shard 2 x tp 2" in lines
    table = lines.index("node  rank  pp  dp  shard  tp")
    assert lines[table + 6].split() == ["1", "5", "1", "0", "0", "1"]
    stage = next(i for i, line in enumerate(lines) if line.startswith("stage 0, ranks 0-3"))
    tokens = next(line for line in lines[stage:] if line.startswith("tokens.weight"))
    assert " ".join(tokens.split()[1:]) == "256 x 16 64 x 16 tp: dim 0, shard: dim 0"


def test_a_function_of_the_user(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("fsdp", *NOTHING[1:])
    assert show("mymodels:build_model", (), 1, 2, asked) == 0
    assert show("mymodels.py:build_model", (), 1, 2, asked) == 0
    by_module, by_file = capsys.readouterr().out.split("mymodels.py:build_model")
    assert by_module == f"mymodels:build_model{by_file}"
    assert "588 parameters" in by_module  # 8*32+32 + 32*8+8 + 8*4+4
    assert "0.weight" in by_module
    assert "16 x 8" in by_module


def test_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    split = (None, None, None, None, 4, None, None)
    assert show(LM, (*SMALL, "--global-batch", "8"), 4, 2, split) == 0
    said = capsys.readouterr().err
    assert "warning: --tp 4 spans nodes of 2 ranks" in said
    assert "leaves 4 of 8 ranks without work" in said


def test_options_of_the_recipe_go_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(LM, (*SMALL, "--strategy", "fsdp"), 1, 2, ("ddp", *NOTHING[1:])) == 0
    assert "2 ranks on 1 node of 2: shard 2" in capsys.readouterr().out


def test_a_text_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(LM, ("--train", "elsewhere.txt", "--dim", "16"), 1, 1, NOTHING) == 0
    assert "a vocabulary of 50,000 words is assumed" in capsys.readouterr().out


# TARGET and further words, ranks, the split, and what has to be said.
Bad = tuple[str, int, tuple[str | int | None, ...], str]
BAD: dict[str, Bad] = {
    "product": (LM, 3, (None, None, None, None, 2, None, None), "nearest that come out: --shard 3"),
    "heads": (f"{LM} --heads 4 --dim 24", 3, ("tp", *NOTHING[1:]), "--tp that fits: 1, 2, 4"),
    "schedule": (LM, 2, ("pp", None, None, None, None, None, "gpip"), "did you mean gpipe?"),
    "flag": (f"{LM} --layer 4", 1, NOTHING, "did you mean --layers"),
    "recipe": ("language-modle", 1, NOTHING, "did you mean language-model?"),
    "gone": ("image-classification", 1, NOTHING, "is gone in 0.3: classify.py trains"),
    "schedule of 0.2": (
        *(LM, 2, ("pp", None, None, None, None, None, "zbvzerobubble")),
        "--pp-schedule zbvzerobubble is gone in 0.3: give gpipe, 1f1b or interleaved",
    ),
    "script": ("mymodels.py", 1, NOTHING, "mymodels.py:build_model"),
    "module": ("no_such_module:build", 1, NOTHING, "no module 'no_such_module' in "),
    "file": ("missing.py:build", 1, NOTHING, "missing.py does not exist"),
    "function": ("mymodels:build_modle", 1, NOTHING, "did you mean build_model?"),
    "import": ("broken:build", 1, NOTHING, "broken cannot be imported: No module named"),
    "exit": ("ends:build", 1, NOTHING, "ended the program while it was imported (3)"),
    "arguments": ("mymodels:of_size", 1, NOTHING, "mymodels:of_size takes arguments (width)"),
    "cp": ("mymodels:build_model", 2, ONLY_CP, "--cp shares sequences among ranks, and Sequential"),
    "cp and pp": (LM, 4, (None, None, None, 2, None, 2, None), "the schedules of --pp 2"),
    "chunks": (
        f"{LM} --dim 16 --vocab byte --seq-len 10",
        2,
        ONLY_CP,
        "is no multiple of 4; give --seq-len 12",
    ),
    "words": ("mymodels:build_model --layers 3", 1, NOTHING, "in front of TARGET"),
    "values": ("mymodels:reads_values", 2, ("fsdp", *NOTHING[1:]), "does not work on meta"),
    "no model": ("mymodels:nothing", 1, NOTHING, "returned int; a function that returns"),
    "no chain": ("mymodels:branches", 2, ("pp", *NOTHING[1:]), "cannot be cut into pipeline"),
    "no plan": ("mymodels:attention", 2, ("tp", *NOTHING[1:]), "brings no tensor plan"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused(here: Path, what: str) -> None:
    words, ranks, split, said = BAD[what]
    target, *args = words.split()
    if target == LM and "--dim" not in args:
        args += SMALL
    with pytest.raises(UserError) as error:
        show(target, tuple(args), 1, ranks, split)  # type: ignore[arg-type]
    assert said in str(error.value)


# By sizes alone tp 6 or 3 and pp 5 are nearest; the model has 32 outputs and three linear maps.
@pytest.mark.parametrize(("ranks", "tp", "pp"), [(6, 4, None), (10, None, 4)])
def test_what_is_proposed_comes_out(here: Path, ranks: int, tp: int | None, pp: int | None) -> None:
    """The nearest layouts of a user's model are those that it can be cut by."""
    with pytest.raises(UserError) as error:
        show("mymodels:build_model", (), 1, ranks, (None, None, None, None, tp, pp, None))
    [said] = re.findall("nearest that come out: (.*?);", str(error.value))
    proposed = said.split(" or ")
    assert len(proposed) == 3
    for words in proposed:
        named = words.split()
        sizes = dict(zip(named[::2], map(int, named[1::2]), strict=True))
        dp, shard, *rest = map(sizes.get, ("--dp", "--shard", "--tp", "--pp"))
        assert show("mymodels:build_model", (), 1, ranks, (None, dp, shard, None, *rest, None)) == 0


def test_what_breaks_in_a_model_keeps_its_layouts_from_being_proposed(here: Path) -> None:
    """Also where its own method fails; copies and shards come out all the same."""
    with pytest.raises(UserError, match="nearest that come out: --shard 3 or --dp 3;"):
        show("mymodels:Breaks", (), 1, 3, (None, None, None, None, None, 2, None))


def test_a_torch_without_ranks_that_are_not_there(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake process group is torch's private one, and may be gone in its next version."""
    private = "torch.testing._internal.distributed.fake_pg"
    importlib.import_module("rankup.parallel.build")  # torch's own FSDP takes it where it is there
    monkeypatch.setitem(sys.modules, private, None)
    found = f"torch {torch.__version__} does not have where 2.13 has it"
    with pytest.raises(UserError, match=f"{re.escape(found)}.*install that one"):
        show("mymodels:build_model", (), 1, 2, ("fsdp", *NOTHING[1:]))
    # What is only copied is cut into nothing.
    assert show("mymodels:build_model", (), 1, 2, NOTHING) == 0
