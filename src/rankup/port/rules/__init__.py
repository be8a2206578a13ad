"""The rules of `rankup check` for Python, grouped by theme."""

from __future__ import annotations

from . import (
    batches,
    chance,
    device,
    group,
    grown,
    job,
    loaders,
    masked,
    model,
    numbers,
    output,
    reading,
    saving,
    uneven,
    writing,
)
from .rule import Hit, Rule

_THEMES = (
    group,
    device,
    loaders,
    chance,
    batches,
    grown,
    numbers,
    masked,
    model,
    saving,
    writing,
    uneven,
    reading,
    output,
    job,
)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for theme in _THEMES for rule in theme.RULES), key=lambda rule: rule.code)
)

__all__ = ["RULES", "Hit", "Rule"]
