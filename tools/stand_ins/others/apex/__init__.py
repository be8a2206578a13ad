"""Stands in for apex: see tools/stand_ins/README.md."""

from . import amp, parallel

__all__ = ["amp", "parallel"]
