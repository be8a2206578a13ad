"""What names and expressions of a script are worth, and how its arguments change that."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_downloads import names

LOAD = "from datasets import load_dataset\n"


def _names(folder: Path, text: str, *args: str) -> list[str]:
    return names(folder, LOAD + text, *args)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NAME = 'a'\nload_dataset(NAME)", ["a"]),
        ("A = 'a'\nB = f'{A}/b'\nload_dataset(B)", ["a/b"]),
        ("load_dataset('a' + '/' + 'b')", ["a/b"]),
        ("load_dataset('%s/%s' % ('a', 'b'))", ["a/b"]),
        ("load_dataset('{}/b'.format('a'))", ["a/b"]),
        ("load_dataset('A'.lower())", ["a"]),
        ("a, b = 'x', 'y'\nload_dataset(a, b)", ["x:y"]),
        ("for n in ['a', 'b']:\n    load_dataset(n)", ["a", "b"]),
        ("N = ('a', 'b')\n[load_dataset(n) for n in N]", ["a", "b"]),
        ("for n, c in [('a', 'x'), ('b', 'x')]:\n    load_dataset(n, c)", ["a:x", "b:x"]),
        ("T = {'s': 'a', 'l': 'b'}\nload_dataset(T['l'])", ["b"]),
        ("load_dataset(None or 'a')", ["a"]),
        ("load_dataset(n := 'a')", ["a"]),
        ("class C:\n    name = 'a'\nload_dataset(C.name)", ["a"]),
        ("class C:\n    name: str = 'a'\nc = C()\nload_dataset(c.name)", ["a"]),
        ("class C:\n    name: str = 'a'\nc = C(name='b')\nload_dataset(c.name)", ["b"]),
        (
            "class C:\n    def __init__(self, n):\n        self.n = n\n"
            "    def go(self):\n        load_dataset(self.n)\nC('a').go()",
            ["a"],
        ),
        ("def f(n, c='x'):\n    load_dataset(n, c)\nf('a')\nf('a', c='x')", ["a:x"]),
        ("def f(n):\n    load_dataset(n)\nf('a')\nf(n='b')", ["a", "b"]),
        ("def f(n='a'):\n    load_dataset(n)\n", ["a"]),
        ("def f(n):\n    load_dataset(n)", ["?n is an argument of f, which nothing calls"]),
        ("n = 'a'\nn = n + 'b'\nload_dataset(n)", ["?n is computed"]),
        (
            "def f():\n    global n\n    n = 'b'\nn = 'a'\nload_dataset(n)",
            ["?n is set in lines 4, 5"],
        ),
        (
            "class C:\n    def __init__(self):\n        self.n = 'a'\n    def set(self):\n"
            "        self.n = 'b'\n    def go(self):\n        load_dataset(self.n)",
            ["?self.n is set in lines 4, 6"],
        ),
        (
            "class C:\n    def __init__(self, n='a'):\n        super().__init__()\n"
            "        load_dataset(n)\nC('b')",
            ["b"],
        ),
        (
            "class T:\n    def train(self, n='a'):\n        load_dataset(n)\n"
            "class U:\n    def train(self): ...\nT().train('b')\nU().train()",
            ["b"],
        ),
        ("if False:\n    load_dataset('a')", []),
        ("if __name__ == '__main__':\n    load_dataset('a')", ["a"]),
        ("def f():\n    return\n    yield\nload_dataset(f())", ["?it is computed"]),
        ("def f():\n    return 'a'\nload_dataset(f())", ["a"]),
        ("def f():\n    return f()\nload_dataset(f())", ["?it is computed"]),
        ("load_dataset(*x)", ["?the arguments are computed"]),
        ("load_dataset(**x)", ["?the arguments are computed"]),
        ("load_dataset()", ["?no name is given"]),
        ("load_dataset(3)", ["?no name is given"]),
        (
            "from pathlib import Path\nload_dataset(str(Path('a/b/c').parent).upper())",
            ["A/B"],
        ),
        ("load_dataset((3).lower())", ["?it is computed"]),
        ("load_dataset('a'[7])", ["?it is computed"]),
        ("load_dataset(f'{b\"x\"}')", ["?it is computed"]),
    ],
)  # fmt: skip
def test_constants_are_followed(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert _names(tmp_path, text) == expected


ARGPARSE = """
import argparse
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", nargs="?", default="c4")
    parser.add_argument("-m", "--model-name", default="gpt2")
    parser.add_argument("--config")
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--names", nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()
def main():
    args = get_args()
    load_dataset(args.model_name, args.config)
    load_dataset(args.corpus)
    if args.big:
        load_dataset("big")
    for name in args.names:
        load_dataset(name)
