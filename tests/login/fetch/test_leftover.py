"""What the starts of a script have made, and what of it has to go; and what is said of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankup.login.fetch import leftover
from rankup.login.fetch.events import Event
from rankup.login.fetch.leftover import Left
from rankup.login.fetch.outputs import plan
from rankup.login.fetch.undo import undo

from .handmade import event, new, old, rename, url


def _left(events: list[Event], caches: tuple[Path, ...] = ()) -> Left:
    undone = undo(plan(events, (), caches, ()))
    return leftover.of(events, undone, caches, ())


def _write(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)


def _failed(kind: str, message: str) -> list[Event]:
    return [event("end", code=1, error="", type=kind, message=message)]


def test_what_came_is_told_from_what_the_script_made(tmp_path: Path) -> None:
    data, config, cached = tmp_path / "x.bin", tmp_path / "out/c.json", tmp_path / "cache/y"
    _write(data, config, cached)
    events = [
        url("http://a/x.bin"),
        new(data),
        event("mkdir", path=config.parent),
        new(config),
        new(cached),
        new(tmp_path / "gone"),
    ]
    left = _left(events, (tmp_path / "cache",))
    assert left.files == {str(data), str(config)}
    assert str(data) in left.came
    assert str(config) not in left.came
    assert left.folders == {str(config.parent)}


def test_what_was_there_before_is_none_of_it_whatever_happened_to_it(tmp_path: Path) -> None:
    """Removed, renamed, or in a folder that was made anew: it is the user's."""
    backup = tmp_path / ".out.rankup-1"
    _write(backup / "c.json", tmp_path / "out/c.json", tmp_path / "out/d.json")
    kept = tmp_path / ".b.rankup-1"
    _write(kept, tmp_path / "b", tmp_path / "a_1", tmp_path / "a")
    events = [
        event("remove", path=tmp_path / "out", backup=str(backup), folder=True),
        event("mkdir", path=tmp_path / "out"),
        new(tmp_path / "out/c.json"),
        new(tmp_path / "out/d.json"),
        event("remove", path=tmp_path / "b", backup=str(kept), folder=False),
        new(tmp_path / "b"),
        rename(tmp_path / "a", tmp_path / "a_1", made=False),
        new(tmp_path / "a"),
    ]
    left = _left(events)
    assert left.files == {str(tmp_path / "out/d.json")}, "it joined the old one"
    leftover.remove([str(tmp_path)], left)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"out/c.json", "b", "a"}


def test_what_a_second_start_writes_anew_is_an_output(tmp_path: Path) -> None:
    left = Left(frozenset({"/p/a", "/p/b", "/p/c", "/p/d", "/p/x.bin"}), frozenset({"/p/x.bin"}))
    second = [
        new("/p/a"),
        old("/p/b", "append", 3),
        old("/p/c", "update", 3),
        rename("/p/tmp", "/p/d"),
        old("/p/x.bin", "truncate", 3),
        new("/p/only-now"),
    ]
    assert leftover.written_again(left, second) == ["/p/a", "/p/b", "/p/d"]


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("FileExistsError", "[Errno 17] File exists: 'out'", ["out"]),
        ("FileExistsError", "[Errno 17] File exists: 'runs/1' -> 'latest'", ["latest"]),
        ("OSError", "[Errno 39] Directory not empty: 'out'", ["out"]),
        ("RuntimeError", "the output already exists; use --overwrite", ["latest", "out/c.json"]),
        ("FileExistsError", "[Errno 17] File exists: 'data'", []),
        ("FileExistsError", "[Errno 17] File exists: 'of-the-user'", []),
        ("KeyError", "'lr'", []),
    ],
)
def test_what_was_in_the_way_is_found_by_the_error(
    tmp_path: Path, kind: str, message: str, expected: list[str]
) -> None:
    def path(*names: str) -> frozenset[str]:
        return frozenset(str(tmp_path / name) for name in names)

    came = path("data/x.bin")
    left = Left(path("out/c.json", "latest") | came, came, path("out", "data"))
    found = leftover.in_the_way(left, _failed(kind, message), tmp_path)
    assert found == [str(tmp_path / name) for name in expected]


def test_only_what_is_known_goes_with_a_folder(tmp_path: Path) -> None:
    _write(tmp_path / "out/c.json", tmp_path / "out/of-the-user", tmp_path / "own/d")
    (tmp_path / "latest").symlink_to("own")
    files = frozenset(str(tmp_path / name) for name in ("out/c.json", "own/d", "latest", "gone"))
    folders = frozenset(str(tmp_path / name) for name in ("out", "own"))
    paths = [str(tmp_path / name) for name in ("out", "own", "latest", "gone")]
    done = leftover.remove(paths, Left(files, folders=folders))
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [
        "out",
        os.path.join("out", "of-the-user"),
    ]
    assert not done.problems
