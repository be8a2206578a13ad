"""A line for people, on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Print it; a reader that is gone (`2>&1 | head`) loses lines, not the run."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
