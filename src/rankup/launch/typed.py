"""The command line as it was typed, without what may be secret in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator


def typed() -> list[str]:
    """The command line that this process was given, without what may be secret in it."""
    return ["rankup", *without_values(sys.argv[1:])]


def without_values(words: list[str]) -> Iterator[str]:
    """A command line without what `--env` gave: it may be secret."""
    given = False
    for word in words:
        option, equals, entry = word.partition("=")
        if given or (option == "--env" and equals):
            text = word if given else entry
            name, has_value, _ = text.partition("=")
            yield ("" if given else "--env=") + name + ("=..." if has_value else "")
            given = False
        else:
            given = word == "--env"
            yield word
