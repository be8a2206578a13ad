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
    sizes,
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
    sizes,
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
# A rule that another theme imports is found twice.
_FOUND = {
    one.code: one for theme in _THEMES for one in vars(theme).values() if isinstance(one, Rule)
}
RULES: tuple[Rule, ...] = tuple(_FOUND[code] for code in sorted(_FOUND))

__all__ = ["RULES", "Hit", "Rule"]
