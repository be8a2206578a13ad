"""Batch scripts: what is wrong with one (`check`), and one for many nodes out of it (`port`)."""

from __future__ import annotations

from .check import RULES, check
from .rewrite import Ported, port
from .script import is_batch

__all__ = ["RULES", "Ported", "check", "is_batch", "port"]
