"""Vocabularies: pieces of words are made as the others are, and make text of numbers again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from rankup.base.errors import UserError
from rankup.recipes.text import tokenize
from rankup.recipes.vocabulary import Bytes, Pieces, Words, lines, opened

# No white space of its own that a block could end in, accents, and words that come often.
TEXT = "the cat saw the other cat, étage by étage \n\n  the end of the\tcat\u2028and more" * 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def _tokens(vocabulary: Bytes | Words | Pieces, path: Path) -> list[int]:
    return [int(token) for block in vocabulary.encode_file(path) for token in block]


def test_pieces_are_learned_and_give_the_text_back(file: Path, tmp_path: Path) -> None:
    pieces = Pieces.trained(lines(file), 300)
    assert 257 <= pieces.size <= 300
    tokens = _tokens(pieces, file)
    assert pieces.decode(tokens) == TEXT
    assert len(tokens) < 0.7 * len(TEXT.encode())
    foreign = "Ω dog\n"  # every byte is a piece, so nothing is unknown
    assert pieces.decode(pieces.encode(foreign)) == foreign
    assert Pieces.trained(lines(file), 300).encode(TEXT) == pieces.encode(TEXT)


@pytest.mark.parametrize("vocab", ["word", "byte", "bpe"])
def test_a_run_finds_its_vocabulary_again(file: Path, tmp_path: Path, vocab: str) -> None:
    sources: dict[str, Path | None] = {"train": file, "valid": file, "test": file}
    made = tokenize(sources, vocab, tmp_path / "t", size=280)
    again = opened(tmp_path / "t")
    assert again.size == made.vocab_size
    expected = " ".join(TEXT.split()) if vocab == "word" else TEXT
    assert again.decode(made.splits["train"].tolist()) == expected
    assert np.array_equal(made.splits["valid"], again.encode(TEXT))
    assert again.unknown("the zebra") == (["zebra"] if vocab == "word" else [])


def test_any_tokenizer_file(file: Path, tmp_path: Path) -> None:
    """Also one that was saved with what would cut a text short."""
    pieces = Pieces.trained(lines(file), 290)
    foreign = Tokenizer.from_str(json.dumps(json.loads(_saved(pieces, tmp_path))))
    foreign.enable_truncation(3)
    foreign.enable_padding(length=50)
    foreign.save(str(tmp_path / "theirs.json"))
    sources: dict[str, Path | None] = {"train": file, "valid": file, "test": file}
    made = tokenize(sources, "word", tmp_path / "t", tokenizer=tmp_path / "theirs.json")
    assert opened(tmp_path / "t").decode(made.splits["train"].tolist()) == TEXT
    assert made.vocab_size == pieces.size


def _saved(pieces: Pieces, directory: Path) -> str:
    pieces.write(directory)
    return (directory / "tokenizer.json").read_text()


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}', "[" * 10_000, "\x00\xff"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "no.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=r"--tokenizer .*no\.json is no file of the package"):
        Pieces.read(path, "--tokenizer")
    with pytest.raises(UserError, match="gone"):
        Pieces.read(tmp_path / "gone", "--tokenizer")


def test_a_tokenizer_that_knows_nothing_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "empty.json"))
    with pytest.raises(UserError, match=r"empty\.json knows no tokens; train it before"):
        Pieces.read(tmp_path / "empty.json", "--tokenizer")


def test_a_damaged_vocabulary_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no vocabulary"):
        opened(tmp_path)
    (tmp_path / "tokens.json").write_text('{"vocab": "bpe"}')
    with pytest.raises(UserError, match=r"tokenizer\.json is no file"):
        opened(tmp_path)
