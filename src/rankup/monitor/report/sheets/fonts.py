"""How wide text is, where a line of it breaks, and which characters there are to write it with.

Matplotlib brings DejaVu along, so that the report looks the same everywhere.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font, LoadFlags

from ....base.text import clean

_MEASURED_AT = 100.0  # points; widths are in proportion


@dataclass(frozen=True)
class Font:
    """A face in a size of so many points."""

    size: float = 8.5
    bold: bool = False
    mono: bool = False

    @property
    def family(self) -> str:
        return "DejaVu Sans Mono" if self.mono else "DejaVu Sans"

    @property
    def options(self) -> dict[str, Any]:
        """For matplotlib's texts; a dollar sign is one, and begins no formula."""
        weight = "bold" if self.bold else "normal"
        return {
            **{"family": self.family, "weight": weight, "size": self.size},
            **{"parse_math": False, "usetex": False},
        }

    @property
    def line(self) -> float:
        """Points from one line to the next."""
        return 1.32 * self.size

    def width(self, text: str) -> float:
        """Points that the text takes on one line."""
        each = (_advance(self.family, self.bold, character) for character in text)
        return sum(each) * self.size / _MEASURED_AT

    def wrap(self, text: str, width: float, first: float = 0.0) -> list[str]:
        """The text in lines of at most `width` points; a word that is longer is broken.

        Args:
            first: points that are taken of the first line already.
        """
        lines: list[str] = []
        line, left = "", width - first
        for word in text.split():
            longer = f"{line} {word}" if line else word
            if self.width(longer) <= left:
                line = longer
                continue
            if line:
                lines.append(line)
                left = width
            *whole, line = self._broken(word, width)
            lines += whole
        return [*lines, line]

    def cut(self, text: str, width: float) -> str:
        """The text as far as it fits, with a sign where something is missing."""
        if self.width(text) <= width:
            return text
        text = self._broken(text, max(0.0, width - self.width("…")))[0]
        return text.rstrip() + "…"

    def _broken(self, word: str, width: float) -> list[str]:
        pieces, piece, taken = [], "", 0.0
        for character in word:
            wide = self.width(character)
            if piece and taken + wide > width:
                pieces.append(piece)
                piece, taken = "", 0.0
            piece += character
            taken += wide
        return [*pieces, piece]


def written(text: str) -> str:
    """Text from elsewhere in characters that the fonts have; all others are written out."""
    line = clean(" ".join(text.split())).replace("\x1b", "\\x1b")
    return "".join(c if _known(c) else _code(c) for c in line)


def _code(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@functools.cache
def _face(family: str, bold: bool) -> FT2Font:
    properties = font_manager.FontProperties(family=family, weight="bold" if bold else "normal")
    font = FT2Font(font_manager.findfont(properties))
    font.set_size(_MEASURED_AT, 72)
    return font


@functools.cache
def _known(character: str) -> bool:
    """Whether all faces have it: what one lacks would be an empty box."""
    if re.match(r"[\ud800-\udfff\ufe00-\ufe0f\u200b-\u200d\u2060\ufeff]", character):
        return False
    faces = (_face("DejaVu Sans", False), _face("DejaVu Sans", True))
    return all(face.get_char_index(ord(character)) for face in faces)


@functools.cache
def _advance(family: str, bold: bool, character: str) -> float:
    glyph = _face(family, bold).load_char(ord(character), flags=LoadFlags.NO_HINTING)
    return float(glyph.linearHoriAdvance) / 65536
