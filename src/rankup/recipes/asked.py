"""The request of `rankup generate`, whatever the recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..base.amounts import size
from ..base.errors import UserError

_MOST = 16_000_000  # bytes of a text


@dataclass(frozen=True)
class Asked:
    """None is left to the recipe.

    Attributes:
        prompt: words to go on from.
        file: a text, or what else the recipe takes (a folder of photos).
        max_tokens: most that are made.
        temperature: 0 takes the likeliest token always; 1 draws as the model says.
        top_k: draw among so many of the likeliest alone.
        beams: sequences that a beam search follows.
        seed: of what is drawn.
    """

    prompt: str | None = None
    file: Path | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    beams: int | None = None
    seed: int | None = None

    def only(self, recipe: str, *known: str) -> None:
        """UserError for anything that was asked for beside the `known` fields."""
        for one in fields(self):
            if one.name not in known and getattr(self, one.name) is not None:
                names = ", ".join(_written(name) for name in known)
                raise UserError(
                    f"{_written(one.name)} means nothing to a run of {recipe}; it takes {names}"
                )

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


def _written(name: str) -> str:
    return "PROMPT" if name == "prompt" else "--" + name.replace("_", "-")
