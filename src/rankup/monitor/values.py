"""Numbers of JSON lines that anybody could have written."""

from __future__ import annotations

import math
from typing import Any


def number(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def amount(value: Any, default: Any) -> Any:
    """A number that is not negative and not absurdly large, as a float; else the default."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return float(value) if 0 <= value < 1e30 else default
