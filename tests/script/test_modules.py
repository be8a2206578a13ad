"""What a script imports, with its local modules; and that any file ends soon and clearly."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.script.downloads import read
from rankup.script.modules import gather, imports


def _script(folder: Path, text: str | bytes, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _imports(folder: Path, text: str) -> list[tuple[str, bool, bool]]:
    """Module, optional, late."""
    found = imports(_script(folder, text))
    return [(one.module, one.optional, one.late) for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import a.b as c, d", [("a.b", False, False), ("d", False, False)]),
        ("from a.b import c", [("a.b", False, False)]),
        ("try:\n    import a\nexcept ImportError:\n    a = None", [("a", True, False)]),
        (
            "try:\n    import a\nexcept (OSError, ModuleNotFoundError):\n    import b",
            [("a", True, False), ("b", True, False)],
        ),
        ("try:\n    import a\nexcept ValueError:\n    pass", [("a", False, False)]),
        ("try:\n    import a\nexcept:\n    pass", [("a", True, False)]),
        ("try: pass\nexcept ImportError: pass\nelse:\n    import a", [("a", False, False)]),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a",
            [("typing", False, False), ("a", True, False)],
        ),
        (
            "import sys\nif sys.version_info >= (3, 11):\n    import a\nelse:\n    import b",
            [("sys", False, False), ("a", True, False), ("b", True, False)],
        ),
        ("def f():\n    import a", [("a", False, True)]),
        ("class C:\n    import a", [("a", False, False)]),
        ("if x:\n    import a", [("a", False, False)]),
    ],
)  # fmt: skip
def test_how_an_import_stands(
    tmp_path: Path, text: str, expected: list[tuple[str, bool, bool]]
) -> None:
    assert _imports(tmp_path, text) == expected


def test_local_modules_are_read_and_not_listed(tmp_path: Path) -> None:
    _script(tmp_path, "import torch\nimport train", "beside.py")
    _script(tmp_path, "from . import inner\nfrom .. import nothing", "pkg/__init__.py")
    _script(tmp_path, "from .deep.leaf import x\nimport numpy", "pkg/inner.py")
    _script(tmp_path, "import scipy", "pkg/deep/leaf.py")
    _script(tmp_path, "import pandas", "models/net.py")
    text = "import beside\nimport pkg\nfrom models import net\nfrom datasets import x"
    (tmp_path / "datasets").mkdir()  # data, and no package: the library is meant
    path = _script(tmp_path, text)
    modules = sorted(one.module for one in imports(path))
    assert modules == ["datasets", "numpy", "pandas", "scipy", "torch"]
    names = sorted(one.path.relative_to(tmp_path).as_posix() for one in gather(path).files)
    assert names == [
        *("beside.py", "models/net.py", "pkg/__init__.py", "pkg/deep/leaf.py", "pkg/inner.py"),
        "train.py",
    ]


def test_packages_of_the_repository_are_local(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    _script(tmp_path, "from . import layers\nimport numpy", "src/net/__init__.py")
    _script(tmp_path, "import scipy", "src/net/layers.py")
    _script(tmp_path, "import pandas", "tools/files.py")
    _script(tmp_path, "import sympy", "types.py")
    text = "import net\nimport types\nfrom tools.files import load"
    path = _script(tmp_path, text, "scripts/train.py")
    assert sorted(one.module for one in imports(path)) == ["numpy", "pandas", "scipy", "types"]
    found = gather(path)
    assert found.find("net.layers.Dense") == (found.files[3], ["Dense"])


def test_an_import_is_as_optional_as_the_only_way_to_it(tmp_path: Path) -> None:
    _script(tmp_path, "import a", "maybe.py")
    _script(tmp_path, "import b\nimport both", "late.py")
    _script(tmp_path, "import c", "both.py")
    text = """
try:
    import maybe
except ImportError:
    pass
def f():
    import late
import both
"""
    found = {module: (optional, late) for module, optional, late in _imports(tmp_path, text)}
    assert found == {"a": (True, False), "b": (False, True), "c": (False, False)}


def test_a_script_of_another_encoding_is_read(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\n# größer\nimport a\n".encode("latin-1")
    assert [one.module for one in imports(_script(tmp_path, text))] == ["a"]
    with_mark = b"\xef\xbb\xbfimport a\n"
    assert [one.module for one in imports(_script(tmp_path, with_mark))] == ["a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"import a\nx = = 1\n", r"train\.py:2: no valid Python: invalid syntax"),
        (b"x = '\xff'\n", r"train\.py:1: .*encoding"),
        (b"# coding: klingon\n", r"train\.py:1: .*klingon"),
        (b"x = " + b"(" * 5000 + b")" * 5000, r"train\.py:1: .*(nested|parenthes)"),
        (b"x = " + b"+".join([b"a"] * 50_000), r"train\.py:1: nested too deeply"),
        (b"#" * 4_200_000, r"train\.py:1: more than 4 MiB"),
    ],
)
def test_a_script_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        gather(_script(tmp_path, data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "from_pretrained(f'{a}{b}'); x.y.z(a.b(c), d[e]); a = b\n",
        "def f(n): load_dataset(n)\nf(a)\n",
    ],
)
def test_a_large_script_is_read_to_its_end(tmp_path: Path, line: str) -> None:
    """Were it followed anew at each line, it would take until the test's time-out."""
    text = line * (150_000 // len(line))
    read(_script(tmp_path, f"from datasets import load_dataset\n{text}"))


def test_a_local_module_that_is_no_python_is_noted(tmp_path: Path) -> None:
    _script(tmp_path, "print 'old'", "old.py")
    found = gather(_script(tmp_path, "import old\nimport a\nfrom old import x"))
    assert [one.module for one in found.imports] == ["a"]
    [note] = found.notes
    assert "old.py:1: no valid Python" in note


def test_so_many_modules_that_not_all_are_read_are_noted(tmp_path: Path) -> None:
    for number in range(250):
        _script(tmp_path, f"import torch, m{number + 1}", f"m{number}.py")
    found = gather(_script(tmp_path, "import m0"))
    assert found.notes == ("200 local modules are read; the others are not",)
    assert len(found.files) == 200


def test_nothing_is_executed(tmp_path: Path) -> None:
    text = "import pathlib\npathlib.Path('ran').touch()\nraise SystemExit(3)\n"
    _script(tmp_path, text, "beside.py")
    read(_script(tmp_path, "import beside\n" + text), ("--x", "$(touch ran)"))
    assert not (tmp_path / "ran").exists()
    assert not Path("ran").exists()
    assert not list(tmp_path.rglob("__pycache__"))


def test_circles_of_imports_end(tmp_path: Path) -> None:
    _script(tmp_path, "import b", "a.py")
    _script(tmp_path, "import a\nimport b\nimport torch", "b.py")
    assert _imports(tmp_path, "import a") == [("torch", False, False)]
