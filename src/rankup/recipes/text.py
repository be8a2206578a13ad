"""Text as one memory-mapped file of tokens, made once before the job starts. No torch.

tokens/tokens.bin    train, valid and test one after another, little-endian uint16 or uint32
       tokens.json   type, lengths of the three, vocabulary size; written last
       vocab.txt     one word per line, for `--vocab word`
       tokenizer.json   pieces of words, for `--vocab bpe` and `--tokenizer`
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UserError
from ..base.files import write_atomic, write_json
from . import tokenized
from .tokenized import Joined, Shards
from .vocabulary import Bytes, Pieces, Tokens, Vocabulary, Words, lines

BPE_SIZE = 8192
Text = Tokens | Shards
_HELD_OUT = 0.05  # of a training text without valid or test files, for each of them


@dataclass(frozen=True)
class TokenFile:
    """Tokens of the three splits, mapped and read when touched.

    Attributes:
        vocab_size: number of different tokens.
        splits: by name, 1-d arrays of token numbers, or several; `valid.NAME` where
            there are several for valid.
        end: the token behind each document, where there is one.
    """

    vocab_size: int
    splits: Mapping[str, Text | Joined]
    end: int | None = None


def tokenize(
    sources: dict[str, Path | None],
    vocab: str,
    directory: Path,
    size: int = BPE_SIZE,
    tokenizer: Path | None = None,
) -> TokenFile:
    """Make `directory` from text files, or from the text that comes with Python when none is given.

    Words are what stands between white space, lowercased; the vocabulary is that of the training
    text and everything else is one unknown word. Bytes are bytes, and pieces are those of a
    tokenizer. Where valid or test has no file, a twentieth of the training text each is held out
    from its end.

    Args:
        sources: of train, valid and test; several texts for valid are called `valid.NAME`.
        vocab: word, byte, or bpe.
        size: of the byte-pair encoding that is trained on the training text.
        tokenizer: a file of the package `tokenizers`, in the place of one that is trained.

    Raises:
        UserError: a file is missing, empty or (but for bytes) not UTF-8.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if sources["train"] is None:
        if any(sources.values()):
            raise UserError("--valid and --test need a --train file beside them")
        text = python_text()
        own = directory / "python-topics.txt"
        write_atomic(own, text)
        sources = {**sources, "train": own}
    texts = {"train": sources["train"], **sources}  # that comes first
    paths = {name: path for name, path in texts.items() if path is not None}
    for name, path in paths.items():
        _check(name, path)
    made = vocab if tokenizer is None else "bpe"
    words = _vocabulary(paths["train"], vocab, size, tokenizer)
    words.write(directory)
    if words.size == 1 and vocab == "word":
        raise UserError(f"--train {paths['train']} holds no words; give a text, or --vocab byte")
    kind = np.dtype(np.uint16 if words.size <= 1 << 16 else np.uint32)
    lengths = _write(
        directory / "tokens.bin",
        {name: words.encode_file(path) for name, path in paths.items()},
        kind,
    )
    held = [name for name in ("valid", "test") if not _given(name, paths)]
    part = int(lengths["train"] * _HELD_OUT)
    lengths["train"] -= part * len(held)
    # Held-out parts follow the training part in the file; a given one comes after them.
    order = ["train", *held, *[name for name in paths if name != "train"]]
    starts, start = {}, 0
    for name in order:
        length = lengths.get(name, part)
        starts[name] = [start, start + length]
        start += length
    write_json(
        directory / "tokens.json",
        {"dtype": kind.name, "vocab_size": words.size, "vocab": made, "splits": starts},
    )
    return open_tokens(directory)


def open_tokens(directory: Path) -> TokenFile:
    """Map what `tokenize` made.

    Raises:
        UserError: the directory holds no complete token file.
    """
    try:
        about = json.loads((directory / "tokens.json").read_text())
        if "parts" in about:
            return TokenFile(about["vocab_size"], tokenized.opened(about), about["end"])
        path = directory / "tokens.bin"
        tokens = np.memmap(path, dtype=about["dtype"], mode="r")
        stop = max(end for _, end in about["splits"].values())
        if len(tokens) != stop:
            raise ValueError(f"{len(tokens)} tokens instead of {stop}")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{directory} holds no complete token file ({error}); remove it and start the run anew"
        ) from None
    splits = {name: tokens[start:end] for name, (start, end) in about["splits"].items()}
    return TokenFile(about["vocab_size"], splits)


def end_of(directory: Path) -> int | None:
    """Return the token behind each document of what `tokenize` made, where there is one."""
    end: int | None = json.loads((directory / "tokens.json").read_text()).get("end")
    return end


def python_text() -> str:
    """Half a megabyte of English that every Python has: the help topics of its language."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _given(split: str, paths: Mapping[str, Path]) -> bool:
    return any(name.partition(".")[0] == split for name in paths)


def _check(name: str, path: Path) -> None:
    option, _, own = name.partition(".")
    given = f"--{option} {own}{':' * bool(own)}{path}"
    if not path.is_file():
        what = "does not exist" if not path.exists() else "is no regular file"
        raise UserError(f"{given} {what}; give a text file")
    if path.stat().st_size == 0:
        raise UserError(f"{given} is empty; give a text of some length")
    if not os.access(path, os.R_OK):
        raise UserError(f"{given}: no permission to read it")


def _vocabulary(train: Path, vocab: str, size: int, tokenizer: Path | None) -> Vocabulary:
    if tokenizer is not None:
        return Pieces.read(tokenizer, "--tokenizer")
    if vocab == "bpe":
        return Pieces.trained(lines(train), size)
    return Words.of(train) if vocab == "word" else Bytes()


def _write(path: Path, encoded: dict[str, Iterator[Tokens]], kind: np.dtype[Any]) -> dict[str, int]:
    """Write all splits into one file; number of tokens of each."""
    lengths = {}
    with path.open("wb") as file:
        for name, pieces in encoded.items():
            start = file.tell()
            for piece in pieces:
                file.write(piece.astype(kind, copy=False).tobytes())
            lengths[name] = (file.tell() - start) // kind.itemsize
    return lengths
