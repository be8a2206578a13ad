"""A rule's page is its docstring; the bad example gives its code, the good one does not."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rankup.port import batch
from rankup.port.check import SYNTAX, check_python
from rankup.port.rules import RULES, Rule
from rankup.script.source import from_bytes

PAGES = Path(__file__).resolve().parents[2] / "docs" / "rules"
_IMPORTS = """\
import itertools, os, random, sys, time
import torch, torchvision, wandb
import torch.nn.functional as F
import rankup
from rankup import print0
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, random_split
from torch.utils.tensorboard import SummaryWriter
from transformers import get_linear_schedule_with_warmup
"""
_CLASS = """\
class Net(nn.Module):
    def encode(self, x):
        return x
"""
# What an example does not make is as in most scripts.
_MODEL = """\
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
_LOADER = "loader = DataLoader(dataset, batch_size=64)\n"
# For examples without a training loop of their own, so that they are about training at all.
_LOOP = """\
for x, y in rankup.shard(loader_from_elsewhere):
    net_from_elsewhere(x).mean().backward()
"""
CODES = [rule.code for rule in RULES]


def before_and_after(page: str) -> tuple[str, str]:
    """The example of a page, and what to write instead: the two sides of its diff."""
    [diff] = re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = diff.splitlines(keepends=True)
    old, new = ([line[1:] for line in lines if line[:1] != sign] for sign in "+-")
    return "".join(old), "".join(new)


def examples(code: str) -> tuple[str, str]:
    return before_and_after((PAGES / f"{code}.md").read_text(encoding="utf-8"))


def codes(example: str) -> set[str]:
    parts = [_IMPORTS, _CLASS]
    parts += [] if "model = " in example else [_MODEL]
    parts += [] if "loader = " in example else [_LOADER]
    parts.append(example)
    if ".backward()" not in example:
        parts.append(_LOOP)
    source = from_bytes(Path("train.py"), "\n".join(parts).encode())
    return {one.code for one in check_python(source)}


@pytest.mark.parametrize("rule", RULES, ids=CODES)
def test_the_page_is_the_rule(rule: Rule) -> None:
    """`RANKUP_GOLDEN=write` writes the pages anew."""
    page = PAGES / f"{rule.code}.md"
    if os.environ.get("RANKUP_GOLDEN") == "write":
        page.write_text(rule.page(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == rule.page()
    listed = (PAGES.parent / "check.md").read_text(encoding="utf-8")
    assert f"- [{rule.code}](rules/{rule.code}.md) {rule.title}\n" in listed


@pytest.mark.parametrize("code", CODES)
def test_the_example_gives_the_code_and_the_other_does_not(code: str) -> None:
    bad, good = examples(code)
    assert code in codes(bad)
    assert code not in codes(good)


def test_a_syntax_error_has_a_page_as_well() -> None:
    bad, good = examples(SYNTAX)
    assert codes(bad) == {SYNTAX}
    assert SYNTAX not in codes(good)


def test_every_code_has_one_page() -> None:
    codes = [SYNTAX, *CODES, *(rule.code for rule in batch.RULES)]
    assert sorted(codes) == sorted(path.stem for path in PAGES.glob("*.md"))
