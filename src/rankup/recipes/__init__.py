"""Recipes: complete training runs by name, and what `rankup generate` asks of one. No torch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import flags, gone
from ..base.amounts import size
from ..base.errors import UserError, nearest
from ..site import rundir

_MOST = 16_000_000  # bytes of a text


@dataclass(frozen=True)
class Asked:
    """The request of `rankup generate`; None is left to the recipe.

    Attributes:
        prompt: words to go on from.
        file: a text to go on from.
        max_tokens: most that are made.
        temperature: 0 takes the likeliest token always; 1 draws as the model says.
        top_k: draw among so many of the likeliest alone.
        seed: of what is drawn.
    """

    prompt: str | None = None
    file: Path | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def text(self) -> str:
        """The words of the prompt, or of the file.

        Raises:
            UserError: none or both were given, or the file is no text.
        """
        if (self.prompt is None) == (self.file is None):
            found = "neither was" if self.prompt is None else "both were"
            raise UserError(f"give a PROMPT or --file FILE; {found} given")
        if self.file is None:
            assert self.prompt is not None
            return self.prompt
        if not self.file.is_file():
            what = "is no regular file" if self.file.exists() else "does not exist"
            raise UserError(f"--file {self.file} {what}; give a text")
        if self.file.stat().st_size > _MOST:
            raise UserError(f"--file {self.file} has more than {size(_MOST)}; give a shorter text")
        try:
            return self.file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"--file {self.file} is not UTF-8 text (byte {error.start}: {error.reason})"
            ) from None


@dataclass(frozen=True)
class Recipe:
    """A recipe: its name, what it does in a line, and where its two halves are.

    Attributes:
        options: `module:class` of the options, a torch-free dataclass with `prepare(directory)`,
            called once before any rank starts, `samples(directory)` of an epoch, and `TINY`.
        module: the module with `run(options, directory, resume)`, called on every rank, and
            `generate(options, directory, tensors, asked)`; both need torch.
    """

    name: str
    summary: str
    options: str
    module: str

    def parse(self, args: Sequence[str], kept: Mapping[str, Any] | None = None) -> Any:
        """The recipe's options from command-line words; UserError for what is wrong with them.

        Args:
            kept: `Job.kept` of a run that has begun.
        """
        kind = self._options()
        return flags.parse(kind, args, self.name, kind.preset, kept)

    def prepare(self, args: Sequence[str], kept: Mapping[str, Any], directory: Path) -> None:
        """Make in a run directory what the ranks need, before any of them is started.

        Raises:
            UserError: the data or the weights of --init will not do, --freeze matches no parameter,
                or --profile no step.
        """
        options = self.parse(args, kept)
        options.prepare(directory)
        refuse_beyond_epochs(options, directory)
        of_model = options.freeze is not None or options.init is not None
        if of_model and importlib.util.find_spec("torch") is not None:
            from .outline import refuse_other_model  # torch takes seconds

            refuse_other_model(options)

    def option_names(self) -> frozenset[str]:
        """The names of all options as they are written: `--lr`, `--no-async-checkpoints`."""
        return flags.names(self._options())

    def help(self) -> str:
        """All options with their meaning and default."""
        return flags.help_text(self._options(), f"rankup run {self.name}")

    def run(self, args: Sequence[str], directory: Path, resume: bool) -> None:
        """Train, on every rank."""
        self._module().run(self.parse(args, _kept(directory)), directory, resume)

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
        options = self.parse(args, _kept(directory))
        found: Iterator[str] = self._module().generate(options, directory, tensors, asked)
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
    ]
}

# Scripts for one GPU that come with rankup, in the folder `examples/` of its source.
EXAMPLES = {
    "language.py": "a transformer learns to go on with a text (WikiText-2)",
    "summarize.py": "T5 learns to summarise articles in a sentence (XSum)",
    "classify.py": "a residual network learns which class a photo is of (Imagewoof)",
}

# Methods in plain PyTorch, on one small model, of the same folder: `demo` writes them into one.
BY_HAND = {
    "fsdp.py": "every rank holds a part of each weight",
    "tensor_parallel.py": "every rank holds a part of each matrix, and computes with it",
    "pipeline.py": "every rank holds some of the layers",
    "async_sgd.py": "a parameter server, and workers that wait for nobody",
    "gossip.py": "every rank has a model of its own, and talks to its neighbours",
    "small_model.py": "the model and the data of the others",
}


def refuse_beyond_epochs(options: Any, directory: Path) -> None:
    """UserError where a run by epochs that is prepared does not have the steps to profile."""
    if options.profile is not None and options.steps is None:
        per_epoch = -(-options.samples(directory) // options.global_batch)
        options.refuse_profile_beyond(per_epoch * (options.epochs or 1))


def _kept(directory: Path) -> dict[str, Any]:
    return rundir.read(directory).kept if (directory / rundir.JOB).is_file() else {}


def find(name: str) -> Recipe:
    """The recipe of that name; UserError naming the nearest one otherwise."""
    if name not in RECIPES:
        gone.refuse(name)
        raise UserError(f"no recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]
