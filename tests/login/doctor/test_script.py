"""A script's imports and data, judged from what reading it and the records say."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rankup.base.findings import Finding
from rankup.login import record
from rankup.login.doctor import script
from rankup.login.record import Item, Record, Unmet
from rankup.site import profile
from tests.login.doctor.known import asked

JURECA = profile.load("jureca-dc")
LOCAL = profile.load("local")
GPT2 = "from transformers import AutoModel\n\nAutoModel.from_pretrained('gpt2')\n"


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """A script that downloads a model."""
    path = tmp_path / "train.py"
    path.write_text(GPT2)
    return path


def imported(train: Path) -> list[Finding]:
    return asked(script.imports, script=train)


def data(
    train: Path,
    site: profile.Profile = JURECA,
    internet: bool | None = False,
    args: tuple[str, ...] = (),
) -> Finding:
    [found] = asked(
        script.data, script=train, args=args, project=train.parent, profile=site, internet=internet
    )
    return found


def test_a_missing_package_is_named_as_pip_knows_it(
    train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.write_text("import json\nimport cv2\n\n\nimport sklearn.svm\n")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    found = imported(train)
    assert [(one.place, one.level) for one in found] == [
        ("train.py:2", "error"),
        ("train.py:5", "error"),
    ]
    assert found[0].todo.startswith("pip install opencv-python")
    assert found[1].todo.startswith("pip install scikit-learn;")


def test_what_the_script_can_do_without_is_no_error(train: Path) -> None:
    train.write_text("try:\n    import no_such\nexcept ImportError:\n    pass\nimport json\n")
    [found] = imported(train)
    assert found.level == "ok"
    assert "can do without: no_such" in found.message


def test_an_import_that_is_optional_in_one_place_only_is_missing(train: Path) -> None:
    train.write_text("import model\ntry:\n    import no_such\nexcept ImportError:\n    pass\n")
    train.with_name("model.py").write_text("def f():\n    import no_such.amp\n")
    [found] = imported(train)
    assert (found.place, found.level) == ("model.py:2", "error")
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


def test_a_folder_with_modules_that_the_script_imports_is_not_missing(train: Path) -> None:
    (train.parent / "parts").mkdir()
    (train.parent / "parts" / "model.py").touch()
    train.write_text("import parts.model\nfrom parts import model\nimport wandb_of_mine\n")
    assert [one.place for one in imported(train)] == ["train.py:3"]


@pytest.mark.parametrize(
    ("fetched", "args", "level", "part"),
    [
        (Record("", "now", proof="namespace"), (), "ok", "(network namespace)"),
        (Record("", "now", proof="blocked"), (), "ok", "connections blocked"),
        (Record("", "now", proof="blocked"), ("--lr", "1"), "warning", "other arguments"),
        (Record("", "now", proof="none", note="--no-run"), (), "warning", "(--no-run)"),
        (Record("", "now", proof="failed", note="wants x"), (), "error", "wants x"),
        (
            Record("", "now", (Item("x", "", "/no/where", 1),), proof="blocked"),
            (),
            "error",
            "/no/where",
        ),
    ],
)
def test_records(
    train: Path, fetched: Record, args: tuple[str, ...], level: str, part: str
) -> None:
    record.write(train.parent, replace(fetched, key=record.script_key(train, ())))
    found = data(train, args=args)
    assert (found.code, found.level) == ("RK526", level)
    assert part in found.message


def test_never_fetched_and_no_internet_is_a_warning_with_the_command(train: Path) -> None:
    found = data(train.rename(train.with_name("my train.py")))
    assert found.level == "warning"
    assert "line 3: model gpt2" in found.message
    assert found.todo.startswith(f"rankup fetch '{train.parent}/my train.py'")


def test_where_nodes_have_internet_it_is_fine(train: Path) -> None:
    assert data(train, JURECA, True).level == "ok"
    assert data(train, LOCAL, None).level == "ok"
    assert data(train, JURECA, None).level == "warning"
    train.write_text("print(1)\n")
    assert data(train, JURECA, False).level == "ok"


def test_secrets_in_urls_are_not_shown(train: Path) -> None:
    for url in ("https://me:hunter2@host.org/a.tgz?token=hunter2", "https://[me:hunter2"):
        train.write_text(f"import torch\ntorch.hub.download_url_to_file({url!r}, 'a')\n")
        found = data(train)
        assert "hunter2" not in found.message
        assert ("https://host.org/a.tgz" in found.message) == ("host" in url)


def test_why_a_script_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "fine.py").touch()
    assert "No such file" in script.unreadable(tmp_path / "none.py")
    assert "is a folder" in script.unreadable(tmp_path)
    assert "no regular file" in script.unreadable(tmp_path / "pipe")
    assert script.unreadable(tmp_path / "fine.py") == ""


def test_needs_of_rankup_toml() -> None:
    assert asked(script.needs, unmet=None, killed=[]) == []
    assert [one.level for one in asked(script.needs, unmet=[], killed=[])] == ["ok"]
    missing = Unmet("dataset xsum", "not fetched", "rankup fetch --dataset xsum")
    [found] = asked(script.needs, unmet=[missing], killed=[])
    assert (found.level, found.code) == ("error", "RK527"), "rankup run refuses"
    assert (found.message, found.todo) == (
        "dataset xsum: not fetched",
        "rankup fetch --dataset xsum",
    )
