"""Printed lines, compared by their words and by their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from ..journals import Event, Seen

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])")
# Dates, times of day, durations, addresses: no two runs print the same.
_PASSING = re.compile(
    r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?|0x[0-9a-f]+|"
    r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?\s?(?:ms|s|sec|secs|seconds|min|it/s|s/it|samples/s|img/s)\b",
    re.IGNORECASE,
)
_RELATIVE = 1e-4
_SHOWN = 120  # characters of a line


@dataclass(frozen=True)
class Line:
    """A printed line in the form in which it is compared."""

    text: str
    words: str
    numbers: tuple[str, ...]
    phase: str


@dataclass(frozen=True)
class Unlike:
    """The first place where two outputs differ.

    Attributes:
        original, port: the lines; None: the other has no such line.
    """

    original: Line | None
    port: Line | None

    def text(self) -> str:
        """For people."""
        if self.original is None:
            assert self.port is not None
            return f"the port prints what the original does not: {_short(self.port)}"
        if self.port is None:
            return f"the port does not print: {_short(self.original)}"
        return f"the original prints {_short(self.original)}, the port {_short(self.port)}"


def _short(line: Line) -> str:
    return repr(line.text if len(line.text) <= _SHOWN else f"{line.text[:_SHOWN]}...")


def first(original: Seen, port: Seen, *, phase: str, numbers: bool) -> Unlike | None:
    """The first line that differs.

    Args:
        phase: lines printed in this one only; empty: in all others but `eval` for numbers.
        numbers: only what differs in its numbers, else only in its words.
    """
    ours, theirs = _lines(original), _lines(port)
    matcher = SequenceMatcher(None, [o.words for o in ours], [t.words for t in theirs], False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            if not numbers:
                continue
            for mine, its in zip(ours[a:b], theirs[c:d], strict=True):
                if (mine.phase == "eval") == (phase == "eval") and not _alike(mine, its):
                    return Unlike(mine, its)
        elif not numbers:
            mine_or_none = ours[a] if a < b else None
            return Unlike(mine_or_none, theirs[c] if c < d else None)
    return None


def parse(text: str, phase: str = "") -> Line:
    """A line with what passes left out, and its numbers apart."""
    plain = _PASSING.sub("~", text.rstrip())
    return Line(text.rstrip(), _NUMBER.sub("#", plain), tuple(_NUMBER.findall(plain)), phase)


def _lines(run: Seen) -> list[Line]:
    events = run.ranks[0].of("line")
    script = next((event["script"] for event in run.ranks[0].of("start")), "")
    return [_line(event, script) for event in events if event["text"].strip()]


def _line(event: Event, script: str) -> Line:
    """Where the script lies and what it is called is not compared."""
    text = event["text"]
    if script:
        text = text.replace(str(Path(script).parent), ".").replace(Path(script).name, "SCRIPT")
    return parse(text, event["phase"])


def _alike(one: Line, other: Line) -> bool:
    return len(one.numbers) == len(other.numbers) and all(
        near(a, b) for a, b in zip(one.numbers, other.numbers, strict=True)
    )


def near(one: str, other: str) -> bool:
    """Whether two printed numbers are the same, but for the rounding of their last digit."""
    if one == other:
        return True
    a, b = float(one), float(other)
    return abs(a - b) <= max(
        _RELATIVE * max(abs(a), abs(b)), 1.01 * _unit(one), 1.01 * _unit(other)
    )


def _unit(text: str) -> float:
    """One in the last printed place; nothing for a whole number, which is not rounded."""
    mantissa, _, exponent = text.lower().partition("e")
    _, point, digits = mantissa.partition(".")
    if not point and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(digits)))


def printed(run: Seen) -> Sequence[int]:
    """How many lines each rank has printed."""
    return [len([one for one in rank.of("line") if one["text"].strip()]) for rank in run.ranks]
