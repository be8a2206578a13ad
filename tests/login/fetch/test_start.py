"""What is said while a script runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.login.fetch.start import Follow
from rankup.sandbox.events import Journal


def test_what_cannot_be_watched_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "problem", "time": 1, "pid": 1, "what": "x", "error": "y"}\n')
    assert not Follow(Journal(file), Path, quiet=False)()
    assert capsys.readouterr().err == "rankup: not watched: x: y\n"
    Follow(Journal(file), Path, quiet=True)()
    assert capsys.readouterr().err == ""