main()
"""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), ["gpt2", "c4"]),
        (("--model-name", "t5"), ["t5", "c4"]),
        (("--model-name=t5", "--seed", "3", "wiki"), ["t5", "wiki"]),
        (("-m", "t5", "--config", "x"), ["t5:x", "c4"]),
        (("--model", "t5"), ["t5", "c4"]),  # argparse takes the beginning of a name, too
        (("--big",), ["gpt2", "c4", "big"]),
        (("--names", "a", "b"), ["gpt2", "c4", "a", "b"]),
        (("--unknown", "3"), ["gpt2", "3"]),
    ],
)
def test_arguments_are_parsed_as_the_script_would(
    tmp_path: Path, args: tuple[str, ...], expected: list[str]
) -> None:
    found = [name for name in _names(tmp_path, ARGPARSE, *args) if "?" not in name]
    assert found == expected


def test_what_has_to_be_given_and_is_not_says_so(tmp_path: Path) -> None:
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("name")
parser.add_argument("--model", required=True)
args = parser.parse_args()
load_dataset(args.name)
load_dataset(args.model)
"""
    missing = "it is given on the command line"
    assert _names(tmp_path, text) == [f"?name: {missing}", f"?model: {missing}"]
    assert _names(tmp_path, text, "a", "--model", "b") == ["a", "b"]


def test_arguments_of_other_parsers_are_taken_by_their_names(tmp_path: Path) -> None:
    text = """
import transformers
model_args, data_args = transformers.HfArgumentParser((M, D)).parse_args_into_dataclasses()
load_dataset(data_args.dataset_name)
"""
    assert _names(tmp_path, text) == ["?data_args.dataset_name is not known"]
    assert _names(tmp_path, text, "--dataset_name", "xsum") == ["xsum"]


def test_an_attribute_of_an_object_is_no_option_of_the_same_name(tmp_path: Path) -> None:
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="gpt2")
class Net:
    def __init__(self):
        self.model = build()
        load_dataset(self.model)
Net()
"""
    [name] = _names(tmp_path, text)
    assert name.startswith("?")


def test_an_argument_that_the_script_sets_itself_is_not_known(tmp_path: Path) -> None:
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--name", default="a")
args = parser.parse_args()
args.name = args.name + "/b"
load_dataset(args.name)
"""
    assert _names(tmp_path, text) == ["?args.name is set in line 7"]


def test_constants_of_local_modules_are_followed(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("NAME = 'a'\nTABLE = {'x': 'b'}\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("from .deep import OTHER, fetch\n")
    (tmp_path / "pkg" / "deep.py").write_text(
        "from datasets import load_dataset\nfrom config import NAME\n"
        "OTHER = NAME + 'c'\ndef fetch(name):\n    load_dataset(name)\n"
    )
    text = """
import config
from config import TABLE
from pkg import OTHER, fetch
load_dataset(config.NAME)
load_dataset(TABLE["x"])
fetch(OTHER)
"""
    assert _names(tmp_path, text) == ["a", "b", "ac"]


def test_what_another_file_computes_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("import os\n\nNAME = make()\n")
    text = "from config import NAME\nload_dataset(NAME)"
    assert _names(tmp_path, text) == ["?NAME is computed in config.py:3"]


def test_a_local_module_of_a_librarys_name_is_not_the_library(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").write_text("def load_dataset(name): ...\n")
    assert _names(tmp_path, "load_dataset('xsum')") == []


def test_a_product_of_many_names_ends_soon(tmp_path: Path) -> None:
    many = [str(number) for number in range(40)]
    lines = [f"N = {many!r}", "for a in N:", " for b in N:", "  for c in N:"]
    lines += ["   load_dataset(a + b + c)", "   load_dataset(a)"]
    names = _names(tmp_path, "\n".join(lines))
    assert names[0] == "?it is too involved to be followed"
    assert names[1:] == many


def test_names_that_go_in_circles_end(tmp_path: Path) -> None:
    text = """
a = b
b = a
load_dataset(a)
def f(n): g(n)
def g(n):
    load_dataset(n)
    f(n)
f(f)
x = x.y()
x.z(load_dataset(x.w))
"""
    assert all(name.startswith("?") for name in _names(tmp_path, text))


def test_names_that_modules_import_from_each_other_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import fetch\n")
    (tmp_path / "b.py").write_text("from a import fetch\nfrom c import *\n")
    (tmp_path / "c.py").write_text("from b import *\n")
    text = "from a import fetch\nfrom c import other\nload_dataset(fetch())\nother(fetch.name)"
    assert all(name.startswith("?") for name in _names(tmp_path, text))


def test_doubling_a_text_over_and_over_does_not_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0 = 'xxxxxxxxxxxxxxxx'"] + [f"a{n + 1} = a{n} + a{n}" for n in range(50)]
    [name] = _names(tmp_path, "\n".join([*lines, "load_dataset(a50)"]))
    assert name.startswith("?")
