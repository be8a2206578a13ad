"""Text as one memory-mapped file of tokens, made once before the job starts. No torch.

tokens/tokens.bin    train, valid and test one after another, little-endian uint16 or uint32
       tokens.json   type, lengths of the three, vocabulary size; written last
       vocab.txt     one word per line, for `--vocab word`
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from ..base.files import write_atomic, write_json

SPLITS = ("train", "valid", "test")
UNKNOWN = "<unk>"
_HELD_OUT = 0.05  # of a training text without valid or test files, for each of them
_LINES_AT_ONCE = 20_000

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


@dataclass(frozen=True)
class TokenFile:
    """Tokens of the three splits, mapped and read when touched.

    Attributes:
        vocab_size: number of different tokens.
        splits: by name, 1-d arrays of token numbers.
    """

    vocab_size: int
    splits: dict[str, Tokens]


def tokenize(sources: dict[str, Path | None], vocab: str, directory: Path) -> TokenFile:
    """Make `directory` from text files, or from the text that comes with Python when none is given.

    Words are what stands between white space, lowercased; the vocabulary is that of the training
    text and everything else is one unknown word. Bytes are bytes. Where valid or test has no file,
    a twentieth of the training text each is held out from its end.

    Raises:
        UserError: a file is missing, empty or (words) not UTF-8.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if sources["train"] is None:
        if any(sources.values()):
            raise UserError("--valid and --test need a --train file beside them")
        text = _python_text()
        own = directory / "python-topics.txt"
        write_atomic(own, text)
        sources = {**sources, "train": own}
    paths = {name: path for name, path in sources.items() if path is not None}
    for name, path in paths.items():
        _check(name, path)
    if vocab == "byte":
        encoded = {name: _encode_bytes(path) for name, path in paths.items()}
        size = 256
    else:
        words = _vocabulary(paths["train"])
        write_atomic(directory / "vocab.txt", "\n".join(words) + "\n")
        numbers = {word: number for number, word in enumerate(words)}
        encoded = {name: _encode_words(path, numbers) for name, path in paths.items()}
        size = len(words)
    if size == 1:
        raise UserError(f"--train {paths['train']} holds no words; give a text, or --vocab byte")
    lengths = _write(directory / "tokens.bin", encoded, np.uint16 if size <= 1 << 16 else np.uint32)
    kind = "uint16" if size <= 1 << 16 else "uint32"
    held = [name for name in ("valid", "test") if name not in paths]
    part = int(lengths["train"] * _HELD_OUT)
    lengths["train"] -= part * len(held)
    # Held-out parts follow the training part in the file; a given one comes after them.
    order = ["train", *held, *[name for name in ("valid", "test") if name in paths]]
    starts, start = {}, 0
    for name in order:
        length = lengths.get(name, part)
        starts[name] = [start, start + length]
        start += length
    write_json(
        directory / "tokens.json",
        {"dtype": kind, "vocab_size": size, "vocab": vocab, "splits": starts},
    )
    return open_tokens(directory)


def open_tokens(directory: Path) -> TokenFile:
    """Map what `tokenize` made.

    Raises:
        UserError: the directory holds no complete token file.
    """
    try:
        about = json.loads((directory / "tokens.json").read_text())
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


def _python_text() -> str:
    """Half a megabyte of English that every Python has: the help topics of its language."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _check(name: str, path: Path) -> None:
    if not path.is_file():
        what = "does not exist" if not path.exists() else "is no regular file"
        raise UserError(f"--{name} {path} {what}; give a text file")
    if path.stat().st_size == 0:
        raise UserError(f"--{name} {path} is empty; give a text of some length")
    if not os.access(path, os.R_OK):
        raise UserError(f"--{name} {path}: no permission to read it")


def _vocabulary(path: Path) -> list[str]:
    """The words of a text, the unknown word first, then by falling frequency."""
    counts: Counter[str] = Counter()
    for words in _words(path):
        counts.update(words)
    counts.pop(UNKNOWN, None)
    return [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))]


def _words(path: Path) -> Iterator[list[str]]:
    """Lowercased words of a text, some thousand lines at a time."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            while lines := file.readlines(_LINES_AT_ONCE * 50):
                yield "".join(lines).lower().split()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start} of a block: {error.reason}); "
            "convert it, or use --vocab byte"
        ) from None


def _encode_words(path: Path, numbers: dict[str, int]) -> Callable[[], Iterator[Tokens]]:
    def pieces() -> Iterator[Tokens]:
        for words in _words(path):
            yield np.fromiter((numbers.get(w, 0) for w in words), np.uint32, len(words))

    return pieces


def _encode_bytes(path: Path) -> Callable[[], Iterator[Tokens]]:
    def pieces() -> Iterator[Tokens]:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                yield np.frombuffer(block, np.uint8).astype(np.uint16)

    return pieces


def _write(
    path: Path, encoded: dict[str, Callable[[], Iterator[Tokens]]], dtype: type
) -> dict[str, int]:
    """Write all splits into one file; number of tokens of each."""
    lengths = {}
    with path.open("wb") as file:
        for name in SPLITS:
            if name in encoded:
                start = file.tell()
                for piece in encoded[name]():
                    file.write(piece.astype(dtype, copy=False).tobytes())
                lengths[name] = (file.tell() - start) // np.dtype(dtype).itemsize
    return lengths
