"""Bytes, files and days as people say them."""

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
