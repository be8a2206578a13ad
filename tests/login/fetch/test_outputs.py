"""Undoing what a script did to files: what was there is as before, downloads stay."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankup.login.fetch.events import Event
from rankup.login.fetch.outputs import Undone, lines, plan, undo

from .handmade import event, new, old, rename, url


def _undo(
    events: Sequence[Event], writing: Sequence[Path] = (), caches: Sequence[Path] = ()
) -> Undone:
    return undo(plan(events, [str(path) for path in writing], caches, [Path("/ignored")]))


def _tree(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_file_written_anew_is_as_before_with_its_inode(tmp_path: Path) -> None:
    log, backup = tmp_path / "log.txt", tmp_path / ".log.txt.rankup-1"
    log.write_text("old")
    inode = log.stat().st_ino
    log.rename(backup)
    log.write_text("half writ")
    done = _undo([old(log, "truncate", 3, backup)])
    assert _tree(tmp_path) == {"log.txt": "old"}
    assert log.stat().st_ino == inode
    assert lines(done, tmp_path) == ["log.txt is as it was before"]


def test_an_empty_file_is_empty_again_and_an_appended_one_as_long_as_before(tmp_path: Path) -> None:
    empty, log = tmp_path / "empty", tmp_path / "log"
    empty.write_text("now full")
    log.write_text("old lines, new lines")
    done = _undo([old(empty, "truncate", 0), old(log, "append", 9)])
    assert _tree(tmp_path) == {"empty": "", "log": "old lines"}
    assert lines(done, tmp_path) == ["log is as long as before", "empty is as long as before"]


def test_an_append_that_did_not_come_to_it_changes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old")
    assert _undo([old(log, "append", 3)]) == Undone()
    assert _undo([old(log, "append", 300)]) == Undone()
    assert log.read_text() == "old"


def test_what_was_not_set_aside_yet_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old")
    assert _undo([old(log, "truncate", 3, tmp_path / ".log.rankup-1")]) == Undone()
    assert log.read_text() == "old"


def test_a_removed_file_and_a_removed_folder_come_back(tmp_path: Path) -> None:
    file, folder = tmp_path / "a", tmp_path / "runs"
    kept, kept_folder = tmp_path / ".a.rankup-1", tmp_path / ".runs.rankup-1"
    kept.write_text("a")
    kept_folder.mkdir()
    (kept_folder / "b").write_text("b")
    folder.mkdir()  # made anew by the script
    (folder / "events").write_text("half")
    events = [
        event("remove", path=file, backup=str(kept), folder=False),
        event("remove", path=folder, backup=str(kept_folder), folder=True),
        event("mkdir", path=folder),
        new(folder / "events"),
    ]
    done = _undo(events, writing=[folder / "events"])
    assert _tree(tmp_path) == {"a": "a", "runs/b": "b"}
    assert not done.problems


def test_new_files_join_the_old_ones_of_a_folder_that_was_made_anew(tmp_path: Path) -> None:
    folder, kept = tmp_path / "data", tmp_path / ".data.rankup-1"
    for path, text in ((kept / "x", "old"), (folder / "x", "new"), (folder / "d/y", "new")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _undo(
        [event("remove", path=folder, backup=str(kept), folder=True), event("mkdir", path=folder)]
    )
    assert _tree(tmp_path) == {"data/x": "old", "data/d/y": "new"}


def test_the_last_thing_done_is_undone_first(tmp_path: Path) -> None:
    """A log is rotated: renamed, then written anew, then both are removed."""
    log, older = tmp_path / "log", tmp_path / "log.1"
    log.write_text("first")
    os.rename(log, older)
    log.write_text("second")
    kept = tmp_path / ".log.1.rankup-1"
    os.rename(older, kept)
    events = [
        rename(log, older, made=False),
        new(log),
        event("remove", path=older, backup=str(kept), folder=False),
    ]
    _undo(events)
    assert _tree(tmp_path) == {"log": "first"}


def test_a_new_file_is_removed_only_where_it_is_not_finished(tmp_path: Path) -> None:
    half, whole, part = tmp_path / "model.pt", tmp_path / "words.json", tmp_path / "big.part"
    for path in (half, whole, part):
        path.write_text("x")
    done = _undo([new(half), new(whole), new(part)], writing=[half, part])
    assert _tree(tmp_path) == {"words.json": "x", "big.part": "x"}
    assert lines(done, tmp_path) == ["model.pt is removed: it was not finished"]
    assert done.removed == {str(half)}


def test_an_unfinished_file_is_found_under_its_new_name(tmp_path: Path) -> None:
    folder = tmp_path / "final"
    folder.mkdir()
    (folder / "x").write_text("half")
    events = [new(tmp_path / "tmp/x"), rename(tmp_path / "tmp", folder)]
    _undo(events, writing=[folder / "x"])
    assert _tree(tmp_path) == {}


def test_what_was_renamed_into_its_place_is_newer_and_stays(tmp_path: Path) -> None:
    file, kept = tmp_path / "index", tmp_path / ".index.rankup-1"
    file.write_text("new")
    kept.write_text("old")
    part = tmp_path / "index.part"
    _undo([old(file, "truncate", 3, kept), url("http://a/index"), new(part), rename(part, file)])
    assert _tree(tmp_path) == {"index": "new"}


def test_what_was_downloaded_again_in_place_stays_if_it_came_whole(tmp_path: Path) -> None:
    file, kept = tmp_path / "x.tgz", tmp_path / ".x.tgz.rankup-1"
    events = [url("http://a/x.tgz"), old(file, "truncate", 3, kept)]
    for writing, left in (([file], "broken"), ([], "whole")):
        file.write_text("whole")
        kept.write_text("broken")
        _undo(events, writing=writing)
        assert _tree(tmp_path) == {"x.tgz": left}


def test_a_cache_keeps_what_its_library_has_finished(tmp_path: Path) -> None:
    main, kept = tmp_path / "refs/main", tmp_path / "refs/.main.rankup-1"
    main.parent.mkdir()
    main.write_text("new")
    kept.write_text("old")
    events = [event("mkdir", path=tmp_path / "snapshots"), old(main, "truncate", 3, kept)]
    (tmp_path / "snapshots").mkdir()
    assert _undo(events, caches=[tmp_path]) == Undone()
    assert _tree(tmp_path) == {"refs/main": "new"}
    kept.write_text("old")
    _undo(events, writing=[main], caches=[tmp_path])
    assert _tree(tmp_path) == {"refs/main": "old"}
    assert (tmp_path / "snapshots").is_dir()


def test_new_folders_go_where_they_are_empty(tmp_path: Path) -> None:
    deep = tmp_path / "runs/1/checkpoints"
    deep.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("x")
    made = [tmp_path / "data", tmp_path / "runs", tmp_path / "runs/1", deep]
    _undo([event("mkdir", path=path) for path in made])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_large_file_changed_in_place_is_named(tmp_path: Path) -> None:
    big = tmp_path / "index.db"
    big.write_text("changed")
    [line] = lines(_undo([old(big, "update", 10**9)]), tmp_path)
    assert "index.db was changed by the script" in line


def test_what_cannot_be_undone_says_where_the_old_file_is(tmp_path: Path) -> None:
    kept = tmp_path / ".log.rankup-1"
    kept.write_text("old")
    file = tmp_path / "gone" / "log"
    log = tmp_path / "log"
    log.write_text("123456")
    done = _undo([old(log, "append", 3), old(file, "truncate", 3, kept)])
    [problem] = done.problems
    assert str(kept) in problem
    assert kept.read_text() == "old"
    assert log.read_text() == "123", "one failure does not keep the others"


def test_doing_it_twice_does_no_harm(tmp_path: Path) -> None:
    log, backup = tmp_path / "log", tmp_path / ".log.rankup-1"
    log.write_text("new")
    backup.write_text("old")
    events = [event("mkdir", path=tmp_path / "d"), old(log, "truncate", 3, backup)]
    _undo(events)
    assert _undo(events) == Undone()
    assert _tree(tmp_path) == {"log": "old"}


def test_at_most_ten_lines_are_said(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(15)]
    for file in files:
        file.write_text("xx")
    said = lines(_undo([old(file, "append", 1) for file in files]), tmp_path)
    assert (len(said), said[-1]) == (11, "... and 5 more")
