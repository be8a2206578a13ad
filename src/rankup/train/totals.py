"""What the exchanges of a run came to, over all its lives: read from `metrics.jsonl`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..base.amounts import size


def totals(path: Path, steps: int) -> dict[str, Any]:
    """Of all steps of the run, for its last line; empty where nothing was measured.

    `bytes_sent` and `bytes_per_step` of a rank, `waited` and `extra_compute` in seconds of a rank,
    `extra_memory` in bytes at most, `staleness` how many gradients were how many versions late.
    """
    sums: Counter[str] = Counter()
    staleness: Counter[int] = Counter()
    memory = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            for name in ("bytes_sent", "waited", "extra_compute"):
                if name in record:
                    sums[name] += record[name]
            memory = max(memory, record.get("extra_memory", 0))
            for late, number in record.get("staleness", {}).items():
                staleness[int(late)] += number
    if "bytes_sent" not in sums:
        return {}
    found: dict[str, Any] = {name: round(value, 6) for name, value in sums.items()}
    found["bytes_per_step"] = round(sums["bytes_sent"] / max(1, steps))
    if "waited" in sums:
        found["extra_memory"] = memory
    if staleness:
        found["staleness"] = {str(late): staleness[late] for late in sorted(staleness)}
    return found


def said(found: dict[str, Any]) -> str:
    """The same in a line for people, where all was measured."""
    text = (
        f"exchange: {size(found['bytes_per_step'])} sent per rank and step, "
        f"{found['waited']:.1f} s waited and {found['extra_compute']:.1f} s of extra compute in "
        f"all, {size(found['extra_memory'])} of extra memory"
    )
    if "staleness" in found:
        late = ", ".join(f"{n} by {late}" for late, n in found["staleness"].items())
        text += f"; gradients late by versions: {late}"
    return text
