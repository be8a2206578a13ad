"""Recipes: complete training runs by name. Listing them and their options needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import flags
from ..base.errors import UserError, nearest


@dataclass(frozen=True)
class Recipe:
    """A recipe: its name, what it does in a line, and where its two halves are.

    Attributes:
        options: `module:class` of the options, a torch-free dataclass with `prepare(directory)`.
        module: the module with `run(options, directory, resume)`, which needs torch.
    """

    name: str
    summary: str
    options: str
    module: str

    def parse(self, args: Sequence[str]) -> Any:
        """The recipe's options from command-line words; UserError for what is wrong with them."""
        return flags.parse(self._options(), args, self.name)

    def help(self) -> str:
        """All options with their meaning and default."""
        return flags.help_text(self._options(), f"rankup run {self.name}")

    def run(self, args: Sequence[str], directory: Path, resume: bool) -> None:
        """Train, on every rank."""
        module = importlib.import_module(f"{__name__}.{self.module}")
        module.run(self.parse(args), directory, resume)

    def _options(self) -> Any:
        module, _, name = self.options.partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


RECIPES = {
    recipe.name: recipe
    for recipe in [
        Recipe(
            "language-model",
            "predict the next word or byte of a text with a causal transformer",
            "options:LanguageModelOptions",
            "language_model",
        ),
    ]
}


def find(name: str) -> Recipe:
    """The recipe of that name; UserError naming the nearest one otherwise."""
    if name not in RECIPES:
        raise UserError(f"no recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]
