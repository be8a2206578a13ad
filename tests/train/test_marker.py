"""A checkpoint's marker is believed for what it can be; what stands beside checkpoints stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankup.train import marker
from rankup.train.marker import Saved
from rankup.train.place import Place

FIRST, SECOND, THIRD = (f"step-{step:08d}" for step in (10, 20, 30))


def _checkpoint(root: Path, step: int, best: tuple[float, int] | None = None) -> Path:
    directory = marker.of_step(root, step)
    assert marker.make_room(directory) is None
    (directory / "data").write_text("tensors")
    files = {"data": marker.fingerprint(directory / "data")}
    marker.write(directory, Saved(Place(step, 0, 8 * step), {"seed": 0}, best), files)
    return directory


def _change(directory: Path, **changes: Any) -> None:
    path = directory / marker.MARKER
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    _checkpoint(tmp_path, 10)
    _checkpoint(tmp_path, 20, (2.5, 10))
    found, passed, spoiled = marker.candidates(tmp_path)
    assert [candidate.saved.place.step for candidate in found] == [20, 10]
    assert found[0].saved == Saved(Place(20, 0, 160), {"seed": 0}, (2.5, 10))
    assert found[0].damaged(found[0].files) == []
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
        {"files": {"data": [float("inf"), "x"]}},
        {"files": 3},
        {"identity": None},
    ],
    ids=str,
)
def test_what_cannot_be_is_passed_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    _checkpoint(tmp_path, 10)
    _change(_checkpoint(tmp_path, 20), **changes)
    found, [line], spoiled = marker.candidates(tmp_path)
    assert [candidate.saved.place.step for candidate in found] == [10]
    assert f"{SECOND} is torn (its marker is damaged: " in line
    assert spoiled


@pytest.mark.parametrize("text", ["", "[]", '{"files": {}}', "[" * 100_000], ids=lambda t: t[:12])
def test_a_marker_that_is_none(tmp_path: Path, text: str) -> None:
    (_checkpoint(tmp_path, 20) / marker.MARKER).write_text(text)
    found, [line], _ = marker.candidates(tmp_path)
    assert found == []
    assert "its marker is damaged" in line


def test_amended_it_keeps_its_files(tmp_path: Path) -> None:
    directory = _checkpoint(tmp_path, 20, (2.5, 10))
    saved = Saved(Place(20, 0, 160), {"seed": 0}, (1.5, 20))
    marker.amend(tmp_path, saved)
    [found], _, _ = marker.candidates(tmp_path)
    assert found.saved == saved
    assert found.damaged(found.files) == []
    assert {path.name for path in directory.iterdir()} == {marker.MARKER, "data"}


def _left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_best_is_spared(tmp_path: Path) -> None:
    first, _, third = (_checkpoint(tmp_path, step) for step in (10, 20, 30))
    marker.prune(third, 1, first)
    assert _left(tmp_path) == [FIRST, THIRD]
    marker.prune(third, 1)
    assert _left(tmp_path) == [THIRD]


def test_what_is_no_checkpoint_stays(tmp_path: Path) -> None:
    """Somebody's copy, archive or notes beside the checkpoints."""
    _checkpoint(tmp_path, 10)
    (tmp_path / f"{FIRST}.tar").write_text("archive")
    (tmp_path / f"{FIRST}.bak").mkdir()
    third = _checkpoint(tmp_path, 30)
    marker.prune(third, 1)
    assert _left(tmp_path) == [f"{FIRST}.bak", f"{FIRST}.tar", THIRD]


def test_what_was_moved_elsewhere_is_not_taken_apart(tmp_path: Path) -> None:
    root, archive = tmp_path / "checkpoints", tmp_path / "archive"
    root.mkdir()
    _checkpoint(root, 10).rename(archive)
    (root / FIRST).symlink_to(archive)
    assert [one.saved.place.step for one in marker.candidates(root)[0]] == [10]
    second = _checkpoint(root, 20)
    marker.prune(second, 1)
    assert _left(root) == [SECOND]
    assert {path.name for path in archive.iterdir()} == {marker.MARKER, "data"}


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
    newest = _checkpoint(tmp_path, 100_000_000)
    assert [one.saved.place.step for one in marker.candidates(tmp_path)[0]] == [10**8, 2 * 10**7]
    marker.prune(newest, 1)
    assert _left(tmp_path) == ["step-100000000"]
