"""What cannot be verified is said, with exit code 2 and before anything is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.port.verify import Request, start, verify
from tests.conftest import RunRankup


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.py", "def f(:\n", "a.py:1: no valid Python"),
        ("a.py", "x = '\0'\n", "no valid Python"),
        ("b.py", "", "no script 'a.py'"),
    ],
)
def test_refused(
    name: str, text: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    (tmp_path / "port.py").write_text("pass\n")
    asked = name if name != "b.py" else "a.py"
    with pytest.raises(UserError, match=word):
        verify(Request(asked, "port.py"))


def test_a_script_is_not_its_own_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("pass\n")
    with pytest.raises(UserError, match="both the original and the port"):
        verify(Request("a.py", "./a.py"))
    with pytest.raises(UserError, match="no such folder"):
        verify(Request("a.py", "a.py", stand_ins=("nowhere",)))


@pytest.mark.parametrize(
    "line",
    [
        "import rankup\nrankup.setup()",
        "from rankup import shard",
        "import torch\ntorch.distributed.init_process_group()",
    ],
)
def test_two_ports_are_refused(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs: also where they were only given in the wrong order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_dist.py").write_text(f"{line}\n")
    (tmp_path / "train.py").write_text("pass\n")
    with pytest.raises(UserError, match="is a port already"):
        verify(Request("train_dist.py", "train.py"))


def test_without_a_port_all_behind_two_dashes_is_the_scripts(
    run_rankup: RunRankup, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    done = run_rankup(["verify", "a.py", "--", "--epochs", "2"])
    assert done.returncode == 2
    assert "a.py is no PyTorch training script" in done.stderr


def test_a_copy_has_links_to_what_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "a.py").write_text("pass\n")
    (project / "src" / "helper.py").write_text("pass\n")
    (project / "big.bin").write_bytes(bytes(2 << 20))
    (project / ".git").mkdir()
    os.mkfifo(project / "pipe")
    (project / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(project)
    script, port = project / "src" / "a.py", project / "src" / "a_dist.py"
    found = start.project_of(script, port, {port: "1\n"})
    start.copy_project(found, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert sorted(path.name for path in copy.iterdir()) == ["big.bin", "dangling", "src"]
    assert (copy / "big.bin").is_symlink()
    assert not (copy / "src" / "helper.py").is_symlink()
    assert (copy / found.port).read_text() == "1\n"
    with pytest.raises(UserError, match="put them beside one another"):
        start.project_of(script, tmp_path / "a_dist.py", {})
