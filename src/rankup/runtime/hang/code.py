"""What code a rank runs, so that a node with another checkout is named."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

_NAMED = 8  # ranks that an error lists


@cache
def fingerprint() -> dict[str, str]:
    """The versions of Python and torch, and digests of the main script and of rankup.

    Of rankup the sizes of its files count: to read them all would be felt where a thousand ranks
    start from one file system.
    """
    rankup = Path(__file__).resolve().parents[2]
    sources = sorted(rankup.rglob("*.py"))
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    script = Path(main)
    return {
        "Python": sys.version.split()[0],
        "torch": torch.__version__,
        "rankup": _digest(f"{file.name} {file.stat().st_size}".encode() for file in sources),
        "the script": _digest([script.read_bytes()]) if script.is_file() else "none",
    }


def differing(everyone: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """What differs, and which ranks differ from the most; empty when all are alike."""
    parts = []
    for name in everyone[0][1] if everyone else ():
        values = [code.get(name, "") for _, code in everyone]
        usual = max(values, key=values.count)
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            listed = ", ".join(f"rank {r} on {everyone[r][0]} ({values[r]})" for r in odd[:_NAMED])
            more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
            parts.append(f"{name} is {usual} on most ranks, but not on {listed}{more}")
    return "; ".join(parts)


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.blake2b(digest_size=5)
    for part in parts:
        total.update(part)
    return total.hexdigest()
