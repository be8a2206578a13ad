"""Sets of names, written as one text, and a name that several rooms know."""

from __future__ import annotations

RUNTIME = "rankup_runtime"  # the folder that `port --vendor` puts beside a script


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())
