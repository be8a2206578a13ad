"""The index beside a tar shard with which DALI's `fn.readers.webdataset` starts at once.

The text that DALI's own `wds2idx` writes, version 1.2: a line per sample, with extension, offset,
size and name of each of its members between spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .stems import cut

_SPACE = re.compile(r"\s")

# Name, offset of its data, bytes.
Member = tuple[bytes, int, int]


def text(samples: Iterable[Iterable[Member]]) -> str:
    """The index of a shard's samples, in their order."""
    lines = [" ".join(map(_part, members)) + "\n" for members in samples]
    return f"v1.2 {len(lines)}\n" + "".join(lines)


def _part(member: Member) -> str:
    name, offset, size = member
    extension = cut(name)[1].decode("utf-8", "backslashreplace")
    shown = name.decode("utf-8", "backslashreplace")
    return f"{_unspaced(extension)} {offset} {size} {_unspaced(shown)}"


def _unspaced(word: str) -> str:
    """Without the spaces that would end it; DALI only shows names."""
    return _SPACE.sub("%20", word)
