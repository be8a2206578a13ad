"""Text as tokens: words and bytes, held-out parts, and what is said of files that will not do."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from rankup.base.errors import UserError
from rankup.recipes.options import LanguageModelOptions
from rankup.recipes.text import TokenFile, open_tokens, tokenize
from rankup.recipes.vocabulary import UNKNOWN

Sources = dict[str, Path | None]


def _sources(root: Path, **texts: str | bytes) -> Sources:
    sources: Sources = {"train": None, "valid": None, "test": None}
    for name, text in texts.items():
        sources[name] = root / f"{name}.txt"
        data = text.encode() if isinstance(text, str) else text
        (root / f"{name}.txt").write_bytes(data)
    return sources


def _words_of(directory: Path, file: TokenFile, split: str) -> list[str]:
    vocabulary = (directory / "vocab.txt").read_text().splitlines()
    return [vocabulary[number] for number in file.splits[split]]


THREE = {
    "train": "The cat saw the dog.\nThe DOG saw <unk> things",
    "valid": "the cat\n\n  slept  ",
    "test": "things saw the",
}


def test_words_are_lowercased_and_foreign_ones_unknown(tmp_path: Path) -> None:
    file = tokenize(_sources(tmp_path, **THREE), "word", tmp_path / "t")
    train = ["the", "cat", "saw", "the", "dog.", "the", "dog", "saw", "<unk>", "things"]
    assert _words_of(tmp_path / "t", file, "train") == train
    assert _words_of(tmp_path / "t", file, "valid") == ["the", "cat", UNKNOWN]
    assert _words_of(tmp_path / "t", file, "test") == ["things", "saw", "the"]
    assert file.vocab_size == len(set(train))
    assert (tmp_path / "t" / "vocab.txt").read_text().splitlines()[:3] == [UNKNOWN, "the", "saw"]


@pytest.mark.slow
def test_more_words_than_two_bytes_can_number(tmp_path: Path) -> None:
    words = [f"w{n}" for n in range(70_000)]
    random.Random(0).shuffle(words)
    sources = _sources(tmp_path, train=" ".join(words), valid="w3", test="w69999 no")
    file = tokenize(sources, "word", tmp_path / "t")
    assert file.vocab_size == 70_001
    assert _words_of(tmp_path / "t", file, "train") == words
    assert _words_of(tmp_path / "t", file, "test") == ["w69999", UNKNOWN]


# --- parts that have no file


@pytest.mark.parametrize("vocab", ["word", "byte"])
@pytest.mark.parametrize("given_parts", [(), ("valid",), ("test",), ("valid", "test")])
def test_missing_parts_are_held_out_from_the_end(
    tmp_path: Path, vocab: str, given_parts: tuple[str, ...]
) -> None:
    words = [f"{n:04d}" for n in range(1000)]
    texts = {name: f"{name} 0001" for name in given_parts}
    sources = _sources(tmp_path, train=" ".join(words), **texts)
    file = tokenize(sources, vocab, tmp_path / "t")
    together = np.concatenate(
        [
            file.splits["train"],
            *[file.splits[name] for name in ("valid", "test") if name not in given_parts],
        ]
    )
    if vocab == "byte":
        assert bytes(together.astype(np.uint8)).decode() == " ".join(words)
    else:
        vocabulary = (tmp_path / "t" / "vocab.txt").read_text().splitlines()
        assert [vocabulary[number] for number in together] == words
        assert len(file.splits["train"]) == 1000 - 50 * (2 - len(given_parts))
        for name in given_parts:
            assert _words_of(tmp_path / "t", file, name) == [UNKNOWN, "0001"]


def test_without_files_there_is_pythons_own_english(tmp_path: Path) -> None:
    file = tokenize({"train": None, "valid": None, "test": None}, "word", tmp_path)
    assert len(file.splits["train"]) > 50_000
    assert {"the", "python", "statement"} <= set(_words_of(tmp_path, file, "valid"))
    assert len(file.splits["valid"]) == len(file.splits["test"]) > 1000


# --- what will not do


def _refusal(sources: Sources, directory: Path, vocab: str = "word") -> str:
    with pytest.raises(UserError) as caught:
        tokenize(sources, vocab, directory)
    return str(caught.value)


@pytest.mark.parametrize("vocab", ["word", "byte"])
@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_file_that_is_missing_empty_or_a_directory_is_named(
    tmp_path: Path, part: str, vocab: str
) -> None:
    for kind, said in {
        "missing": "does not exist",
        "empty": "empty",
        "folder": "is no regular file",
    }.items():
        root = tmp_path / kind
        root.mkdir()
        sources = _sources(root, train="a b", valid="a", test="b")
        path = sources[part] = root / "bad"
        if kind == "empty":
            path.touch()
        elif kind == "folder":
            path.mkdir()
        refusal = _refusal(sources, root / "t", vocab)
        assert f"--{part} {path}" in refusal
        assert said in refusal


@pytest.mark.parametrize("vocab", ["word", "byte"])
@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_text_without_a_word_is_refused_by_its_name(
    tmp_path: Path, part: str, vocab: Literal["word", "byte"]
) -> None:
    texts = {"train": "a b c d e", "valid": "a b c d e", "test": "a b c d e", part: " \n\t"}
    sources = _sources(tmp_path, **texts)
    words = {name: str(path) for name, path in sources.items()}
    with pytest.raises(UserError) as caught:
        LanguageModelOptions(**words, vocab=vocab, seq_len=4).prepare(tmp_path)  # type: ignore[arg-type]
    refusal = str(caught.value)
    assert part in refusal
    assert "complete token file" not in refusal


@pytest.mark.parametrize("part", ["train", "test"])
def test_what_is_not_utf_8_is_named_and_fits_as_bytes(tmp_path: Path, part: str) -> None:
    texts: dict[str, str | bytes] = {"train": "a b", "valid": "a", "test": "b"}
    sources = _sources(tmp_path, **{**texts, part: "größer".encode("latin-1")})
    refusal = _refusal(sources, tmp_path / "t")
    assert str(sources[part]) in refusal
    assert "UTF-8" in refusal
    assert "--vocab byte" in refusal
    assert len(tokenize(sources, "byte", tmp_path / "t").splits[part]) == 6


def test_valid_or_test_alone_are_refused(tmp_path: Path) -> None:
    assert "--train" in _refusal(_sources(tmp_path, valid="a"), tmp_path / "t")


# --- the token file


@pytest.mark.parametrize("damage", ["no list", "torn list", "no tokens", "cut", "odd", "longer"])
def test_a_torn_token_file_is_refused(tmp_path: Path, damage: str) -> None:
    directory = tmp_path / "t"
    tokenize(_sources(tmp_path, **THREE), "word", directory)
    tokens, about = directory / "tokens.bin", directory / "tokens.json"
    if damage == "no list":
        about.unlink()
    elif damage == "torn list":
        os.truncate(about, about.stat().st_size // 2)
    elif damage == "no tokens":
        tokens.unlink()
    else:
        by = {"cut": -4, "odd": -1, "longer": 2}[damage]
        os.truncate(tokens, tokens.stat().st_size + by)
    with pytest.raises(UserError, match="holds no complete token file") as caught:
        open_tokens(directory)
    assert str(directory) in str(caught.value)


def test_made_anew_over_an_interrupted_attempt(tmp_path: Path) -> None:
    sources = _sources(tmp_path, **THREE)
    whole = tokenize(sources, "word", tmp_path / "t")
    (tmp_path / "t" / "tokens.json").unlink()
    os.truncate(tmp_path / "t" / "tokens.bin", 6)
    again = tokenize(sources, "word", tmp_path / "t")
    assert again.splits["test"].tolist() == whole.splits["test"].tolist()
    assert json.loads((tmp_path / "t" / "tokens.json").read_text())["vocab"] == "word"
