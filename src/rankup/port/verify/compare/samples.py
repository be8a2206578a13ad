"""Check 3: over all ranks each sample is trained on once in an epoch, shuffled as before."""

from __future__ import annotations

from collections import Counter

from ..journals import Pass, Seen, passes
from ..verdict import Result, differs

_CHECK = "samples"


def compare(original: Seen, port: Seen) -> Result:
    """The training samples of all ranks, pass by pass, against the original's."""
    ours = [one for one in passes(original.ranks[0]) if one.trained]
    theirs = [_by_key(passes(journal)) for journal in port.ranks]
    if not ours:
        return Result(_CHECK, port.world, "not seen", "no loader")
    for mine in ours:
        parts = [found.get((mine.dataset, mine.number)) for found in theirs]
        wrong = unlike(mine, parts)
        if wrong:
            text = f"pass {mine.number} of the loader at {mine.where}: {wrong}"
            return differs(_CHECK, port.world, text, "other samples")
        wrong = _order(mine, parts)
        if wrong:
            return differs(_CHECK, port.world, wrong, "other order")
    wrong = _same_order(ours, theirs)
    if wrong:
        return differs(_CHECK, port.world, wrong, "one order")
    total = sum(len(one.samples) for one in ours)
    return Result(_CHECK, port.world, "proved", f"{total} in {len(ours)} passes")


def unlike(mine: Pass, parts: list[Pass | None]) -> str:
    """How the samples of all ranks differ from the original's; empty where they do not."""
    wanted = Counter(map(str, mine.samples))
    found = Counter(str(one) for part in parts if part is not None for one in part.samples)
    if wanted == found:
        return ""
    world, missing, more = len(parts), wanted - found, found - wanted
    equal = [part is not None and Counter(map(str, part.samples)) == wanted for part in parts]
    if all(equal) and world > 1:
        return f"each of the {world} ranks draws all {len(mine.samples)} samples"
    told = []
    if missing:
        told.append(f"{sum(missing.values())} of {len(mine.samples)} samples are left out")
    if more:
        told.append(f"{sum(more.values())} are drawn more than once")
    names = {part.sampler for part in parts if part is not None}
    if "DistributedSampler" in names:
        told.append("DistributedSampler makes all parts equally long")
    return " and ".join(told[:2]) + (f" ({told[2]})" if len(told) > 2 else _last(told))


def _last(told: list[str]) -> str:
    return f" ({', '.join(list(map(str, told[2:])))})" if len(told) > 2 else ""


def _order(mine: Pass, parts: list[Pass | None]) -> str:
    for rank, part in enumerate(parts):
        if part is not None and part.shuffles != mine.shuffles:
            return (
                f"the original {'shuffles' if mine.shuffles else 'does not shuffle'} "
                f"({mine.sampler} at {mine.where}), the port on rank {rank} "
                f"{'does' if part.shuffles else 'does not'} ({part.sampler})"
            )
    return ""


def _same_order(ours: list[Pass], theirs: list[dict[tuple[int, int], Pass]]) -> str:
    for mine in ours:
        part = theirs[0].get((mine.dataset, mine.number))
        later = theirs[0].get((mine.dataset, mine.number + 1))
        if part is None or later is None or not (part.shuffles and later.shuffles):
            continue
        if part.epoch is not None and part.epoch == later.epoch:
            return (
                f"DistributedSampler has epoch {part.epoch} in pass {mine.number} and in the next: "
                "without sampler.set_epoch(epoch) every epoch has the same order"
            )
    return ""


def _by_key(found: list[Pass]) -> dict[tuple[int, int], Pass]:
    return {(one.dataset, one.number): one for one in found}
