"""`rankup inspect`: what is in a container, whether it is sound, and its samples as files again."""

from __future__ import annotations

from .command import show

__all__ = ["show"]
