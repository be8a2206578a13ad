"""The perplexities that the recipe's has to be below, by the tokens of the recipe itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.recipes.text import tokenize
from tests.conftest import TextFiles

from .baselines import bigram, unigram


def _tokens(folder: Path, sources: dict[str, Path | None]) -> tuple[list[int], list[int]]:
    file = tokenize(sources, "word", folder)
    return file.splits["train"].tolist(), file.splits["valid"].tolist()


def test_counts_by_hand() -> None:
    """a b a c: p(b) = 1/4; b follows a once of two, of two kinds, and is one of three pairs."""
    assert unigram([0, 1, 0, 2], [1, 1]) == pytest.approx(4)
    chance = 0.25 / 2 + 0.75 * 2 / 2 * (1 / 3)
    assert bigram([0, 1, 0, 2], [0, 1]) == pytest.approx(1 / chance)


def test_pairs_tell_more_than_words(
    tmp_path: Path, data_root: Path | None, small_text: TextFiles
) -> None:
    root = data_root / "wikitext-2" if data_root else None
    if root is None or not root.is_dir():
        train, valid = _tokens(tmp_path, {"train": small_text.train, "valid": None, "test": None})
        assert 1 < unigram(train, valid) < 800
        return
    sources: dict[str, Path | None] = {n: root / f"{n}.txt" for n in ("train", "valid", "test")}
    train, valid = _tokens(tmp_path, sources)
    assert round(unigram(train, valid)) == 529
    assert round(bigram(train, valid)) == 262
