"""What others' texts hold of tokens is not shown, and what only looks a little like one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base import secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("refused: Authorization: Bearer abcdef", "refused: Authorization: Bearer ..."),
        ("{'Authorization': 'Basic YTpi', 'x': 1}", "{'Authorization': 'Basic ...', 'x': 1}"),
        ("{'authorization': b'token'}", "{'authorization': b'...'}"),
        ("with bearer eW91ciB0b2tlbg== it is 403", "with bearer ... it is 403"),
        ("token=0123456789abcdef, next", "token=..., next"),
        ('{"api_key": "abc123def456", "model": "x"}', '{"api_key": "...", "model": "x"}'),
        ("hf_abcdefghijkl and ghp_0123456789", "hf_... and ghp..."),
        ("https://u:pw@h/a?Signature=abc", "https://h/a"),
    ],
)
def test_tokens_are_not_shown(text: str, expected: str) -> None:
    assert secrets.redacted(text, {}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication is needed",
        "KeyError: 'token'",
        "tokenizer=AutoTokenizer123, max_tokens=1000000000",
        "token = os.environ['TOKEN']",
        'File "/home/me/train.py", line 12, in main',
        "hf_hub",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert secrets.redacted(text, {}) == text


def test_values_of_secret_variables_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch()
    environment = {
        "WANDB_API_KEY": "plain words",
        "MY_TOKEN": "plain words and more",
        "SSH_KEY": str(file),
        "SHORT_PASSWORD": "abc",
        "HOME": "/home/someone",
    }
    text = f"plain words and more; plain words; {file}; abc; /home/someone"
    assert secrets.redacted(text, environment) == f"...; ...; {file}; abc; /home/someone"


def test_long_texts_take_no_time() -> None:
    """A pattern that goes back over all of it would take until the test's time-out."""
    for text in ("token=" * 20_000, "eyJaaaaaaaa-" * 8_000, "bearer " * 15_000, "sk-" * 30_000):
        secrets.redacted(text, {})


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--hf-token", "secret1", "--lr", "1"], ["--hf-token", "...", "--lr", "1"]),
        (["--api_key=secret1", "auth.password=secret1"], ["--api_key=...", "auth.password=..."]),
        (["--token", "--epochs", "3"], ["--token", "--epochs", "3"]),
        (["--tokenizer", "gpt2", "--max-tokens=8"], ["--tokenizer", "gpt2", "--max-tokens=8"]),
        (["hf_" + "aB3" * 10], ["hf_..."]),
        (["https://me:secret1@h/x?sig=secret1"], ["https://h/x"]),
        (["token", "monkeys"], ["token", "monkeys"]),
        (["--x", "a0123456789abcdef"], ["--x", "a..."]),
    ],
)
def test_secrets_of_a_command_line_are_hidden(given: list[str], shown: list[str]) -> None:
    assert secrets.without(given, {"WANDB_API_KEY": "0123456789abcdef"}) == shown
