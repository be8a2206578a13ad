"""Check 6: models, tensors, arrays, pictures and figures of the port's files are the original's."""

from __future__ import annotations

from ....base.amounts import words
from ..protocol import Seen
from ..verdict import Result
from .output import Known, openings

_SHOWN = 3  # values of a file that are named


def saved(original: Seen, port: Seen, known: Known) -> Result:
    """What the ranks have compared; what none of them could is not seen."""
    events = [event for rank in port.ranks for event in rank.of("compared")]
    opened = openings(original)
    wrong: list[str] = []
    own: list[str] = []
    unseen: list[str] = []
    values = models = 0
    for event in events:
        path = event["path"]
        unseen += [f"{path}: {why}" for why in event["unseen"]]
        values += event.get("values", 0)
        models += event.get("models", 0)
        bad: list[str] = []
        for place, why, array in event.get("wrong", ()):
            right = array or known.apart is None or (path, place) not in known.apart
            said = known.said.covers(opened.get(path, ())) or known.said.written
            text = f"{path}: {place} {why}" if place else f"{path} {why}"
            (own if port.world > 1 and right and said else bad).append(text)
        wrong += bad[:_SHOWN]
        if len(bad) > _SHOWN:
            wrong.append(f"{path}: {len(bad) - _SHOWN} more of its values differ")
    more = tuple(dict.fromkeys(unseen))
    if wrong:
        return Result("differs", "", tuple(wrong), unseen=more)
    if own:
        return Result("rank 0's", words(len(own), "value", "values"), tuple(own), unseen=more)
    if not values:
        return Result("not seen" if more else "-", "" if more else "saves nothing", unseen=more)
    files = words(sum(bool(event.get("values")) for event in events), "file", "files")
    shown = words(models, "model", "models") if models else words(values, "value", "values")
    return Result("same", f"{files}, {shown}", unseen=more)
