"""Text from elsewhere is shown and written, whatever it holds."""

from __future__ import annotations

import pytest

from rankup.base.text import clean, encodable


def test_lone_surrogates_are_written_out() -> None:
    assert clean("a\ud800b\x07") == "a\\ud800b\\x07"
    assert encodable("a\ud800b\x07 🦊") == "a\\ud800b\x07 🦊"


@pytest.mark.parametrize(
    ("colour", "kept"),
    [
        *(("\x1b[31m", True), ("\x1b[0;1;38;5;8m", True), ("\x1b[48;2;8;8;8m", True)),
        *(("\x1b[8m", False), ("\x1b[0;8m", False), ("\x1b[38;5;1;08m", False)),
    ],
)
def test_what_would_hide_text_is_written_out(colour: str, kept: bool) -> None:
    assert (colour in clean(f"run {colour}evil")) is kept
    assert clean(f"run {colour}evil").endswith("\x1b[0m" if kept else "evil")
