"""Flags from a dataclass: what is understood, and how the rest is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from rankup.base.errors import UserError
from rankup.base.flags import flag, help_text, names, parse


@dataclass(frozen=True)
class Options:
    """One field of each kind."""

    global_batch: int = flag(32, "samples per step", least=1)
    rate: float = flag(0.5, "a number", least=0)
    steps: int | None = flag(None, "how many", least=1)
    file: str | None = flag(None, "a path")
    kind: Literal["big", "small"] = flag("big", "one of two")
    compile: bool = flag(False, "or not")


def _parse(*words: str) -> Options:
    return parse(Options, words, "thing")


def test_defaults() -> None:
    assert _parse() == Options()


def test_values() -> None:
    words = ("--global-batch", "7", "--rate=2e-1", "--steps", "3", "--file", "a b=c")
    found = _parse(*words, "--kind", "small", "--compile")
    assert found == Options(7, 0.2, 3, "a b=c", "small", True)
    assert _parse("--compile", "--no-compile", "--rate", "1", "--rate", "2").rate == 2
    assert _parse("--compile", "--no-compile").compile is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--global-bach", "7"),
            "unknown option '--global-bach' of thing; did you mean --global-batch?",
        ),
        (
            ("--global_batch=7",),
            "unknown option '--global_batch=7' of thing; did you mean --global-batch?",
        ),
        (("--global", "7"), "unknown option '--global'"),
        (("--zzz",), "known are: --compile, --file, --global-batch"),
        (("word",), "thing takes options only, found 'word'"),
        (("--steps",), "--steps: expected one argument"),
        (("--steps", "1.5"), "--steps: '1.5' is not a whole number"),
        (("--steps", "0"), "--steps: 0 is too small, the least is 1"),
        (("--rate", "-1"), "--rate: -1 is too small, the least is 0"),
        (("--rate", "fast"), "--rate: 'fast' is not a number"),
        (("--rate", "nan"), "--rate: 'nan' is not a finite number"),
        (("--rate", "inf"), "--rate: 'inf' is not a finite number"),
        (("--kind", "medium"), "--kind: invalid choice: 'medium'"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError) as refused:
        _parse(*words)
    assert said in str(refused.value)
    assert "thing" in str(refused.value)


def test_names() -> None:
    expected = "--global-batch --rate --steps --file --kind --compile --no-compile"
    assert names(Options) == set(expected.split())


def test_help() -> None:
    text = help_text(Options, "thing")
    assert "--global-batch INT" in text
    assert "samples per step (default 32)" in text
    assert "how many\n" in text
    assert "--kind {big,small}" in text
    assert "--no-compile" in text


def test_a_preset_stands_in_for_what_was_not_said() -> None:
    def preset(values: Mapping[str, object]) -> dict[str, object]:
        return {"global_batch": 4, "steps": 2} if values["compile"] else {}

    def found(*words: str) -> Options:
        return parse(Options, words, "thing", preset)

    assert found("--rate", "1") == Options(rate=1)
    assert found("--compile") == Options(4, steps=2, compile=True)
    # What is said counts, also where it is what it would be without.
    assert found("--compile", "--global-batch", "32") == Options(32, steps=2, compile=True)
