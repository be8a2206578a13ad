"""`save0`: one writer, the old file or the new one, nothing that needs an unsafe load."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankup.parallel.user.parallelize import parallelize
from rankup.runtime.context import CONTEXT
from rankup.runtime.model import wrap
from rankup.runtime.save import save0
from rankup.runtime.world import World
from tests.pool import RankPool

from .killed import until_killed


class Opaque:
    """What `weights_only=True` does not bring back."""


def _load(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def test_what_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    value = {"step": 3, "note": "ä", "optimizer": optimizer.state_dict(), "nested": {"m": model}}
    save0(value, path)
    found = _load(path)
    assert (found["step"], found["note"]) == (3, "ä")
    assert torch.equal(found["nested"]["m"]["weight"], model.weight)
    assert found["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert os.listdir(tmp_path) == ["state.pt"]
    save0(torch.arange(3), str(path))
    assert _load(path).tolist() == [0, 1, 2]


def _make(kind: str) -> nn.Module:
    bare = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wrapping: dict[str, Callable[[nn.Module], Any]] = {
        "bare": lambda model: model,
        "wrap": wrap,
        "ddp": DistributedDataParallel,
        "compiled": torch.compile,
        "compiled ddp": lambda model: torch.compile(DistributedDataParallel(model)),
        "ddp compiled": lambda model: DistributedDataParallel(torch.compile(model)),
        "wrap compiled": lambda model: wrap(torch.compile(model)),
    }
    return wrapping[kind](bare)


KINDS = ("bare", "wrap", "ddp", "compiled", "compiled ddp", "ddp compiled", "wrap compiled")


def _unwraps(world: World, folder: Path, kind: str) -> None:
    bare = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = _make(kind)
    save0(model, folder / "model.pt")
    save0({"epoch": 1, "deep": {"model": model}}, folder / "nested.pt")
    save0({"model": model.state_dict()}, folder / "state.pt")
    save0(model.state_dict(), folder / "plain.pt")
    for name, keys in (
        ("model.pt", ()),
        ("nested.pt", ("deep", "model")),
        ("state.pt", ("model",)),
        ("plain.pt", ()),
    ):
        state = _load(folder / name)
        for key in keys:
            state = state[key]
        bare.load_state_dict(state, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_saved_as_the_users_own(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    ranks.run(1, _unwraps, tmp_path, kind)


def _split(world: World, folder: Path, asked: dict[str, Any]) -> str:
    """Save a model of `parallelize` and its optimizer; returns what was refused."""
    CONTEXT.__init__()  # type: ignore[misc]
    model, optimizer = parallelize(
        lambda: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)),
        lambda model: torch.optim.AdamW(model.parameters()),
        **asked,
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    try:
        save0(state, folder / "state.pt")
        save0(model, folder / "model.pt")
        save0([model.state_dict()["0.weight"]], folder / "list.pt")
    except TypeError as error:
        return str(error)
    return ""


_FRESH = """
import sys, torch
from torch import nn
state = torch.load(sys.argv[1] + "/state.pt", weights_only=True)
model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
model.load_state_dict(state["model"], strict=True)
torch.optim.AdamW(model.parameters()).load_state_dict(state["optimizer"])
model.load_state_dict(torch.load(sys.argv[1] + "/model.pt", weights_only=True), strict=True)
[weight] = torch.load(sys.argv[1] + "/list.pt", weights_only=True)
assert type(weight) is torch.Tensor and torch.equal(weight, model[0].weight)
"""


@pytest.mark.parametrize(
    ("size", "asked"),
    [
        (1, {"precision": "bf16"}),
        (2, {"strategy": "ddp", "precision": "bf16"}),
    ],
    ids=["one", "copies"],
)
def test_what_rank_0_holds_whole_is_saved_as_ordinary_tensors(
    ranks: RankPool, tmp_path: Path, size: int, asked: dict[str, Any]
) -> None:
    assert ranks.run(size, _split, tmp_path, asked) == [""] * size
    subprocess.run([sys.executable, "-c", _FRESH, str(tmp_path)], check=True)


def test_what_is_spread_over_ranks_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    said, other = ranks.run(2, _split, tmp_path, {"strategy": "fsdp"})
    assert "0.weight is spread over 2 ranks" in said
    assert "rankup.save_full_model" in said
    assert other == ""
    assert os.listdir(tmp_path) == []


def test_a_child_called_module_keeps_its_name(tmp_path: Path) -> None:
    model = nn.ModuleDict({"module": nn.Linear(1, 1)})
    save0(model, tmp_path / "model.pt")
    model.load_state_dict(_load(tmp_path / "model.pt"), strict=True)


def _each_writes(world: World, folder: Path) -> None:
    save0({"rank": world.rank}, folder / "all.pt")
    save0({"rank": world.rank}, folder / f"rank-{world.rank}.pt")
    save0(Opaque() if world.rank else 0, folder / "rank-0.pt")  # not even looked at elsewhere


def test_rank_0_alone_writes(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(3, _each_writes, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["all.pt", "rank-0.pt"]
    assert _load(tmp_path / "all.pt") == {"rank": 0}


@pytest.mark.parametrize(
    "value", [Opaque(), {"args": Opaque()}, {"deep": {"list": [1, Opaque()]}}, {"f": Opaque}]
)
def test_unsafe_objects_are_named_and_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "state.pt"
    save0("old", path)
    with pytest.raises(TypeError, match=r"state\.pt.*Opaque"):
        save0(value, path)
    assert _load(path) == "old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.pt"
    save0("old", path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save0("new", path)
    with pytest.raises(FileNotFoundError):
        save0("new", tmp_path / "nowhere" / "state.pt")
    with pytest.raises(Exception, match="lambda"):
        save0({"f": lambda: 0}, path)
    assert _load(path) == "old"
    assert os.listdir(tmp_path) == ["state.pt"]


def _overwrite_for_ever(path: Path) -> None:
    torch.set_num_threads(1)  # a forked process has none of OpenMP's threads
    number = 0
    while True:
        number += 1
        save0({"number": number, "data": torch.full((100_000,), number)}, path)


def _whole(path: Path) -> int:
    state = _load(path)
    assert (state["data"] == state["number"]).all()
    assert len(state["data"]) == 100_000
    return int(state["number"])


def _kill_while_writing(path: Path, kills: int) -> None:
    draw = random.Random(0)
    save0({"number": 0, "data": torch.zeros(100_000, dtype=torch.int64)}, path)
    written = 0
    for _ in range(kills):
        before = path.stat().st_ino
        with until_killed(lambda: _overwrite_for_ever(path)):
            latest = time.monotonic() + 120
            while path.stat().st_ino == before:
                assert time.monotonic() < latest, "it writes nothing"
                time.sleep(0.0005)  # its first file is there: from now on it writes
            end = time.monotonic() + draw.uniform(0.0, 0.06)
            while time.monotonic() < end:  # a reader beside the writer sees no half either
                _whole(path)
        written += _whole(path)
    assert written >= kills, "it was killed while it wrote, not before"


def test_a_kill_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """Invariant 4."""
    _kill_while_writing(tmp_path / "state.pt", kills=6)


@pytest.mark.slow
def test_many_kills_leave_the_old_or_the_new(tmp_path: Path) -> None:
    _kill_while_writing(tmp_path / "state.pt", kills=15)


def _set_back(path: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


def test_what_a_killed_save_has_left_is_swept_by_the_next(tmp_path: Path) -> None:
    """What somebody is writing still stays, and so do the files of another name."""
    path, other = tmp_path / "state.pt", tmp_path / ".other.pt.01234567.tmp"
    other.touch()
    told, tell = os.pipe()

    def stand_in_the_middle() -> None:
        def write(value: Any, file: Any) -> None:
            file.write(b"half")
            os.write(tell, b"!")
            time.sleep(600)

        with mock.patch("torch.save", write):
            save0(torch.zeros(3), path)

    with until_killed(stand_in_the_middle):
        assert os.read(told, 1) == b"!"
        [half] = tmp_path.glob(".state.pt.*.tmp")
        _set_back(half)  # its lock alone says that somebody writes it
        save0(torch.ones(3), path)
        assert half.exists()
    os.utime(half)  # he may be on another node, whose locks do not show here
    save0(torch.zeros(3), path)
    assert half.exists()
    _set_back(half)
    save0(torch.arange(3), path)
    assert sorted(os.listdir(tmp_path)) == [other.name, "state.pt"]
    assert _load(path).tolist() == [0, 1, 2]
