"""Check 6: what the port saves loads into the original's models."""

from __future__ import annotations

from ..journals import Seen
from ..verdict import Result, differs

_CHECK = "saved"


def compare(original: Seen, port: Seen) -> Result:
    """What the original found when it loaded the port's files."""
    names = [name for event in original.ranks[0].of("end") for name in event.get("saved", ())]
    if not names:
        return Result(_CHECK, port.world, "not seen", "saves nothing")
    told = [one for one in original.ranks[0].of("loaded") if one["run"] == port.outcome.name]
    if not told:
        text = f"{names[0]} could not be loaded into the original: it had ended"
        return differs(_CHECK, port.world, text, "not loaded")
    for one in told[0]["files"]:
        if one["why"]:
            return differs(_CHECK, port.world, f"{one['path']}: {one['why']}", one["path"])
    models = sum(one["models"] for one in told[0]["files"])
    return Result(_CHECK, port.world, "proved", f"{len(names)} files, {models} models")
