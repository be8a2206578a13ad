"""Batches of articles: filled up little, each article once, counted without reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankup.data.orders import ByLength, Shuffled
from rankup.recipes import articles
from rankup.recipes.articles import Split
from rankup.recipes.summarization import IGNORED, Pairs
from rankup.recipes.vocabulary import Pieces
from rankup.train.plan import Place, Plan

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=60)


def _pairs(lengths: list[tuple[int, int]], by_length: bool = False) -> Pairs:
    """Article i is of tokens i + 3 alone."""
    table = np.array(lengths, np.int64)
    numbers = np.arange(len(table), dtype=np.uint16) + 3
    sources, targets = (np.repeat(numbers, column) for column in table.T)
    return Pairs(Split(sources, targets, table.cumsum(axis=0), table), 0, by_length)


@given(LENGTHS, st.booleans(), st.data())
def test_a_batch_is_its_articles_filled_up(
    lengths: list[tuple[int, int]], by_length: bool, data: st.DataObject
) -> None:
    pairs = _pairs(lengths, by_length)
    assert sorted(pairs.rows.tolist()) == list(range(len(lengths)))
    chosen = st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8)
    samples = torch.tensor(data.draw(chosen))
    source, target = pairs.batch(samples)
    for row, sample in enumerate(samples.tolist()):
        article = int(pairs.rows[sample])
        of_source, of_target = lengths[article]
        filled = source.shape[1] - of_source, target.shape[1] - of_target
        assert source[row].tolist() == [article + 3] * of_source + [0] * filled[0]
        assert target[row].tolist() == [article + 3] * of_target + [IGNORED] * filled[1]
    assert pairs.count(samples) == int((target != IGNORED).sum())
    empty = int((source == 0).sum() + (target == IGNORED).sum())
    assert np.isclose(pairs.padding([samples]), empty / (source.numel() + target.numel()))
    if by_length:
        assert np.all(np.diff([lengths[row][0] for row in pairs.rows]) >= 0)


def test_at_most_a_tenth_of_what_is_computed_fills_up(data_root: Path | None) -> None:
    """Of the real articles where they are here, else of Python's help topics."""
    path = data_root and data_root / "xsum" / "train.jsonl"
    real = path is not None and path.is_file()
    some = list(articles.read(path, "--train")) if path and real else articles.python_topics()
    tokenizer = Pieces.trained([one.summary for one in some], 2000)
    columns = [
        [min(len(ids) + 1, most) for ids in tokenizer.encode_many(texts)]
        for texts, most in zip(zip(*some, strict=True), (512, 150), strict=True)
    ]
    pairs = _pairs(list(zip(*columns, strict=True)))
    order = ByLength(pairs.keys, 0, 32)

    def padding(order: ByLength | Shuffled) -> float:
        plan = Plan(len(some), 32, 8, 0, order)
        steps = plan.steps(Place(), plan.steps_per_epoch)
        return pairs.padding(s.samples[p.start : p.stop] for s in steps for p in s.micro_batches)

    assert padding(order) <= 0.10
    assert padding(Shuffled(len(some), 0)) > 2 * padding(order)
