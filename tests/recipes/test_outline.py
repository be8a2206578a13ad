"""What is known of a recipe's model without its data is what a run has."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.recipes.options import TOKENS, LanguageModelOptions
from rankup.recipes.outline import vocabulary
from rankup.recipes.text import open_tokens
from tests.conftest import TextFiles


@pytest.mark.parametrize("vocab", ["word", "byte", "bpe"])
def test_the_vocabulary_is_that_of_a_run(small_text: TextFiles, tmp_path: Path, vocab: str) -> None:
    options = LanguageModelOptions(
        train=str(small_text.train),
        seq_len=16,
        vocab=vocab,  # type: ignore[arg-type]
        vocab_size=300 if vocab == "bpe" else None,
    )
    options.prepare(tmp_path)
    size, note = vocabulary(options)
    assert size == open_tokens(tmp_path / TOKENS).vocab_size
    assert f"a vocabulary of {size:,} " in note
