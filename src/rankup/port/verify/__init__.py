"""`rankup verify`: run a script and its port for a few steps on CPU ranks, and compare them."""

from __future__ import annotations

from .command import Request, judge, verify

__all__ = ["Request", "judge", "verify"]
