"""Text from elsewhere, made safe to be shown on a terminal and to be written to a file."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress

LINE_LENGTH = 4000

# Colours are the text's own affair, but what hides it; everything else could move the cursor, or
# worse.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,40}m")
_CONTROL = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean(line: str) -> str:
    """A line that is safe to show: colours and tabs stay, other control characters are written out.

    Of a progress bar, drawn over and over behind carriage returns, the last state is left.
    """
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    line = shorten(line)
    if not _CONTROL.search(line):
        return line
    pieces = _COLOUR.split(line)
    colours = _COLOUR.findall(line)
    shown = [_CONTROL.sub(_written_out, piece) for piece in pieces]
    colours = [_CONTROL.sub(_written_out, c) if _hides(c) else c for c in colours]
    text = "".join(piece + colour for piece, colour in zip(shown, [*colours, ""], strict=True))
    return f"{text}\x1b[0m" if "\x1b" in text else text


def _hides(colour: str) -> bool:
    """Return True where a colour sequence has the 8 that conceals what follows."""
    numbers = iter([int(number or 0) for number in re.split("[;:]", colour[2:-1])])
    for number in numbers:
        if number == 8:
            return True
        if number in (38, 48, 58):  # an extended colour, whose own numbers may be any
            for _ in range({5: 1, 2: 3}.get(next(numbers, 0), 0)):
                next(numbers, 0)
    return False


def clean_lines(text: str) -> str:
    """A text of several lines, each made safe to show."""
    return "\n".join(map(clean, text.split("\n")))


def columns(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Return lines of cells below one another: their ends, of the columns `left` their beginnings.

    Negative numbers count from the last column.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    places = {number % len(widths) for number in left}
    return [
        "  ".join(
            cell.ljust(width) if place in places else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def encodable(text: str) -> str:
    """The text with its lone surrogates written out, which no encoding has: `\\ud800`.

    JSON may have such escapes, and names of files that are not UTF-8 come with them.
    """
    return _SURROGATE.sub(_written_out, text)


def json_text(value: object) -> str:
    """JSON for other programs: NaN and infinities, which JSON has no words for, are null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str, prefix: str = "rankup: ") -> None:
    """Print a line for people on stderr, which may have further lines.

    A reader that is gone (`2>&1 | head`) loses lines, not the run.
    """
    with suppress(OSError):
        print(prefix + clean_lines(text), file=sys.stderr, flush=True)


def shorten(line: str) -> str:
    """The line, cut where it is longer than `LINE_LENGTH`, saying so."""
    if len(line) <= LINE_LENGTH:
        return line
    kept = LINE_LENGTH - 40  # so that what is short already stays as it is
    return f"{line[:kept]}… ({len(line) - kept} more characters)"


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
