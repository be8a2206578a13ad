"""The rules of `rankup check` for Python, grouped by theme."""

from __future__ import annotations

from . import (
    chance,
    device,
    downloads,
    evaluation,
    group,
    grown,
    job,
    loaders,
    losses,
    model,
    numbers,
    output,
    parts,
    reading,
    saving,
    similar,
    steering,
    uneven,
    unfit,
    writing,
)
from .rule import Hit, Rule

_THEMES = (
    group,
    device,
    evaluation,
    loaders,
    losses,
    chance,
    grown,
    numbers,
    model,
    saving,
    similar,
    steering,
    writing,
    uneven,
    reading,
    output,
    downloads,
    job,
    parts,
    unfit,
)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for theme in _THEMES for rule in theme.RULES), key=lambda rule: rule.code)
)

__all__ = ["RULES", "Hit", "Rule"]
