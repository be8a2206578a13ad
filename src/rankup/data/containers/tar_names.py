"""Under which name a sample stands in a tar, so that WebDataset keeps it apart from the others.

WebDataset cuts a name at the first dot of its base name and takes neighbours with equal stems for
one sample. A key for which that would go wrong is written under another name, in which the dots of
its base name are `%2E`; the key itself stands in the member's PAX header.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..strings import Strings
from .stems import LABEL, cut

# What has no extension gets one: WebDataset passes over a member without.
BARE = b"data"
# One dot in the base name, with something on both sides. `%` is of our own names; `.` in
# WebDataset's pattern is no line end; what begins with `__` it takes for its own.
_LONE = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+\.(?!__)[^/.%\n]+")
_STEM = re.compile(rb"(?!__)(?:[^%\n]*/)?[^/.%\n]+")


def lone(keys: Strings, splits: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """Row -> name, for the samples of one field whose name is not their key.

    Args:
        splits: start and stop of each; keys are unique in one.
    """
    changed: dict[int, bytes] = {}
    for start, stop in splits:
        rows = range(start, stop)
        names = [keys[row] for row in rows]
        stems = [cut(name)[0] for name in names]
        often = _twice(stems)
        for row, name, stem in zip(rows, names, stems, strict=True):
            if stem in often or not _LONE.fullmatch(name) or _is_label(name):
                if stem not in often and _STEM.fullmatch(name):
                    changed[row] = name + b"." + BARE
                else:
                    changed[row] = _escaped(name) + b"." + _extension(name)
    return changed


def several(keys: Strings) -> dict[int, bytes]:
    """Row -> stem, for the samples of several fields whose stem is not their key."""
    return {row: _escaped(key) for row, key in enumerate(keys) if not _STEM.fullmatch(key)}


def _twice(stems: Sequence[bytes]) -> set[bytes]:
    if len(set(stems)) == len(stems):
        return set()
    return {stem for stem, count in Counter(stems).items() if count > 1}


def _is_label(name: bytes) -> bool:
    return name[-4:].lower() == b"." + LABEL.encode()


def _escaped(name: bytes) -> bytes:
    """No two keys give the same, and none gives what is a stem that needs no change."""
    folder, slash, base = name.rpartition(b"/")
    folder = folder.replace(b"%", b"%25").replace(b"\n", b"%0A")
    base = base.replace(b"%", b"%25").replace(b"\n", b"%0A").replace(b".", b"%2E")
    result = folder + slash + base
    if result.startswith(b"__"):
        result = b"%5F" + result[1:]
    return result if b"%" in result else result + b"%"


def _extension(name: bytes) -> bytes:
    found = name[name.rfind(b"/") + 1 :].rpartition(b".")[2] if b"." in name else b""
    plain = re.fullmatch(rb"(?!__)[A-Za-z0-9_]{1,16}", found)
    return found if plain and found.lower() != LABEL.encode() else BARE
