"""Bytes, counts and spans of time as people say them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes with a unit, powers of 1000: "1.5 GB"."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def number(count: float) -> str:
    """A count with a suffix for thousands and more: "3.1M"."""
    for suffix in ("", "k", "M"):
        if abs(count) < 1000:
            return f"{count:.3g}{suffix}"
        count /= 1000
    return f"{count:.4g}G"


def some(names: list[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ago(seconds: float) -> str:
    """A span of time in words: "12 s", "5 min", "3 h 20 min", "2 d 4 h"."""
    if not abs(seconds) < 1e12:
        return "?"
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
