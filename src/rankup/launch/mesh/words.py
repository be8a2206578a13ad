"""Short words for many numbers and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise


def ranges(numbers: Iterable[int], most: int = 4) -> str:
    """`0-3, 6`; `0-6 by 2` where they go in equal steps; the first ones alone where they are many.

    Args:
        most: runs that are written out.
    """
    found = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in found:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    steps = {b - a for a, b in pairwise(found)}
    if len(runs) > 2 and len(steps) == 1:
        return f"{found[0]}-{found[-1]} by {steps.pop()}"
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(words) > most:
        return f"{', '.join(words[: most - 1])}, … {words[-1]}"
    return ", ".join(words)


def span(numbers: range) -> str:
    """`3`, or `0-3`."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def units(names: Iterable[str]) -> list[str]:
    """The modules that parameters belong to, layers that are numbered as one: `blocks.0-3`.

    Args:
        names: of parameters: `blocks.0.norm.weight`, `head.weight`.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for name in names:
        parts = name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if number is None:
            found.setdefault((".".join(parts[:-1]) or name, ""), [])
        else:
            prefix = ".".join(parts[:number])
            found.setdefault((prefix, "numbered"), []).append(int(parts[number]))
    return [
        ".".join(p for p in (prefix, ranges(numbers) if kind else "") if p)
        for (prefix, kind), numbers in found.items()
    ]


def pattern(name: str) -> str:
    """A name with a star for each number in it."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def together(names: Sequence[str]) -> str:
    """One name for several of the same pattern: `blocks.0-3.norm.weight`."""
    parts = [name.split(".") for name in names]
    shown = []
    for column in zip(*parts, strict=True):
        numbers = all(part.isdigit() for part in column)
        shown.append(ranges(map(int, column)) if numbers else column[0])
    return ".".join(shown)


def dims(shape: Sequence[int]) -> str:
    """`256 x 64`."""
    return " x ".join(map(str, shape)) or "1 number"


def size(count: float) -> str:
    """Bytes with a unit and one digit after the point, powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
