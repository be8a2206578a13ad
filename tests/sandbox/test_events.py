"""The journal is read to its end, whatever a script has written into it."""

from __future__ import annotations

import json
from pathlib import Path

from rankup.sandbox.events import Journal

EVENT = json.dumps({"event": "url", "time": 1.0, "pid": 7, "url": "http://a/b"}).encode() + b"\n"
LONG = json.dumps({"event": "end", "time": 1.0, "pid": 7, "message": "x" * 40_000_000}).encode()


def test_a_line_of_many_megabytes_hides_nothing_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(EVENT + LONG + b"\n" + EVENT + (b"x" * 1_000_000 + b"\n") * 40 + EVENT)
    journal = Journal(file)
    assert [event.kind for event in journal.read_all()] == ["url"] * 3
    with file.open("ab") as more:
        more.write(EVENT)
    assert len(journal.read()) == 1


def test_a_line_that_is_not_whole_yet_is_left(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    journal = Journal(file)
    assert journal.read_all() == ()
    file.write_bytes(EVENT + EVENT[:20])
    assert len(journal.read()) == 1
    with file.open("ab") as more:
        more.write(EVENT[20:])
    assert len(journal.read()) == 1
    assert len(journal.events) == 2
