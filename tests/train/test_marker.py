"""A checkpoint's marker is believed for what it can be; what stands beside checkpoints stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash
from torch import nn
from torch.optim import SGD

from rankup.train.checkpoint import Saved, Saver, of_step
from rankup.train.plan import Place
from rankup.train.resume import amend, candidates

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
FILES = {"COMPLETE", ".metadata", "__0_0.distcp"}
FIRST, SECOND, THIRD = (f"step-{step:08d}" for step in (10, 20, 30))


def _checkpoint(
    root: Path, step: int, best: tuple[float, int] | None = None, keep: int = 9
) -> Path:
    layer = nn.Linear(1, 1)
    saver = Saver(root, keep, asynchronous=False)
    saver.save(layer, SGD(layer.parameters()), Saved(Place(step, 0, 8 * step), {"seed": 0}, best))
    assert saver.wait() == ""
    return of_step(root, step)


def _change(directory: Path, **changes: Any) -> None:
    path = directory / "COMPLETE"
    about = json.loads(path.read_text())
    del about["hash"]
    extra = {name: changes.pop(name) for name in list(changes) if name in about["extra"]}
    path.write_text(json.dumps({**about, **changes, "extra": {**about["extra"], **extra}}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 10)
    _checkpoint(tmp_path, 20, (2.5, 10))
    found, passed, spoiled = candidates(tmp_path)
    assert [candidate.saved.place.step for candidate in found] == [20, 10]
    assert found[0].saved == Saved(Place(20, 0, 160), {"seed": 0}, (2.5, 10))
    assert found[0].damaged() == []
    assert (passed, spoiled) == ([], False)


@pytest.mark.parametrize(
    "changes",
    [
        {"best": [float("nan"), 10]},
        {"best": [float("-inf"), 10]},
        {"best": [1.0, "\x1b[2J"]},
        {"best": [1.0, 2.5]},
        {"best": [1.0, -10]},
        {"best": [1.0, 21]},  # of a step that had not come
        {"best": [1.0]},
        {"best": [1.0, 10, 3]},
        {"best": ["low", 10]},
        {"best": 5},
        {"place": {"step": "20", "epoch": 0, "consumed": 0}},
        {"place": {"step": 20.5, "epoch": 0, "consumed": 0}},
        {"place": {"step": 10, "epoch": 0, "consumed": 0}},  # another one's
        {"place": {"step": 20, "epoch": -1, "consumed": 0}},
        {"place": {"step": 20, "epoch": 0, "consumed": 10**30}},
        {"place": {"step": True, "epoch": 0, "consumed": 0}},
        {"files": {".metadata": [float("inf"), "x"]}},
        {"files": 3},
        {"identity": None},
    ],
    ids=str,
)
def test_what_cannot_be_is_passed_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    _checkpoint(tmp_path, 10)
    _change(_checkpoint(tmp_path, 20), **changes)
    found, [line], spoiled = candidates(tmp_path)
    assert [candidate.saved.place.step for candidate in found] == [10]
    assert f"{SECOND} is torn (its marker COMPLETE is damaged: " in line
    assert spoiled


@pytest.mark.parametrize("text", ["", "[]", '{"files": {}}', "[" * 100_000], ids=lambda t: t[:12])
def test_a_marker_that_is_none(tmp_path: Path, text: str) -> None:
    (_checkpoint(tmp_path, 20) / "COMPLETE").write_text(text)
    found, [line], _ = candidates(tmp_path)
    assert found == []
    assert "its marker COMPLETE is damaged" in line


def test_a_checkpoint_of_the_first_version_is_read(tmp_path: Path) -> None:
    """What it is stood beside the files, whose hashes were XXH3-64."""
    directory = _checkpoint(tmp_path, 20, (2.5, 10))
    about = json.loads((directory / "COMPLETE").read_text())
    files = {
        name: (size, xxhash.xxh3_64((directory / name).read_bytes()).hexdigest())
        for name, (size, _) in about["files"].items()
    }
    before = {**about["extra"], "files": files, "aliases": {}}
    (directory / "COMPLETE").write_text(json.dumps(before))
    [found], passed, _ = candidates(tmp_path)
    assert (found.damaged(), passed) == ([], [])
    assert found.saved == Saved(Place(20, 0, 160), {"seed": 0}, (2.5, 10))
    amend(tmp_path, Saved(Place(20, 0, 160), {"seed": 0}, (1.5, 20)))
    [found], _, _ = candidates(tmp_path)
    assert (found.damaged(), found.saved.best) == ([], (1.5, 20))
    data = bytearray((directory / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (directory / "__0_0.distcp").write_bytes(data)
    assert found.damaged() == ["__0_0.distcp has changed since it was written"]


def test_a_flipped_bit_of_a_marker_is_seen(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, 20) / "COMPLETE"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    assert candidates(tmp_path)[0] == []


def test_amended_it_keeps_its_files(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 20, (2.5, 10))
    saved = Saved(Place(20, 0, 160), {"seed": 0}, (1.5, 20))
    amend(tmp_path, saved)
    [found], _, _ = candidates(tmp_path)
    assert found.saved == saved
    assert found.damaged() == []
    assert {path.name for path in directory.iterdir()} == FILES


def _left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_best_is_spared(tmp_path: Path) -> None:
    for step in (10, 20):
        _checkpoint(tmp_path, step)
    _checkpoint(tmp_path, 30, (0.5, 10), keep=1)
    assert _left(tmp_path) == [FIRST, THIRD]
    _checkpoint(tmp_path, 30, keep=1)
    assert _left(tmp_path) == [THIRD]


def test_what_is_no_checkpoint_stays(tmp_path: Path) -> None:
    """Somebody's copy, archive or notes beside the checkpoints."""
    _checkpoint(tmp_path, 10)
    (tmp_path / f"{FIRST}.tar").write_text("archive")
    (tmp_path / f"{FIRST}.bak").mkdir()
    _checkpoint(tmp_path, 30, keep=1)
    assert _left(tmp_path) == [f"{FIRST}.bak", f"{FIRST}.tar", THIRD]


def test_what_was_moved_elsewhere_is_not_taken_apart(tmp_path: Path) -> None:
    root, archive = tmp_path / "checkpoints", tmp_path / "archive"
    root.mkdir()
    _checkpoint(root, 10).rename(archive)
    (root / FIRST).symlink_to(archive)
    assert [one.saved.place.step for one in candidates(root)[0]] == [10]
    _checkpoint(root, 20, keep=1)
    assert _left(root) == [SECOND]
    assert {path.name for path in archive.iterdir()} == FILES


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_place_of_a_new_one_goes(tmp_path: Path, there: bool) -> None:
    root, archive = tmp_path / "checkpoints", tmp_path / "archive"
    root.mkdir()
    if there:
        archive.mkdir()
        (archive / "kept").write_text("")
    (root / FIRST).symlink_to(archive)
    assert not _checkpoint(root, 10).is_symlink()
    assert (archive / "kept").exists() == there


def test_beyond_eight_digits_the_newest_is_still_the_newest(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 20_000_000)
    _checkpoint(tmp_path, 100_000_000)
    assert [one.saved.place.step for one in candidates(tmp_path)[0]] == [10**8, 2 * 10**7]
    _checkpoint(tmp_path, 100_000_000, keep=1)
    assert _left(tmp_path) == ["step-100000000"]
