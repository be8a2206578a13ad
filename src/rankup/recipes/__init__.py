"""Recipes: complete training runs by name. Listing them and their options needs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import flags
from ..base.errors import UserError, nearest
from .asked import Asked


@dataclass(frozen=True)
class Recipe:
    """A recipe: its name, what it does in a line, and where its two halves are.

    Attributes:
        options: `module:class` of the options, a torch-free dataclass with `prepare(directory)`,
            called once before any rank starts, and `TINY`.
        module: the module with `run(options, directory, resume)`, called on every rank, and
            `generate(options, directory, tensors, asked)`; both need torch.
    """

    name: str
    summary: str
    options: str
    module: str

    def parse(self, args: Sequence[str]) -> Any:
        """The recipe's options from command-line words; UserError for what is wrong with them."""
        kind = self._options()
        return flags.parse(kind, args, self.name, kind.preset)

    def option_names(self) -> frozenset[str]:
        """The names of all options as they are written: `--lr`, `--no-reshard`."""
        return flags.names(self._options())

    def help(self) -> str:
        """All options with their meaning and default."""
        return flags.help_text(self._options(), f"rankup run {self.name}")

    def run(self, args: Sequence[str], directory: Path, resume: bool) -> None:
        """Train, on every rank."""
        self._module().run(self.parse(args), directory, resume)

    def generate(
        self, args: Sequence[str], directory: Path, tensors: Mapping[str, Any], asked: Asked
    ) -> Iterator[str]:
        """Yield the model's answer in lines, on this process alone.

        Args:
            args, directory: the run's.
            tensors: the model's, by the names of its state dict.

        Raises:
            UserError: it makes no sense to this recipe.
        """
        found: Iterator[str] = self._module().generate(self.parse(args), directory, tensors, asked)
        return found

    def _module(self) -> Any:
        return importlib.import_module(f"{__name__}.{self.module}")

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
        Recipe(
            "summarization",
            "summarise articles in a sentence with T5",
            "article_options:SummarizationOptions",
            "summarization",
        ),
        Recipe(
            "image-classification",
            "say which class a photo is of, with a residual network",
            "image_options:ImageClassificationOptions",
            "image_classification",
        ),
    ]
}


def find(name: str) -> Recipe:
    """The recipe of that name; UserError naming the nearest one otherwise."""
    if name not in RECIPES:
        raise UserError(f"no recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]
