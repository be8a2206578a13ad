"""The rules of `rankup check` for Python, those of each module of this package."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .rule import Hit, Rule, rules_in

RULES = rules_in(*(import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)))

__all__ = ["RULES", "Hit", "Rule"]
