"""What `rankup run` says of a script before it runs."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.launch import ready
from rankup.site.rundir import Job
from tests.conftest import RunRankup

# One GPU: no process group, no part of the data for each rank.
SINGLE = """import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(1, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(list(range(10)), batch_size=2, shuffle=True)
for epoch in range(2):
    for batch in loader:
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def job(folder: Path, text: str) -> Job:
    path = folder / "train.py"
    path.write_text(text)
    return Job("a", "script", str(path), [], str(folder), {}, {})


def test_before_a_job_is_submitted(tmp_path: Path) -> None:
    single = job(tmp_path, SINGLE)
    with pytest.raises(UserError, match=r"not ready for 4 ranks:\n  error: .*train\.py:") as raised:
        ready.before_submit(single.kind, single.target, 4, wanted=True)
    lines = str(raised.value).splitlines()
    assert 4 <= len(lines) <= 7
    assert lines[-2].endswith(f"rankup check {tmp_path / 'train.py'}")
    assert lines[-1].endswith("--no-check submits it as it is")
    # One rank does it all.
    assert ready.before_submit(single.kind, single.target, 1, wanted=True) == []
    assert ready.before_submit(single.kind, single.target, 4, wanted=False) == []
    assert ready.before_submit("script", job(tmp_path, "print(1)\n").target, 4, wanted=True) == []
    broken = job(tmp_path, SINGLE + "def (\n")
    with pytest.raises(UserError, match=r"train\.py:13.*--no-check"):
        ready.before_submit(broken.kind, broken.target, 1, wanted=True)
    assert ready.before_submit(broken.kind, broken.target, 4, wanted=False) == []


def test_no_rank_starts_with_a_script_that_python_cannot_read(
    rankup_here: RunRankup, tmp_path: Path
) -> None:
    refused = rankup_here(["run", "--local", job(tmp_path, PARSER).target, "--bogus"])
    assert (refused.returncode, (tmp_path / "runs").exists()) == (2, False)
    assert "unrecognized arguments: --bogus (--no-check" in refused.stderr
    path = Path(job(tmp_path, SINGLE + "def (\n").target)
    done = rankup_here(["run", "--local", path])
    assert done.returncode == 2
    assert f"{path}:13: invalid syntax; no rank was started" in done.stderr
    assert not (tmp_path / "runs").exists()
    ran = rankup_here(["run", "--local", "--no-check", path])
    assert ran.returncode == 1
    assert "SyntaxError" in ran.stderr


PARSER = """import argparse
import sys
def options(choices=("sgd", "adam")):
    parser = argparse.ArgumentParser(description="trains")
    parser.add_argument("--epochs", type=int, default=3, help="how many")
    parser.add_argument("--optimizer", choices=["sgd", "adam"])
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("data", nargs="*")
    return parser.parse_args()
if __name__ == "__main__":
    options()
"""
FROM = "from argparse import ArgumentParser"
BLOCK = PARSER[PARSER.index("    parser =") : PARSER.index("    return")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--epochs", "x"], "argument --epochs: invalid int value: 'x'"),
        (["--epoch", "1", "--bogus=3"], "unrecognized arguments: --bogus=3"),
        (["--optimizer", "lion"], "argument --optimizer: invalid choice: 'lion'"),
        (["--ep=1", "--amp", "a", "b"], ""),
        (["--help", "--bogus"], ""),
    ],
)
def test_no_rank_starts_with_arguments_that_the_script_refuses(
    tmp_path: Path, words: list[str], why: str
) -> None:
    asked = replace(job(tmp_path, PARSER), args=words)
    ready.refuse_arguments(asked, wanted=False)
    if not why:
        ready.refuse_arguments(asked, wanted=True)
        return
    with pytest.raises(UserError, match=f"train.py would end at once: {re.escape(why)}"):
        ready.refuse_arguments(asked, wanted=True)


