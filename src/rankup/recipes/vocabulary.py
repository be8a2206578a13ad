"""Tokenizers: words, bytes, or pieces of words. No torch.

A vocabulary makes numbers of a file and of a prompt alike, and text of numbers again. It lies
beside the tokens it has made: `vocab.txt` of words, `tokenizer.json` of pieces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..base.errors import UserError
from ..base.files import write_atomic

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

UNKNOWN = "<unk>"
BYTES = 256
PIECES = "tokenizer.json"
_WORDS = "vocab.txt"
_BLOCK = 1 << 20  # characters that are read at a time


class Vocabulary(Protocol):
    """Attributes: `size`, the number of tokens; `unit`, what one is, in the plural."""

    size: int
    unit: str

    def encode_file(self, path: Path) -> Iterator[Tokens]:
        """The tokens of a text, some at a time."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def unknown(self, text: str) -> list[str]:
        """Return the words of a text that it has no token for."""
        ...

    def write(self, directory: Path) -> None:
        """Write the file that `opened` reads."""
        ...


class Bytes:
    """Bytes are bytes."""

    size, unit = BYTES, "bytes"

    def encode_file(self, path: Path) -> Iterator[Tokens]:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                yield np.frombuffer(block, np.uint8).astype(np.uint16)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def unknown(self, text: str) -> list[str]:
        return []

    def write(self, directory: Path) -> None: ...


class Words:
    """Words between white space, lowercased; number 0 is any word that is not known."""

    unit = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.size = words, len(words)
        self._numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def of(cls, path: Path) -> Words:
        """Those of a text, the unknown word first, then by falling frequency."""
        counts: Counter[str] = Counter()
        for block in _text(path):
            counts.update(block.lower().split())
        counts.pop(UNKNOWN, None)
        return cls([UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))])

    def encode_file(self, path: Path) -> Iterator[Tokens]:
        for block in _text(path):
            yield np.array(self.encode(block), np.uint32)

    def encode(self, text: str) -> list[int]:
        return [self._numbers.get(word, 0) for word in text.lower().split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in tokens)

    def unknown(self, text: str) -> list[str]:
        return [word for word in text.lower().split() if word not in self._numbers]

    def write(self, directory: Path) -> None:
        write_atomic(directory / _WORDS, "\n".join(self.words) + "\n")


class Pieces:
    """Pieces of words, of a tokenizer of the package `tokenizers`."""

    unit = "pieces"

    def __init__(self, tokenizer: Tokenizer) -> None:
        # A file may have been saved with these on; a text is neither cut short nor filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @classmethod
    def trained(cls, texts: Iterable[str], size: int, special: Sequence[str] = ()) -> Pieces:
        """Byte-pair encoding of texts (Sennrich et al., 2016) over bytes (Radford et al., 2019).

        The same texts give the same vocabulary.

        Args:
            size: tokens, of which 256 are bytes; short texts give fewer.
            special: the first of them, which no text is made of.
        """
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(special),
            initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def read(cls, path: Path, option: str) -> Pieces:
        """Of a file as `Tokenizer.save` writes it.

        Raises:
            UserError: it is none, or has no tokens.
        """
        library = _library()
        try:
            found = cls(library.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # what panics in the library is no Exception
            raise UserError(
                f"{option} {path} is no file of the package tokenizers ({error}); give the "
                "tokenizer.json of a model, or what Tokenizer.save has written"
            ) from None
        if not found.size:
            raise UserError(f"{option} {path} knows no tokens; train it before")
        return found

    def encode_file(self, path: Path) -> Iterator[Tokens]:
        # Line by line, so that where a block ends makes no difference.
        for block in _text(path):
            lines = self.encode_many(block.splitlines(keepends=True))
            yield np.fromiter((token for line in lines for token in line), np.uint32)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [one.ids for one in found]

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def unknown(self, text: str) -> list[str]:
        return []

    def write(self, directory: Path) -> None:
        write_atomic(directory / PIECES, self._tokenizer.to_str())


def opened(directory: Path) -> Vocabulary:
    """The vocabulary that has made the tokens in a directory.

    Raises:
        UserError: it is not there, or damaged.
    """
    try:
        kind = json.loads((directory / "tokens.json").read_text())["vocab"]
        if kind == "byte":
            return Bytes()
        if kind == "word":
            return Words((directory / _WORDS).read_text(encoding="utf-8").split("\n")[:-1])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{directory} holds no vocabulary ({error})") from None
    return Pieces.read(directory / PIECES, "the run's")


def _library() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise UserError(
            "pieces of words (--vocab bpe, --tokenizer) are made by the package tokenizers, which "
            "is not here; pip install tokenizers"
        ) from None
    return tokenizers


def lines(path: Path) -> Iterator[str]:
    """Return the lines of a text, with their ends.

    Raises:
        UserError: it is not UTF-8.
    """
    return (line for block in _text(path) for line in block.splitlines(keepends=True))


def _text(path: Path) -> Iterator[str]:
    """A text, some thousand whole lines at a time."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            while lines := file.readlines(_BLOCK):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (byte {error.start} of a block: {error.reason}); "
            "convert it, or use --vocab byte"
        ) from None
