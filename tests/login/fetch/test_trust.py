"""Scripts that another user's rankup.toml lists run once the user has said so, and not before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..stage import Stage

_OTHER = 4711


@pytest.fixture
def others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody else's file in a folder above the one that is worked in."""
    (stage.project / "train.py").write_text("print('it ' + 'runs')\n")
    file = stage.project / "rankup.toml"
    file.write_text('[fetch]\nscripts = ["train.py --lr 1"]\n')
    if os.getuid() == 0:
        os.chown(file, _OTHER, _OTHER)
    else:
        monkeypatch.setattr("os.getuid", lambda: _OTHER)
    (stage.project / "mine").mkdir()
    return file


def fetched(stage: Stage, *words: str) -> tuple[int, str]:
    done = stage.run_rankup(
        ["fetch", *words], cwd=stage.project / "mine", env={**stage.environment}
    )
    return done.returncode, done.stdout + done.stderr


def test_the_file_its_owner_and_its_scripts_are_named_and_none_runs(
    stage: Stage, others: Path
) -> None:
    code, said = fetched(stage)
    assert code == 2
    assert f"{others} belongs to" in said
    assert f"(uid {others.stat().st_uid})" in said
    assert "train.py --lr 1" in said
    assert "rankup fetch --trust" in said
    assert "it runs" not in said
    assert not (stage.project / ".rankup").exists()


def test_what_is_trusted_stays_so_until_it_changes(stage: Stage, others: Path) -> None:
    _, said = fetched(stage, "--trust")
    assert "it runs" in said
    _, said = fetched(stage)
    assert "it runs" in said
    [store] = stage.home.rglob("trusted.json")
    assert store.stat().st_mode & 0o077 == 0
    (stage.project / "train.py").write_text("print('it ' + 'runs otherwise')\n")
    code, said = fetched(stage)
    assert (code, "it runs" in said) == (2, False)
    store.write_text("[")
    assert fetched(stage)[0] == 2


def test_a_module_of_a_trusted_script_is_trusted_as_it_was(stage: Stage, others: Path) -> None:
    (stage.project / "train.py").write_text("import helper\n")
    helper = stage.project / "helper.py"
    helper.write_text("print('it ' + 'runs')\n")
    assert "it runs" in fetched(stage, "--trust")[1]
    assert "it runs" in fetched(stage)[1]
    helper.write_text("print('it ' + 'runs otherwise')\n")
    code, said = fetched(stage)
    assert (code, "it runs" in said) == (2, False)


def test_a_file_that_another_users_file_places_is_asked_for(stage: Stage, others: Path) -> None:
    url = stage.web.put("/a", b"x")
    others.write_text(f'[[fetch.urls]]\nurl = "{url}"\nto = "sitecustomize.py"\n')
    code, said = fetched(stage)
    assert (code, url in said, "sitecustomize.py" in said) == (2, True, True)
    assert not (stage.project / "sitecustomize.py").exists()
    assert fetched(stage, "--trust")[0] == 0
    assert fetched(stage)[0] == 0
    others.write_text(f'[[fetch.urls]]\nurl = "{url}"\nto = "other.py"\n')
    assert fetched(stage)[0] == 2


def test_of_another_users_file_that_runs_and_places_nothing_nothing_is_asked(
    stage: Stage, others: Path
) -> None:
    url = stage.web.put("/a", b"x")
    others.write_text(f'[[fetch.urls]]\nurl = "{url}"\n')
    assert fetched(stage)[0] == 0


def test_ones_own_file_is_trusted_but_for_one_that_all_may_write(stage: Stage) -> None:
    (stage.project / "train.py").write_text("print('it ' + 'runs')\n")
    file = stage.project / "rankup.toml"
    file.write_text('[fetch]\nscripts = ["train.py"]\n')
    (stage.project / "mine").mkdir()
    assert "it runs" in fetched(stage)[1]
    file.chmod(0o666)
    code, said = fetched(stage)
    assert (code, "who may all write to it" in said) == (2, True)
    assert fetched(stage, "--trust", "--url", "http://x/y")[0] == 2
