"""How the pages of findings write a threshold."""

from __future__ import annotations

from rankup.monitor.thresholds import GIB, LIMITS, MIB


def shown(name: str) -> str:
    """Its value as a page has it: bytes of memory in MiB or GiB, numbers bare."""
    value = getattr(LIMITS, name)
    if value >= GIB:
        return f"{value / GIB:g} GiB"
    return f"{value / MIB:g} MiB" if value >= 100 * MIB else f"{value:,.6g}"
