"""The journal is read while it grows."""

from __future__ import annotations

import json
from pathlib import Path

from rankup.sandbox.events import Journal

EVENT = json.dumps({"event": "url", "time": 1.0, "pid": 7, "url": "http://a/b"}).encode() + b"\n"


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
