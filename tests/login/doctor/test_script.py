"""A script's imports and data, judged from what reading it and the records say."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from rankup.login.doctor import codes, script
from rankup.login.doctor.script import Command
from rankup.login.needs import Unmet
from rankup.login.record import Item, Record
from rankup.script.downloads import Download
from rankup.script.modules import Import, imports
from rankup.site import profile

TRAIN = Path("train.py")
COMMAND = Command(TRAIN)
JURECA = profile.load("jureca-dc")
LOCAL = profile.load("local")
NO_RECORD = (None, False)
KEY = 'script:["/p/train.py"]'


def here(*modules: str) -> Callable[[str], bool]:
    return lambda module: module in modules


def download(name: str | None = "gpt2", what: Literal["model", "url"] = "model") -> Download:
    known = name is not None
    return Download(3, TRAIN, what=what, name=name, how="from_pretrained", known=known)


def test_a_missing_package_is_named_as_pip_knows_it() -> None:
    imports = [
        Import("torch.nn", 1, False),
        Import("cv2", 4, False),
        Import("sklearn.svm", 9, False),
    ]
    found = script.check_imports(TRAIN, imports, here("torch"))
    assert [(one.place, one.level) for one in found] == [
        ("train.py:4", "error"),
        ("train.py:9", "error"),
    ]
    assert found[0].todo.startswith("pip install opencv-python")
    assert found[1].todo.startswith("pip install scikit-learn;")


def test_what_the_script_can_do_without_is_no_error() -> None:
    imports = [Import("apex", 1, True), Import("torch", 2, False)]
    [found] = script.check_imports(TRAIN, imports, here("torch"))
    assert found.level == "ok"
    assert "can do without: apex" in found.message


def test_an_import_that_is_optional_in_one_place_only_is_missing() -> None:
    imports = [Import("apex", 1, True), Import("apex.amp", 7, False, True, Path("/x/model.py"))]
    [found] = script.check_imports(TRAIN, imports, here())
    assert (found.place, found.level) == ("model.py:7", "error")
    assert "in a function" in found.message


def test_what_is_here_is_found_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "local.py").write_text("raise SystemExit")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for module in ("local", "package.inner", "os.path", "torch.nn", "__main__"):
        assert script.is_here(module, tmp_path), module
    assert not script.is_here("no_such_module_anywhere", tmp_path)
    assert not script.is_here("", tmp_path)
    assert "local" not in sys.modules


def test_a_folder_beside_the_script_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb writes into `wandb/`; here Python finds it as a namespace package, too."""
    elsewhere = tmp_path / "site-packages"
    for path in (tmp_path / "wandb_of_mine" / "run-1", elsewhere / "google_of_mine" / "cloud"):
        path.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(elsewhere)])
    assert importlib.util.find_spec("wandb_of_mine") is not None
    assert not script.is_here("wandb_of_mine", tmp_path)
    assert script.is_here("google_of_mine.cloud", tmp_path)


def test_a_folder_with_modules_that_the_script_imports_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "model.py").touch()
    train = tmp_path / "train.py"
    train.write_text("import parts.model\nfrom parts import model\nimport wandb_of_mine\n")
    found = script.check_imports(train, imports(train), lambda m: script.is_here(m, tmp_path))
    assert [one.place for one in found] == ["train.py:3"]


@pytest.mark.parametrize(
    ("record", "exact", "level", "part"),
    [
        (Record("k", "now", proof="namespace"), True, "ok", "in a network namespace"),
        (Record("k", "now", proof="blocked"), True, "ok", "with blocked sockets"),
        (Record("k", "now", proof="blocked"), False, "warning", "other arguments"),
        (Record(KEY, "now", proof="none", note="--no-run"), True, "warning", "(--no-run)"),
        (Record("k", "now", proof="failed", note="wants x"), True, "error", "wants x"),
        (
            Record("k", "now", (Item("x", "", "/no/where", 1),), proof="blocked"),
            True,
            "error",
            "/no/where",
        ),
    ],
)
def test_records(record: Record, exact: bool, level: str, part: str) -> None:
    [found] = script.check_data(COMMAND, JURECA, False, (record, exact), [])
    assert (found.code, found.level) == (codes.DATA, level)
    assert part in found.message


def test_never_fetched_and_no_internet_is_a_warning_with_the_command() -> None:
    [found] = script.check_data(
        Command(Path("my train.py")), JURECA, False, NO_RECORD, [download()]
    )
    assert found.level == "warning"
    assert "line 3: model gpt2" in found.message
    assert found.todo.startswith("rankup fetch 'my train.py'")


def test_where_nodes_have_internet_it_is_fine() -> None:
    assert script.check_data(COMMAND, JURECA, True, NO_RECORD, [download()])[0].level == "ok"
    assert script.check_data(COMMAND, LOCAL, None, NO_RECORD, [download()])[0].level == "ok"
    assert script.check_data(COMMAND, JURECA, None, NO_RECORD, [download()])[0].level == "warning"
    assert script.check_data(COMMAND, JURECA, False, NO_RECORD, [])[0].level == "ok"


def test_secrets_in_urls_are_not_shown() -> None:
    secret = download("https://me:hunter2@host.org/a.tgz?token=hunter2", "url")
    broken = download("https://[me:hunter2", "url")
    for one in (secret, broken):
        [found] = script.check_data(COMMAND, JURECA, False, NO_RECORD, [one])
        assert "hunter2" not in found.message
    [found] = script.check_data(COMMAND, JURECA, False, NO_RECORD, [secret])
    assert "https://host.org/a.tgz" in found.message


def test_why_a_script_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fine.py").touch()
    assert "No such file" in script.unreadable(tmp_path / "none.py")
    assert "is a folder" in script.unreadable(tmp_path)
    assert "no regular file" in script.unreadable(tmp_path / "pipe")
    assert script.unreadable(tmp_path / "fine.py") == ""


def test_needs_of_rankup_toml() -> None:
    assert [one.level for one in script.check_needs([])] == ["ok"]
    missing = Unmet("dataset xsum", "not fetched", "rankup fetch --dataset xsum")
    [found] = script.check_needs([missing])
    assert (found.level, found.code) == ("error", codes.NEEDS), "rankup run refuses"
    assert (found.message, found.todo) == (
        "dataset xsum: not fetched",
        "rankup fetch --dataset xsum",
    )
