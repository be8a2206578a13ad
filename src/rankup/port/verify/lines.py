"""A printed line as it is compared: its words, and its numbers apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])")
_DAY = r"\d{4}-\d\d-\d\d"
_TIME = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
# Dates, times of day, addresses, speeds: no two runs print the same. A duration stays a number: the
# script's own clock goes by its calls, and `0.91 min 0.7` may be a minimum.
_PASSING = re.compile(
    rf"(?<![\d.])\d{{8}}[T_-]\d{{6}}(?!\d)|{_DAY}|{_TIME}|0x[0-9a-f]+|"
    r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?\s?(?:it/s|s/it|samples/s|img/s)\b",
    re.IGNORECASE,
)
# What the clock, or chance, puts into the name of a file.
_CLOCK = re.compile(
    rf"{_DAY}|\d\d[-_:.h]\d\d[-_:.m]\d\d|(?=[0-9a-f]*\d)[0-9a-f]{{8,}}|\d{{6,}}|"
    r"tfevents\.[^/]*|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\d\d"
)
_RELATIVE = 1e-4
_LONGEST = 120  # characters of a line that is shown


@dataclass(frozen=True)
class Line:
    """A line in the form in which it is compared.

    Attributes:
        evaluates: it is printed behind an evaluation.
        bar: the last state of a progress bar.
        at: the calls of the user's code that it was printed by, the innermost first.
    """

    text: str
    words: str
    numbers: tuple[str, ...]
    evaluates: bool = False
    bar: bool = False
    at: tuple[tuple[str, int], ...] = ()

    def short(self) -> str:
        """Return it quoted, without the rest of a long one."""
        return repr(self.text if len(self.text) <= _LONGEST else f"{self.text[:_LONGEST]}...")


def parse(
    text: str,
    *,
    evaluates: bool = False,
    bar: bool = False,
    at: tuple[tuple[str, int], ...] = (),
) -> Line:
    """A line with what passes left out, and its numbers apart."""
    plain = _PASSING.sub("~", text.rstrip())
    numbers = tuple(_NUMBER.findall(plain))
    return Line(text.rstrip(), _NUMBER.sub("#", plain), numbers, evaluates, bar, at)


def near(one: str, other: str) -> bool:
    """Return True for the same printed number, but for the rounding of the last digit."""
    if one == other:
        return True
    a, b = float(one), float(other)
    return abs(a - b) <= max(
        _RELATIVE * max(abs(a), abs(b)), 1.01 * _unit(one), 1.01 * _unit(other)
    )


def is_part(one: str, other: str, world: int) -> bool:
    """Return True for a count of which each rank has an equal part."""
    a, b = float(one), float(other)
    return abs(a - b * world) <= max(_RELATIVE * abs(a), 1.01 * world * _unit(other))


def _unit(text: str) -> float:
    """Return one in the last printed place; zero for a whole number, which is not rounded."""
    mantissa, _, exponent = text.lower().partition("e")
    _, point, digits = mantissa.partition(".")
    if not point and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(digits)))


def without_clock(name: str) -> str:
    """The name of a file without what the clock has put into it."""
    return _CLOCK.sub("~", name)
