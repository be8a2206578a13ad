"""Stands in for torchvision: see tools/stand_ins/README.md."""

from . import datasets, models, transforms, utils

__all__ = ["datasets", "models", "transforms", "utils"]
__version__ = "0.0"
