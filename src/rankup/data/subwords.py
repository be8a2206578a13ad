"""A small vocabulary of subwords, trained on the texts at hand (extra `hf`). No torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# T5's own numbers for them.
PAD, END, UNKNOWN = 0, 1, 2
SPECIAL = ("<pad>", "</s>", "<unk>")


def require(*modules: str) -> None:
    """UserError where one of these libraries of the extra `hf` is not here."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} not installed for {sys.executable}: pip install 'rankup[hf]'"
        )


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Byte-pair encoding (Sennrich et al., 2016) over bytes, so that no text is unknown to it.

    The same texts give the same vocabulary.

    Args:
        size: tokens at most, of which 256 are the bytes and 3 are `SPECIAL`, numbered from 0.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    found.train_from_iterator(texts, trainer)
    return found


def load(path: Path) -> Tokenizer:
    """A tokenizer out of its `tokenizer.json`.

    Raises:
        UserError: it is none.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # what panics in the library is no Exception
        raise UserError(f"{path} is no tokenizer of the `tokenizers` library ({error})") from None
