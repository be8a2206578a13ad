"""What the words of `rankup pack` mean, and which are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.data.pack.source import Request, checked, target
from tests.conftest import RunRankup

from .made import same_samples, tree


@pytest.mark.parametrize(
    ("out", "to", "container"),
    [
        ("a.h5", None, "hdf5"),
        ("a.HDF5", None, "hdf5"),
        ("a.sqsh", None, "squashfs"),
        ("a.v2.squashfs", None, "squashfs"),
        ("a", "arrow", "arrow"),
        ("a/", "tar", "tar"),
        ("a.v2", "tar", "tar"),
        ("a", "hdf5", "hdf5"),
        ("a.h5", "hdf5", "hdf5"),
    ],
)
def test_the_name_says_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, to: str | None, container: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert target(out, to) == (tmp_path / out, container)


@pytest.mark.parametrize(
    ("out", "to", "said"),
    [
        ("a", None, "does not say which container"),
        ("a.txt", None, "does not say which container"),
        ("a.h5", "tar", "change one of them"),
        ("a.tar", None, "name that folder: a --to tar"),
        ("b/a.arrow", "arrow", "name that folder: a --to arrow"),
        ("a", "zip", "is no container rankup writes"),
        ("a/", "hdf5", "name the file"),
        ("/", "tar", "has no name"),
        ("", "tar", "it is empty"),
        ("a" * 300, "tar", "no usable path"),
    ],
)
def test_names_that_are_refused(out: str, to: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        target(out, to)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bad": "drop"},
        {"preset": "mnist"},
        {"resize": 0},
        {"workers": 0},
        {"shard_size": "1kB"},
        {"split": "a/b"},
        {"split": ""},
    ],
)
def test_options_that_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong)).replace("_", "-")):
        checked(Request("a", "b", **wrong), "hdf5")  # type: ignore[arg-type]


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(UserError, match="--shard-size is for a tar"):
        checked(Request("a", "b", shard_size="2GB"), "hdf5")
    checked(Request("a", "b", shard_size="2GB"), "tar")
    with pytest.raises(UserError, match="rankup fetch --url"):
        checked(Request("https://x.y/z.tar", "b"), "tar")


def test_the_command(run_rankup: RunRankup, rankup_here: RunRankup, tmp_path: Path) -> None:
    source = tree(tmp_path / "source", 12)
    done = run_rankup(["pack", source, "out.h5"])
    assert done.returncode == 0, done.stderr
    assert "samples: train 10, val 2, 3 classes" in done.stdout
    assert sorted(os.listdir(tmp_path)) == [
        "out.h5",
        "out.h5.index.npz",
        "out.h5.report.json",
        "source",
    ]
    again = rankup_here(["pack", source, "out.h5"])
    assert again.returncode == 2
    assert again.stderr.startswith("rankup: ")
    assert "Traceback" not in again.stderr
    usage = rankup_here(["pack", source, "out.zip"])
    assert usage.returncode == 2
    assert "does not say which container" in usage.stderr


def test_tasks_of_a_step_do_not_share_a_pack(
    rankup_here: RunRankup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tree(tmp_path / "source", 3)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    many = rankup_here(["pack", source, "out.h5"])
    assert many.returncode == 2
    assert "this Slurm step has 2 tasks, and one alone packs" in many.stderr
    assert os.listdir(tmp_path) == ["source"]
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert rankup_here(["pack", source, "out.h5"]).returncode == 0


@pytest.mark.parametrize("container", ["hdf5", "squashfs"])
def test_nobody_hears_what_is_said(tmp_path: Path, container: str) -> None:
    source = tree(tmp_path / "source", 12)
    words = f"{sys.executable} -m rankup pack source out --to {container} >&- 2>&-"
    assert subprocess.run(["bash", "-c", words], cwd=tmp_path, check=False).returncode == 0
    same_samples(tmp_path / "out", source)
    assert not [name for name in os.listdir(tmp_path) if "part" in name or "lock" in name]
