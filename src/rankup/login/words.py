"""Arguments of a script as they may be shown and kept: without passwords and tokens."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

from ..base.secrets import redacted

_SECRET = re.compile(
    r"-*(?:[\w.-]*[._-])?(?:(?:api|access|auth)?(?:token|key)|secret|pass(?:word|wd|phrase)?)",
    re.IGNORECASE,
)
HIDDEN = "..."


def shown(words: Iterable[str]) -> list[str]:
    """The words, with "..." for what is, or follows an option that names, a secret."""
    found: list[str] = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        if hide and not word.startswith("--"):
            found.append(HIDDEN)
        elif equals and value and _SECRET.fullmatch(name):
            found.append(f"{name}={HIDDEN}")
        else:
            safe = redacted(word, os.environ)
            # A URL without its query is no longer what the user gave.
            found.append(safe if safe == word or HIDDEN in safe else safe + HIDDEN)
        hide = word.startswith("-") and not equals and _SECRET.fullmatch(word) is not None
    return found


def command(words: Iterable[str]) -> str:
    """A command line of these words, fit to be copied where nothing had to be hidden."""
    return " ".join(
        w if w.endswith(HIDDEN) and shlex.quote(w[:-3]) == w[:-3] else shlex.quote(w)
        for w in shown(words)
    )
