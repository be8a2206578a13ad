"""A recipe's model without its data: its vocabulary, and what it cannot begin with."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..base import amounts
from ..base.errors import UserError
from ..base.files import user_path
from .options import LanguageModelOptions
from .text import BPE_SIZE, tokenize
from .tokenized import folders
from .vocabulary import BYTES, Pieces

# A text up to this size is read for its words in a few seconds.
_READ = 32_000_000
_ASSUMED = 50_000


def refuse_other_model(options: LanguageModelOptions) -> None:
    """Build the model on meta, where it is known without data.

    Raises:
        UserError: `--freeze` matches no parameter, or the weights of `--init` are of another model.
    """
    from ..parallel.initial import on_meta
    from ..train.start import freeze
    from . import llama_weights, lora
    from .language_model import model_of

    model = on_meta(lambda: model_of(options, 2), 0)
    freeze(model, options.freeze)
    if options.init is not None:
        weights = {n: p for n, p in model.named_parameters() if not lora.is_adapter(n)}
        llama_weights.refuse_other(weights, user_path(options.init, "--init"))


def vocabulary(options: LanguageModelOptions) -> tuple[int, str]:
    """Number of different tokens, and how it is known."""
    if options.llama is not None and options.llama.vocab_size:
        size = options.llama.vocab_size
        return size, f"a vocabulary of {size:,} pieces, as the model's config.json says"
    train = None if options.train is None else user_path(options.train, "--train")
    if train is not None and (train.is_dir() or options.mix is not None):
        size = next(iter(folders(train, options.mix).values())).vocab_size
        return size, f"a vocabulary of {size:,} tokens, those of {train}"
    if options.vocab == "byte":
        return BYTES, f"a vocabulary of {BYTES} bytes"
    if options.tokenizer is not None:
        file = user_path(options.tokenizer, "--tokenizer")
        size = Pieces.read(file, "--tokenizer").size
        return size, f"a vocabulary of {size:,} pieces, those of {file.name}"
    if options.vocab == "bpe":
        size = options.vocab_size or BPE_SIZE
        return size, f"a vocabulary of {size:,} pieces; a short text gives fewer"
    try:
        text = options.sources()["train"]
    except UserError as error:
        return _assumed(str(error))
    if text is not None and not text.is_file():
        return _assumed(f"{text} is not here")
    if text is not None and text.stat().st_size > _READ:
        return _assumed(f"{text} has {amounts.size(text.stat().st_size)}")
    with tempfile.TemporaryDirectory(prefix="rankup-plan-") as folder:
        found = tokenize({"train": text, "valid": None, "test": None}, "word", Path(folder))
    of = "the help topics of Python" if text is None else text.name
    return found.vocab_size, f"a vocabulary of {found.vocab_size:,} words, those of {of}"


def _assumed(why: str) -> tuple[int, str]:
    return _ASSUMED, f"a vocabulary of {_ASSUMED:,} words is assumed, since {why}"
