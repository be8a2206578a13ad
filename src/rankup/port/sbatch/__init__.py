"""`port` of batch scripts: one for many nodes out of one for one GPU."""

from __future__ import annotations

from .rewrite import Ported, port

__all__ = ["Ported", "port"]
