"""Moments and spans of time as people read them."""

from __future__ import annotations

import time


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


def clock(moment: float | None) -> str:
    """A moment as people read it here; the date only where it is not today's."""
    if moment is None:
        return ""
    try:
        local = time.localtime(moment)
    except (ValueError, OverflowError, OSError):
        return "?"
    today = time.localtime()
    same = (local.tm_year, local.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", local)
