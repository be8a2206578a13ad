"""`rankup fetch --no-run`: the list, the command line, the table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rankup.login.fetch.command import fetch
from rankup.login.fetch.request import Request

SCRIPT = """
import argparse, urllib.request
from datasets import load_dataset
from torchvision.datasets import CIFAR10
from transformers import AutoModel, AutoTokenizer
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="gpt2")
args = parser.parse_args()
AutoTokenizer.from_pretrained(args.model)
AutoModel.from_pretrained(args.model)
load_dataset("wikitext", "wikitext-2-raw-v1", revision="b08601e")
urllib.request.urlretrieve("https://example.org/it's a.zip", "data/it's a.zip")
CIFAR10("data", download=True)
load_dataset(input())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that fetches several things, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(SCRIPT)
    return path


def test_what_is_found_is_ready_to_be_typed(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(Request(str(script), ("--model", "t5"), no_run=True)) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("by name: ")]
    assert shlex.split(line)[4:] == [
        *("--model", "t5"),
        *("--dataset", "wikitext:wikitext-2-raw-v1@b08601e"),
        *("--url", "https://example.org/it's a.zip", "--to", "data/it's a.zip"),
    ]
    [line] = [line for line in out.splitlines() if "CIFAR10" in line]
    assert line.endswith("train.py:13 (only this call puts it where it looks for it)")
    [line] = [line for line in out.splitlines() if "it is computed" in line]
    assert line.endswith("load_dataset, train.py:14")
    assert out.endswith("calls: rankup fetch train.py --model t5\n")


def test_all_of_it_is_there_as_json(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch(Request(str(script), no_run=True, as_json=True)) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["command"].startswith("rankup fetch --model gpt2 --dataset ")
    assert {one["what"] for one in said["downloads"]} == {"model", "dataset", "url", "torchvision"}
    assert said["args"] == []


def test_a_script_that_fetches_nothing_says_so(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("print(1)\n")
    assert fetch(Request(str(script), no_run=True)) == 0
    out = capsys.readouterr().out
    assert out == (
        "reading train.py finds no call that fetches something; to be sure: rankup fetch train.py\n"
    )


def test_names_cannot_move_the_cursor(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import nltk\nnltk.download('a\\x1b[2Jb\\nc')\n")
    assert fetch(Request(str(script), no_run=True)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "a\\x1b[2Jb\\x0ac" in out
