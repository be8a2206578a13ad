"""SQLite databases are kept with all that belongs to them, before the script opens them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rankup.login.fetch.events import Journal
from rankup.login.fetch.outputs import plan
from rankup.login.fetch.undo import undo

from .running import Runner

INSERT = """
import os, sqlite3
study = sqlite3.connect({name!r}, uri=True)
study.execute("insert into runs values ('of the fetch')")
study.commit()
{then}
"""
# In the middle of a transaction that is on disk in part: its journal is hot.
HOT = (
    "study.execute('pragma cache_size=1'); study.execute('pragma cache_spill=1')\n"
    "study.executemany('insert into runs values (?)', [('x' * 999,)] * 999)\n"
    "os._exit(3)"
)
URI = "file:study.db?mode=rw"


def _database(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as study:
        study.execute(f"pragma journal_mode={mode}")
        study.execute("create table runs (name)")
        study.execute("insert into runs values ('of last week')")
        study.commit()


def _names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as study:
        assert study.execute("pragma integrity_check").fetchone() == ("ok",)
        return [name for (name,) in study.execute("select name from runs")]


def _undo(run: Runner) -> None:
    undo(plan(Journal(run.state / "events.jsonl").read_all(), (), (), (run.state,)))


@pytest.mark.parametrize(
    ("mode", "name", "then"),
    [
        ("wal", URI, "study.close()"),
        ("delete", URI, HOT),
        ("wal", "study.db", HOT),
        ("delete", "study.db", "os._exit(3)"),
    ],
    ids=["closed", "hot", "hot wal", "killed"],
)
def test_it_is_as_before_whatever_the_script_was_about(
    run: Runner, mode: str, name: str, then: str
) -> None:
    path = run.folder / "study.db"
    _database(path, mode)
    run(INSERT.format(name=name, then=then))
    _undo(run)
    assert _names(path) == ["of last week"]
    assert {one.name for one in run.folder.iterdir()} == {"train.py", "study.db"}


def test_one_with_changes_in_its_journal_gets_both_back(run: Runner) -> None:
    """Another program that was killed has left it so, and the next reader goes on from there."""
    path = run.folder / "study.db"
    _database(path, "wal")
    run(INSERT.format(name="study.db", then="os._exit(3)"))
    assert (run.folder / "study.db-wal").stat().st_size
    run(INSERT.format(name="study.db", then="study.close()"))
    _undo(run)
    assert _names(path) == ["of last week", "of the fetch"]


def test_only_what_is_written_is_told_and_a_new_one_as_new(run: Runner) -> None:
    _database(run.folder / "study.db", "delete")
    done = run("""\
        import sqlite3
        for name in (":memory:", "", "file::memory:", "file:study.db?mode=ro"):
            sqlite3.connect(name, uri=True).close()
        for _ in range(2):
            sqlite3.connect("new.db").close()
        """)
    assert done.code == 0, done.explain()
    event = done.one("open", path=str(run.folder / "new.db"), existed=False)
    assert "beside" not in event
    beside = [event for event in done.of("open") if event.get("beside")]
    assert len(beside) == 3
    assert len(done.of("open")) == 4
