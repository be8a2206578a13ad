"""Errors a user can act on. Both are printed as their message alone, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


class UserError(Exception):
    """Bad input; the command exits with code 2.

    The message says what was found, what was expected and what to do next.
    """


class RunFailed(Exception):  # noqa: N818 - the run failed, the program did what it should
    """The run cannot go on (a NaN loss, no space for the final model); exit code 1."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the known words closest to `word`, or all of them when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known are: {', '.join(known)}"
