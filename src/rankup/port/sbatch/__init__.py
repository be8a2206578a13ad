"""Batch scripts: what is wrong with one (`check`), and one for many nodes out of it (`port`)."""

from __future__ import annotations

from .check import check
from .parsed import is_batch
from .rewrite import Ported, port

__all__ = ["Ported", "check", "is_batch", "port"]
