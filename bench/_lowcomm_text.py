"""The text of `lowcomm.py`, and what the simplest model of it reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankup.data.text import TokenFile, open_tokens
from rankup.recipes.options import TOKENS, LanguageModelOptions

_RARE = 10  # a word seen fewer times is unknown, to all alike; saves most of the time


def without_rare(words: Sequence[str], known: frozenset[str]) -> list[str]:
    """The words, with what is not known as one word."""
    return [word if word in known else "<unk>" for word in words]


def write_wikitext(source: Path, directory: Path, valid_words: int) -> dict[str, str]:
    """Tokenise WikiText-2 into `directory`; its files, by the options that name them.

    Args:
        valid_words: how much of the validation text is kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    texts = {n: (source / f"{n}.txt").read_text().lower().split() for n in ("train", "valid")}
    counts = Counter(texts["train"])
    known = frozenset(word for word, number in counts.items() if number >= _RARE)
    texts["valid"] = texts["valid"][:valid_words]
    texts["test"] = texts["valid"][:200]  # nobody looks at it
    files = {name: str(directory / f"{name}.txt") for name in texts}
    for name, words in texts.items():
        Path(files[name]).write_text(" ".join(without_rare(words, known)))
    LanguageModelOptions(train=files["train"], valid=files["valid"], test=files["test"]).prepare(
        directory
    )
    return files


def unigram_loss(directory: Path) -> float:
    """Validation loss per word, in nats, of the words' frequencies in the training text.

    Each word of the vocabulary is counted once more than it was seen.
    """
    file: TokenFile = open_tokens(directory / TOKENS)
    counts = np.bincount(file.splits["train"], minlength=file.vocab_size) + 1
    seen = np.bincount(file.splits["valid"][1:], minlength=file.vocab_size)
    chosen = seen > 0
    logs = np.log(counts[chosen] / counts.sum())
    return -float((seen[chosen] * logs).sum() / seen.sum())


def share_of_gain(loss: float, reference: float, unigram: float) -> float:
    """How much of the reference's gain over the unigram model a loss has."""
    return (unigram - loss) / (unigram - reference)
