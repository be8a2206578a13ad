"""`--dataset`: what was fetched for the project is used, and what was not is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankup.base.errors import UserError
from rankup.login.record import Item, Record, write
from rankup.recipes import find
from rankup.recipes.options import LanguageModelOptions
from tests.conftest import TextFiles


def _fetched(project: Path, text: TextFiles) -> None:
    paths = {"train.txt": text.train, "valid.txt": text.valid, "test.txt": text.test}
    items = [Item(n, "https://example.org", str(p), p.stat().st_size) for n, p in paths.items()]
    write(project, Record("dataset:wikitext-2", "2026-11-22T12:00:00+00:00", tuple(items)))


def test_the_texts_that_were_fetched(
    small_text: TextFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = LanguageModelOptions(dataset="wikitext-2", seq_len=16)
    with pytest.raises(UserError, match=r"not fetched .*: rankup fetch --dataset wikitext-2; or"):
        options.prepare(tmp_path / "run")
    _fetched(tmp_path, small_text)
    options.prepare(tmp_path / "run")
    by_hand = LanguageModelOptions(
        train=str(small_text.train), valid=str(small_text.valid), test=str(small_text.test)
    )
    by_hand.prepare(tmp_path / "other")
    ours, theirs = (tmp_path / name / "tokens" / "tokens.bin" for name in ("run", "other"))
    assert ours.read_bytes() == theirs.read_bytes()
    small_text.valid.unlink()
    with pytest.raises(UserError, match=r"valid.txt is gone; fetch it again: rankup fetch"):
        options.prepare(tmp_path / "run")
    _fetched(tmp_path, TextFiles(small_text.train, small_text.test, small_text.test))
    options.prepare(tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--dataset wikitext-2 --train a.txt", "--dataset wikitext-2 and --train both name"),
        ("--tokenizer a.json --vocab byte", "--tokenizer a.json and --vocab byte both say"),
        ("--vocab-size 300", "--vocab-size 300 is the size of --vocab bpe"),
        ("--tokenizer a.json --vocab-size 300", "--vocab-size 300 is the size of --vocab bpe"),
        ("--vocab bpe --vocab-size 256", "--vocab-size: 256 is too small, the least is 257"),
    ],
)
def test_options_that_contradict_each_other(words: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find("language-model").parse(words.split())


def test_a_tokenizer_that_is_not_there(tmp_path: Path) -> None:
    options = LanguageModelOptions(tokenizer=str(tmp_path / "gone.json"))
    with pytest.raises(UserError, match=r"--tokenizer .*gone.json is no file"):
        options.prepare(tmp_path)


def test_tiny_gives_way_to_what_is_said() -> None:
    recipe = find("language-model")
    tiny = recipe.parse(["--tiny"])
    assert (tiny.steps, tiny.layers, tiny.dim) == (30, 2, 64)
    other = recipe.parse(["--tiny", "--epochs", "1", "--dim", "32", "--layers", "4"])
    assert (other.steps, other.epochs, other.layers, other.dim) == (None, 1, 4, 32)
    assert recipe.parse([]).steps is None
