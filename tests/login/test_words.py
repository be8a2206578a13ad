"""Arguments are shown and kept without passwords and tokens."""

from __future__ import annotations

import pytest

from rankup.login import record

TOKEN = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--hf-token", "secret1", "--lr", "1"], ["--hf-token", "...", "--lr", "1"]),
        (["--api_key=secret1", "auth.password=secret1"], ["--api_key=...", "auth.password=..."]),
        (["--token", "--epochs", "3"], ["--token", "--epochs", "3"]),
        (["--tokenizer", "gpt2", "--max-tokens=8"], ["--tokenizer", "gpt2", "--max-tokens=8"]),
        ([TOKEN], ["hf_..."]),
        (["https://me:secret1@h/x?sig=secret1"], ["https://h/x..."]),
        (["https://h/x"], ["https://h/x"]),
    ],
)
def test_what_is_secret_is_hidden(given: list[str], shown: list[str]) -> None:
    assert record.shown_words(given) == shown


def test_the_value_of_a_secret_variable_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert record.shown_words(["--x", "a0123456789abcdef"]) == ["--x", "a..."]


def test_a_command_can_be_copied_where_nothing_is_hidden() -> None:
    assert (
        record.command_line(["rankup", "fetch", "a b.py", "$(x)"]) == "rankup fetch 'a b.py' '$(x)'"
    )
    assert record.command_line(["--password", "x y", "-v"]) == "--password ... -v"
    assert record.command_line(["$(x)..."]) == "'$(x)...'"
