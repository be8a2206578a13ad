"""Text from elsewhere is shown and written, whatever it holds."""

from __future__ import annotations

from rankup.base.text import clean, encodable


def test_lone_surrogates_are_written_out() -> None:
    assert clean("a\ud800b\x07") == "a\\ud800b\\x07"
    assert encodable("a\ud800b\x07 🦊") == "a\\ud800b\x07 🦊"
