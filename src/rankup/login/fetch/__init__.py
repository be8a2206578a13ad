"""`rankup fetch`: bring what a job needs while there is a network, and prove that it suffices."""

from __future__ import annotations

from .request import Request

__all__ = ["Request", "fetch"]


def fetch(request: Request) -> int:
    """Do what was asked; the exit code. See `command.fetch`."""
    from .command import fetch as start  # children import this package, and need little of it

    return start(request)
