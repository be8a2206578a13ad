"""Undoing what a script did to files: what was there is as before, downloads stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from rankup.login.fetch import said
from rankup.login.fetch.events import Event
from rankup.login.fetch.outputs import plan
from rankup.login.fetch.undo import Undone, undo

from .handmade import event, new, old, rename, url


def lines(undone: Undone, folder: Path) -> list[str]:
    return said.lines([undone], folder)


def _undo(
    events: Sequence[Event], writing: Sequence[Path] = (), caches: Sequence[Path] = ()
) -> Undone:
    return undo(plan(events, [str(path) for path in writing], caches, [Path("/ignored")]))


def _tree(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_an_empty_file_is_empty_again_and_an_appended_one_as_long_as_before(tmp_path: Path) -> None:
    empty, log = tmp_path / "empty", tmp_path / "log"
    empty.write_text("now full")
    log.write_text("old lines, new lines")
    done = _undo([old(empty, "truncate", 0), old(log, "append", 9)])
    assert _tree(tmp_path) == {"empty": "", "log": "old lines"}
    assert lines(done, tmp_path) == ["log is as long as before", "empty is as long as before"]


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


def test_a_database_that_was_only_read_keeps_its_inode(tmp_path: Path) -> None:
    database, kept = tmp_path / "study.db", tmp_path / ".study.db.rankup-1"
    for path in (database, kept):
        path.write_text("rows")
    inode = database.stat().st_ino
    assert _undo([old(database, "update", 4, kept)]) == Undone()
    assert (database.stat().st_ino, kept.exists()) == (inode, False)
    kept.write_text("rows of last week")
    assert lines(_undo([old(database, "update", 4, kept)]), tmp_path) == [
        "study.db is as it was before"
    ]


def test_old_files_that_take_each_others_names_get_them_back(tmp_path: Path) -> None:
    """`os.replace("b", "a")`, and then a link takes the place of a third."""
    a, b, c = (tmp_path / name for name in "abc")
    kept_a, kept_c = tmp_path / ".a.rankup-1", tmp_path / ".c.rankup-1"
    for path, text in ((a, "a"), (b, "b"), (c, "c")):
        path.write_text(text)
    events = [
        event("rename", **{"from": str(b), "to": str(a), "made": False, "backup": str(kept_a)}),
        event("remove", path=c, backup=str(kept_c), folder=False),
        event("link", path=c, to="a"),
    ]
    os.link(a, kept_a)
    os.replace(b, a)
    os.rename(c, kept_c)
    c.symlink_to("a")
    _undo(events)
    assert _tree(tmp_path) == {"a": "a", "b": "b", "c": "c"}
    assert not c.is_symlink()


def test_a_folder_that_was_renamed_away_gets_its_name_back_from_the_new_one(tmp_path: Path) -> None:
    before, after = tmp_path / "old", tmp_path / "old_1"
    before.mkdir()
    (before / "run.txt").write_text("a week")
    os.rename(before, after)
    before.mkdir()
    (before / "new.txt").write_text("new")
    done = _undo(
        [rename(before, after, made=False), event("mkdir", path=before), new(before / "new.txt")]
    )
    assert _tree(tmp_path) == {"old/run.txt": "a week", "old/new.txt": "new"}
    assert not done.problems
    assert done.joined == {str(before / "new.txt")}
    # It has more than it had, and nobody says otherwise.
    assert lines(done, tmp_path) == ["old has its old files again"]


def test_permissions_come_back_and_an_appended_file_has_its_old_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old and new")
    log.chmod(0o600)
    append = Event(
        "open", 0.0, 1, "", {"path": str(log), "how": "append", "size": 3, "changed": 10**18}
    )
    done = _undo([event("chmod", path=log, mode=0o640), append])
    assert stat.S_IMODE(log.stat().st_mode) == 0o640
    assert (log.read_text(), log.stat().st_mtime_ns) == ("old", 10**18)
    assert {one.how for one in done.done} == {"mode", "cut back"}


def test_what_another_program_has_taken_comes_back_and_what_it_changed_is_named(
    tmp_path: Path,
) -> None:
    gone, same, cut, folder = (tmp_path / name for name in ("gone", "same", "cut", "folder"))
    events = []
    for path in (gone, same, cut):
        path.write_text("long ago")
        kept = path.with_name(f".{path.name}.rankup-1")
        os.link(path, kept)
        changed = path.stat().st_mtime_ns
        events.append(event("handed", path=path, backup=str(kept), changed=changed, folder=False))
    events.append(event("handed", path=folder, backup=None, changed=1, folder=True))
    gone.unlink()
    cut.write_text("just now")
    os.utime(cut, (1, 1))
    done = _undo(events)
    assert _tree(tmp_path) == {"gone": "long ago", "same": "long ago", "cut": "just now"}
    assert sorted(lines(done, tmp_path)) == [
        "cut was changed by the script, and could not be kept as it was",
        "folder was removed by a program that the script has started, and cannot be put back",
        "gone is as it was before",
    ]


def test_of_a_proof_nothing_new_stays_but_in_caches(tmp_path: Path) -> None:
    mine, cached, link = tmp_path / "runs/2/a", tmp_path / "cache/b", tmp_path / "latest"
    for path in (mine, cached):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    link.symlink_to("runs/2")
    (tmp_path / "users").write_text("old, with a new name for now")
    events = [
        event("mkdir", path=tmp_path / "runs"),
        event("mkdir", path=tmp_path / "runs/2"),
        new(mine),
        new(cached),
        event("link", path=link, to="runs/2"),
        new(tmp_path / "users"),
        rename(tmp_path / "old", tmp_path / "users", made=False),
    ]
    steps = plan(events, (), [tmp_path / "cache"], (), keep_new=False)
    done = undo(steps)
    assert _tree(tmp_path) == {"cache/b": "x", "old": "old, with a new name for now"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "old"]
    assert lines(done, tmp_path)[0] == "old has its old name again"
