"""Moments and spans of time as people read them."""

from __future__ import annotations

import time

from ..base.amounts import ago as ago


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
