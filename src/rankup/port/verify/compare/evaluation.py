"""Check 4: an evaluation counts each sample once, and says the same numbers."""

from __future__ import annotations

from collections import Counter

from ..journals import Pass, Seen, passes
from ..verdict import Result, differs
from . import lines
from .samples import unlike

_CHECK = "evaluation"


def compare(original: Seen, port: Seen) -> Result:
    """What is drawn without gradients, and the numbers that are printed behind it."""
    ours = [one for one in passes(original.ranks[0]) if not one.trained]
    if not ours:
        return Result(_CHECK, port.world, "not seen", "no evaluation")
    theirs = [{(one.dataset, one.number): one for one in passes(journal)} for journal in port.ranks]
    for mine in ours:
        parts = [found.get((mine.dataset, mine.number)) for found in theirs]
        wrong = "" if _whole(mine, parts) else unlike(mine, parts)
        if wrong:
            text = f"evaluation {mine.number} at {mine.where}: {wrong}"
            return differs(_CHECK, port.world, text, "other samples")
    found = lines.first(original, port, phase="eval", numbers=True)
    if found is not None:
        return differs(_CHECK, port.world, found.text(), "other numbers")
    total = sum(len(one.samples) for one in ours)
    return Result(_CHECK, port.world, "proved", f"{total} in {len(ours)} passes")


def _whole(mine: Pass, parts: list[Pass | None]) -> bool:
    """Whether rank 0 evaluates all by itself, and others all or nothing: exact as well."""
    wanted = Counter(map(str, mine.samples))
    found = [Counter(map(str, part.samples)) if part else Counter() for part in parts]
    return found[0] == wanted and all(one in (wanted, Counter()) for one in found)
