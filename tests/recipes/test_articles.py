"""Articles and summaries: what is read, cut to length, written and mapped again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from rankup.base.errors import UserError
from rankup.recipes import articles
from rankup.recipes.article_options import END, SPECIAL
from rankup.recipes.articles import SPLITS, Article
from rankup.recipes.vocabulary import Pieces

pytest.importorskip("tokenizers")

TEXTS = [
    Article(f"The {n} cats of the house sat still. " * (n + 1), f"{n} cats") for n in range(20)
]


def _trained(texts: Iterable[str], size: int) -> Pieces:
    return Pieces.trained(texts, size, SPECIAL, prefix_space=True)


def _file(path: Path, *lines: object) -> Path:
    path.write_bytes(
        b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines)
    )
    return path


def test_lines_are_articles_and_empty_ones_are_none(tmp_path: Path) -> None:
    line = {"id": 7, "document": "Häuser “x”", "summary": "Y"}
    path = _file(tmp_path / "a.jsonl", line, b"", b"  ", line, b"")
    assert list(articles.read(path, "--train")) == [Article("Häuser “x”", "Y")] * 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{not json", "no JSON"),
        (b"\xff\xfe\x00", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        ({"document": "x"}, "has not both"),
        (["document", "summary"], "has not both"),
        (b"null", "has not both"),
        ({"document": "x", "summary": 3}, "no texts"),
        (b'{"document": "\\ud800", "summary": "x"}', "no JSON"),
    ],
)
def test_a_line_that_is_no_article_is_named(tmp_path: Path, line: object, why: str) -> None:
    path = _file(tmp_path / "a.jsonl", {"document": "x", "summary": "y"}, line)
    with pytest.raises(UserError, match=f"--valid .*line 2: .*{why}"):
        list(articles.read(path, "--valid"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--train .*nothing\.jsonl does not exist"):
        list(articles.read(tmp_path / "nothing.jsonl", "--train"))
    with pytest.raises(UserError, match="cannot be read"):
        list(articles.read(tmp_path, "--train"))


def test_arrow_files_of_datasets_are_read_without_it(tmp_path: Path) -> None:
    names = ["x-train-00000-of-00002.arrow", "x-train-00001-of-00002.arrow", "x-test.arrow"]
    for name, some in zip(names, (TEXTS[:8], TEXTS[8:12], TEXTS[12:]), strict=True):
        table = pa.table(
            {
                "id": range(len(some)),
                **dict(zip(Article._fields, zip(*some, strict=True), strict=True)),
            }
        )
        with pa.ipc.new_stream(tmp_path / name, table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
    assert list(articles.of_arrow(tmp_path, "train")) == TEXTS[:12]
    assert list(articles.of_arrow(tmp_path, "test")) == TEXTS[12:]
    with pytest.raises(UserError, match="no validation split"):
        list(articles.of_arrow(tmp_path, "validation"))
    (tmp_path / "x-validation.arrow").write_bytes(b"torn")
    with pytest.raises(UserError, match="no articles"):
        list(articles.of_arrow(tmp_path, "validation"))


def test_parts_that_are_not_given_are_held_out_from_the_end() -> None:
    every = dict.fromkeys(SPLITS)
    found = articles.splits({"train": TEXTS, "valid": None, "test": None}, every)
    assert [found[name] for name in SPLITS] == [TEXTS[:16], TEXTS[16:18], TEXTS[18:]]
    found = articles.splits({"train": TEXTS, "valid": TEXTS[:3], "test": None}, every)
    assert [found[name] for name in SPLITS] == [TEXTS[:18], TEXTS[:3], TEXTS[18:]]


def test_so_many_of_the_first_are_taken_and_none_is_in_two_parts() -> None:
    most = {"train": 5, "valid": 1, "test": 2}
    found = articles.splits({"train": TEXTS, "valid": None, "test": None}, most)
    assert [found[name] for name in SPLITS] == [TEXTS[:5], TEXTS[16:17], TEXTS[18:]]
    found = articles.splits({"train": TEXTS, "valid": TEXTS[3:], "test": TEXTS}, most)
    assert [found[name] for name in SPLITS] == [TEXTS[:5], TEXTS[3:4], TEXTS[:2]]


def test_articles_without_words_are_left_out_and_too_few_are_refused() -> None:
    empty = [Article(" ", "x"), Article("x", "\n")]
    every = dict.fromkeys(SPLITS)
    given = {"train": [*empty, *TEXTS], "valid": TEXTS, "test": TEXTS}
    assert articles.splits(given, every)["train"] == TEXTS
    with pytest.raises(UserError, match="no test article has both"):
        articles.splits({**given, "test": empty}, every)
    with pytest.raises(UserError, match=r"a tenth .* for --valid, and there are 5"):
        articles.splits({"train": TEXTS[:5], "valid": None, "test": None}, every)


def test_tokens_are_cut_to_length_end_with_the_end_and_make_the_text_again(tmp_path: Path) -> None:
    tokenizer = _trained((text for article in TEXTS for text in article), 400)
    about = {
        "vocab_size": 400,
        "end": END,
        "prefix": "",
        "source_len": 30,
        "target_len": 9,
    }
    parts = {"train": TEXTS[:10], "valid": TEXTS[10:], "test": TEXTS[5:6]}
    articles.encode(parts, tokenizer, tmp_path, about)
    assert articles.about(tmp_path) == about
    again = Pieces.read(tmp_path / "tokenizer.json", "")
    for name, some in parts.items():
        split = articles.open_split(tmp_path, name)
        assert len(split.lengths) == len(some)
        for row, article in enumerate(some):
            source, target = split.source(row).tolist(), split.target(row).tolist()
            assert split.lengths[row].tolist() == [len(source), len(target)]
            assert source[-1] == target[-1] == END
            assert len(source) <= 30
            assert again.decode(target, special=False).strip() == article.summary
            said = again.decode(source, special=False).strip()
            assert article.document.strip() == said or (
                len(source) == 30 and article.document.startswith(said)
            )
    assert articles.summaries(tmp_path, "valid") == [article.summary for article in TEXTS[10:]]


def test_what_is_not_whole_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="start the run anew"):
        articles.about(tmp_path)
    tokenizer = _trained(["a b"], 300)
    about = {"vocab_size": 300, "end": 1, "prefix": "", "source_len": 30, "target_len": 9}
    articles.encode({"train": TEXTS}, tokenizer, tmp_path, about)
    torn = (tmp_path / "train-source.npy").read_bytes()
    for data in (torn[:-6], b"", b"x" * 500):
        (tmp_path / "train-source.npy").write_bytes(data)
        with pytest.raises(UserError, match="holds no train articles"):
            articles.open_split(tmp_path, "train")


def test_the_same_texts_give_the_same_vocabulary() -> None:
    texts = [article.document for article in articles.python_topics()]
    assert len(texts) > 50
    one, two = (_trained(iter(texts), 500) for _ in range(2))
    assert one.encode_many(texts) == two.encode_many(texts)
    assert one.decode(range(3)) == "".join(SPECIAL)
    odd = "naïve 雪 \U0001f600\tx"
    assert one.decode(one.encode(odd)).strip() == odd, "no text is unknown"