@pytest.mark.parametrize(
    "text",
    [
        PARSER.replace("parse_args()", "parse_known_args()[0]"),
        PARSER.replace("parse_args()", "parse_args(['--bogus'])"),
        PARSER.replace("    return", "    add_more(parser)\n    return"),
        PARSER.replace("    return", "    parser.add_argument(NAME)\n    return"),
        PARSER.replace("    return", "    group = parser.add_argument_group()\n    return"),
        PARSER.replace("    return", "    if amp:\n        parser.add_argument('-b')\n    return"),
        PARSER.replace("    options()", "    sys.argv.pop()\n    options()"),
        PARSER.replace("    options()", "    pass"),
        PARSER.replace("import argparse", "import jsonargparse").replace("argparse.A", "A", 1),
        PARSER.replace("    options()", "    from sys import argv\n    argv.pop()\n    options()"),
        PARSER.replace("ArgumentParser(", "ArgumentParser(parents=[BASE], "),
        PARSER.replace("ArgumentParser(", "ArgumentParser(fromfile_prefix_chars='-', "),
        PARSER + "other = argparse.ArgumentParser()\n",
        "parser = None\nif parser:\n" + BLOCK + "    parser.parse_args()\n",
        "import torch\n",
        "def (",
    ],
)
def test_arguments_that_may_be_right_are_no_error(tmp_path: Path, text: str) -> None:
    ready.refuse_arguments(replace(job(tmp_path, text), args=["--bogus"]), wanted=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import sys", "from jsonargparse import ArgumentParser\nfrom argparse import Namespace"),
        ("import sys", f"{FROM}\nclass ArgumentParser(ArgumentParser): ..."),
        (
            "import sys",
            f"try:\n    from mine import ArgumentParser\nexcept ImportError:\n    {FROM}",
        ),
        ("import sys", f"{FROM}\nfrom mine import *"),
        ("import sys", f"{FROM}\nimport argparse\nargparse.ArgumentParser.error = print"),
    ],
)
def test_a_parser_that_may_be_another_is_not_read(tmp_path: Path, old: str, new: str) -> None:
    text = PARSER.replace("import argparse\n", "").replace("argparse.Arg", "Arg")
    sure = job(tmp_path, text.replace(old, FROM))
    with pytest.raises(UserError, match="unrecognized arguments: --bogus"):
        ready.refuse_arguments(replace(sure, args=["--bogus"]), wanted=True)
    unsure = job(tmp_path, text.replace(old, new))
    ready.refuse_arguments(replace(unsure, args=["--bogus"]), wanted=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    options()\n", "    if CONFIG:\n        options()\n"),
        ("    options()\n", "    CONFIG or options()\n"),
        ("    options()\n", "    options() if CONFIG else None\n"),
        ("    options()\n", "    try:\n        options()\n    except SystemExit:\n        pass\n"),
        ("    options()\n", "    if CONFIG:\n        sys.exit()\n    options()\n"),
        ("    options()\n", "    pass\nelse:\n    options()\n"),
        ("    return", "    if CONFIG:\n        return CONFIG\n    return"),
        ("return ", "return CONFIG or "),
        ("def options", "@hydra.main\ndef options"),
        ("if __name__", "def options():\n    pass\nif __name__"),
        ("def main():\n", "def main():\n    if CONFIG:\n        return\n"),
        ("    main()\n", "    if CONFIG:\n        main()\n"),
    ],
)
def test_a_parser_that_may_not_be_come_to_is_not_read(tmp_path: Path, old: str, new: str) -> None:
    text = PARSER
    if "main()" in old:
        text = text.replace("    options()", "    main()").replace(
            "if __name__", "def main():\n    print(options())\nif __name__"
        )
    with pytest.raises(UserError, match="unrecognized arguments: --bogus"):
        ready.refuse_arguments(replace(job(tmp_path, text), args=["--bogus"]), wanted=True)
    text = text.replace(old, new)
    ready.refuse_arguments(replace(job(tmp_path, text), args=["--bogus"]), wanted=True)


@pytest.mark.parametrize("line", ["int = float", "from mine import *"])
def test_a_type_of_the_name_of_a_builtin_may_be_another(tmp_path: Path, line: str) -> None:
    own = job(tmp_path, PARSER.replace("import sys", line))
    ready.refuse_arguments(replace(own, args=["--epochs", "1.5"]), wanted=True)
    with pytest.raises(UserError, match="unrecognized arguments: --bogus"):
        ready.refuse_arguments(replace(own, args=["--bogus"]), wanted=True)


def test_beside_a_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready.beside(job(tmp_path, SINGLE), 1, wanted=True)
    ready.beside(job(tmp_path, SINGLE), 2, wanted=False)
    ready.beside(job(tmp_path, SINGLE), 2, wanted=True)
    said, end = "", time.monotonic() + 120
    while "rankup check" not in said and time.monotonic() < end:
        said += capsys.readouterr().err
        time.sleep(0.05)
    assert said.count("rankup check") == 1
    assert said.startswith("error: ")
