"""What a script has saved is read without running anything of it, and compared value by value."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rankup.port.verify.inside import saved
from rankup.port.verify.inside.saved import Comparison, NotRead, Text

RAN: list[str] = []


class Evil:
    """Runs something as it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RAN.append, ("it was called",)


class Note:
    """A class of the script's own."""

    def __init__(self, value: float) -> None:
        self.value = value


def compared(ours: Any, theirs: Any, folder: Path, name: str) -> Comparison:
    """Two values, as torch or pickle saves them."""
    paths = [folder / f"{number}-{name}" for number in range(2)]
    for path, value in zip(paths, (ours, theirs), strict=True):
        if name.endswith(".pt"):
            torch.save(value, path)
        elif name.endswith(".npy"):
            np.save(path, value)
        else:
            path.write_bytes(pickle.dumps(value))
    return saved.compare(*(saved.read(str(path)) for path in paths))


@pytest.mark.parametrize("name", ["a.pt", "a.pkl"])
def test_nothing_of_a_file_is_run(name: str, tmp_path: Path) -> None:
    RAN.clear()
    found = compared({"x": Evil(), "y": 1}, {"x": Evil(), "y": 2}, tmp_path, name)
    assert [place for place, *_ in found.wrong] == ["['y']"]
    assert not RAN


def test_objects_of_any_class_are_compared_by_their_values(tmp_path: Path) -> None:
    assert not compared(Note(1.0), Note(1.0), tmp_path, "a.pkl").wrong
    ((place, why, _),) = compared(Note(1.0), Note(2.0), tmp_path, "a.pkl").wrong
    assert (place, why) == ("['value']", "is 2.0 where the original's is 1.0")


MODEL = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
OTHER = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("whole", [True, False])
def test_models_are_compared_as_they_load(whole: bool, tmp_path: Path) -> None:
    def kept(model: nn.Module) -> Any:
        return model if whole else {"net": model.state_dict(), "epoch": 3}

    same = compared(kept(MODEL), kept(MODEL), tmp_path, "a.pt")
    assert (same.wrong, same.models) == ([], 1)
    wrapped = compared(kept(nn.DataParallel(MODEL)), kept(MODEL), tmp_path, "a.pt")
    assert whole or not wrapped.wrong
    (other,) = compared(kept(MODEL), kept(OTHER), tmp_path, "a.pt").wrong
    assert "it loads, but the values" in other[1]
    larger = compared(kept(MODEL), kept(nn.Linear(2, 3)), tmp_path, "a.pt")
    assert "load_state_dict(strict=True) fails" in str(larger.wrong)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (torch.ones(8, 4), torch.ones(4, 4), "has shape (4, 4) where the original's has (8, 4)"),
        (torch.ones(8), torch.ones(8) + 1e-5, ""),
        (torch.ones(8), torch.ones(8) + 0.1, "has values that differ by 1.0e-01"),
        (torch.arange(4), torch.tensor([0, 1, 2, 4]), "has 1 of 4 values"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), ""),
        (torch.tensor(1.0), torch.tensor(2.0), "is 2.0 where the original's is 1.0"),
        ({"a": [1, 2]}, {"a": [1]}, "the port's has no ['a'][1]"),
        ({"a": 1}, {"a": 1, "b": 2}, "the original's has no ['b']"),
        ({"a": "done in 1.5"}, {"a": "done in 2.5"}, "is 'done in 2.5' where"),
        ({"a": True}, {"a": False}, "is False"),
        ({"a": 1}, {"a": "1"}, "is of type str, and not int"),
    ],
)
def test_values(ours: Any, theirs: Any, word: str, tmp_path: Path) -> None:
    for name in ("a.pt", "a.pkl"):
        found = compared(ours, theirs, tmp_path, name)
        assert word in str([why for _, why, _ in found.wrong])
        assert bool(found.wrong) is bool(word)


def test_a_random_state_is_not_seen(tmp_path: Path) -> None:
    first = torch.get_rng_state()
    torch.rand(3)
    found = compared({"rng": first}, {"rng": torch.get_rng_state()}, tmp_path, "a.pt")
    assert (found.wrong, found.unseen) == ([], ["['rng']: a random state"])


def test_what_an_optimizer_keeps_is_compared_together(tmp_path: Path) -> None:
    """A gradient that is noise is as good as another."""

    def state(noise: float, scale: float = 1.0) -> Any:
        tensors = [torch.full((3,), scale), torch.full((3,), noise)]
        kept = {n: {"exp_avg": one, "step": torch.tensor(6.0)} for n, one in enumerate(tensors)}
        return {"optimizer": {"state": kept, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}}

    assert not compared(state(1e-9), state(-1e-9), tmp_path, "a.pt").wrong
    assert compared(state(1e-9), state(1e-9, 2.0), tmp_path, "a.pt").wrong


@pytest.mark.parametrize(("other", "same"), [(2, True), (90, False)])
def test_pictures_by_their_pixels(other: int, same: bool, tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path, value in zip(paths, (100, 100 + other), strict=True):
        Image.fromarray(np.full((4, 6), value, dtype=np.uint8)).save(path)
    found = saved.compare(*(saved.read(str(path)) for path in paths))
    assert (not found.wrong) is same
    Image.fromarray(np.zeros((2, 6), dtype=np.uint8)).save(paths[1])
    (wrong,) = saved.compare(*(saved.read(str(path)) for path in paths)).wrong
    assert wrong[1] == "has 6 x 2 pixels where the original's has 6 x 4"


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("a.onnx", b"\0\1\2", "neither text nor of a format"),
        ("a.html", b"<p>", "pages and scripts"),
        ("a.pkl", b"no pickle", "cannot be read"),
        ("a.npy", b"no array", "cannot be read"),
        ("a.txt", bytes(300 << 10), "larger than 256 KiB"),
    ],
)
def test_what_is_not_read_is_said(name: str, data: bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(NotRead, match=word):
        saved.read(str(tmp_path / name))


def test_objects_in_an_array_are_not_unpickled(tmp_path: Path) -> None:
    RAN.clear()
    np.save(tmp_path / "a.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(NotRead, match="cannot be read"):
        saved.read(str(tmp_path / "a.npy"))
    assert not RAN
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.npy")
    with pytest.raises(NotRead, match="a link"):
        saved.read(str(tmp_path / "link.txt"))


def test_texts_are_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    assert saved.read(str(tmp_path / "a.csv")) == Text(["1,2", "3,4"])
