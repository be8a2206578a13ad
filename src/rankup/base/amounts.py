"""Bytes, counts and spans of time as people say them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .errors import UserError

_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size(count: float) -> str:
    """Bytes with a unit, powers of 1000: "1.5 GB"."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def bytes_of(text: str, option: str) -> int:
    """The bytes of a size that people write: `64MB`, `1.5 GiB`, `1000000`.

    Raises:
        UserError: it is no size; names the option that it was given for.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    if not match or (match[3] and not match[2]):
        raise UserError(f"{option} {text!r} is no size; write it as 512MB, 1GB or 2GiB")
    return int(float(match[1]) * (_BINARY if match[3] else _BYTES)[match[2]])


def number(count: float) -> str:
    """A count with a suffix for thousands and more: "3.1M"."""
    for suffix in ("", "k", "M"):
        if abs(count) < 1000:
            return f"{count:.3g}{suffix}"
        count /= 1000
    return f"{count:.4g}G"


def words(count: int, one: str, many: str) -> str:
    """Return `1 file`, `1,000 files`."""
    return f"{count:,} {one if count == 1 else many}"


def some(names: list[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ranges(numbers: Iterable[int]) -> str:
    """Return [0, 1, 2, 7] as "0-2,7"."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def duration(seconds: float) -> str:
    """ "1 h 32 min", "3 min 20 s", "48 s", "0.4 s", "2 d 3 h"."""
    if not abs(seconds) < 1e12:
        return "an unknown time"
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} d" + (f" {hours} h" if hours else "")
