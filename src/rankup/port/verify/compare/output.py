"""Check 5: one rank writes a file, rank 0 prints, and both are what the original leaves."""

from __future__ import annotations

from collections import defaultdict

from ..journals import Journal, Seen
from ..verdict import Result, differs
from . import lines

_CHECK = "output"
_WRITES = ("truncate", "append", "update", "rename")


def compare(original: Seen, port: Seen) -> Result:
    """Files by their names and writers; lines by their words and numbers."""
    wrong = _writers(port) or _files(original, port)
    if wrong:
        return differs(_CHECK, port.world, wrong, "files")
    printed = lines.printed(port)
    for rank, count in enumerate(printed[1:], 1):
        if count:
            text = next(one["text"] for one in port.ranks[rank].of("line") if one["text"].strip())
            return differs(_CHECK, port.world, f"rank {rank} prints too: {text!r}", "lines")
    for numbers in (False, True):
        found = lines.first(original, port, phase="", numbers=numbers)
        if found is not None:
            return differs(_CHECK, port.world, found.text(), "lines")
    files, count = len(written(port.ranks[0])), printed[0]
    if not files and not count and not written(original.ranks[0]):
        return Result(_CHECK, port.world, "not seen", "prints nothing")
    return Result(_CHECK, port.world, "proved", f"{files} files, {count} lines")


def written(journal: Journal) -> set[str]:
    """Files that a rank has written and left there."""
    found: set[str] = set()
    for event in journal.of("write"):
        if event["how"] in _WRITES:
            found.add(event["path"])
        elif event["how"] in ("remove", "rename from"):
            found.discard(event["path"])
    return found


def _writers(port: Seen) -> str:
    ranks: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, journal in enumerate(port.ranks):
        for event in journal.of("write"):
            if event["how"] in _WRITES:
                ranks[event["path"]].setdefault(rank, event["where"])
    for path, writers in ranks.items():
        if len(writers) > 1:
            shown = " and ".join(f"rank {rank} ({where})" for rank, where in writers.items())
            return f"{path} is written by {shown}: the last one wins, or they tear it"
    return ""


def _files(original: Seen, port: Seen) -> str:
    ours = written(original.ranks[0])
    theirs = {path for journal in port.ranks for path in written(journal)}
    if missing := sorted(ours - theirs):
        return f"the port does not write {missing[0]}"
    if more := sorted(theirs - ours):
        return f"the port writes {more[0]}, which the original does not"
    return ""
