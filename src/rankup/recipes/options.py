"""Options of the recipes, and what they prepare before a rank is started. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..base.errors import UserError
from ..base.files import user_path
from ..base.flags import flag
from ..data.text import TokenFile, tokenize
from ..train.options import TrainOptions

TOKENS = "tokens"


@dataclass(frozen=True)
class LanguageModelOptions(TrainOptions):
    """`language-model`: text, vocabulary and size of the transformer."""

    train: str | None = flag(None, "training text; default the help topics that come with Python")
    valid: str | None = flag(None, "validation text; default the end of the training text")
    test: str | None = flag(None, "test text; default the end of the training text")
    vocab: Literal["word", "byte"] = flag("word", "lowercased words of the training text, or bytes")
    seq_len: int = flag(64, "tokens per sample", least=1)
    layers: int = flag(4, "transformer blocks", least=1)
    dim: int = flag(256, "width of the model", least=1)
    heads: int = flag(4, "attention heads", least=1)
    dropout: float = flag(0.1, "part of the activations dropped in training", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            fitting = [n for n in range(1, self.dim + 1) if self.dim % n == 0]
            near = sorted(fitting, key=lambda n: abs(n - self.heads))[:3]
            raise UserError(
                f"--dim {self.dim} cannot be cut into --heads {self.heads} equal parts; "
                f"heads that fit: {', '.join(map(str, sorted(near)))}"
            )
        if self.dropout >= 1:
            raise UserError(f"--dropout {self.dropout} would drop everything; give less than 1")

    @property
    def identity(self) -> dict[str, Any]:
        text = {name: getattr(self, name) for name in ("train", "valid", "test", "vocab")}
        return {**super().identity, **text, "seq_len": self.seq_len}

    def prepare(self, directory: Path) -> None:
        """Tokenise the text into the run directory, on the login node rather than on 64 ranks.

        Raises:
            UserError: a text is missing, empty, or shorter than one sample.
        """
        sources = {
            name: None if path is None else user_path(path, f"--{name}")
            for name, path in (("train", self.train), ("valid", self.valid), ("test", self.test))
        }
        self.check(tokenize(sources, self.vocab, directory / TOKENS))

    def check(self, tokens: TokenFile) -> None:
        """UserError when a split is too short to hold one sample."""
        for name, split in tokens.splits.items():
            if len(split) <= self.seq_len:
                raise UserError(
                    f"--seq-len {self.seq_len} is longer than the {name} text, which has "
                    f"{len(split)} tokens ({self.vocab}s); give a longer text"
                    + (f" or --seq-len {len(split) - 1} or less" if len(split) > 1 else "")
                )
