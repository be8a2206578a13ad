"""Batches made ahead of the loop are the ones it would have got without."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rankup.data.draw import Draw
from rankup.train.feed import Feed
from rankup.train.task import Batch


class _Plain:
    """A split that makes a batch when it is asked for one."""

    def __len__(self) -> int:
        return 100

    def count(self, samples: torch.Tensor) -> int:
        return len(samples)

    def batch(self, samples: torch.Tensor) -> Batch:
        return (samples * 10,)


class _MadeAhead(_Plain):
    """A split that is two batches ahead, and whose batches depend on the epoch."""

    def __init__(self) -> None:
        self.made: list[tuple[int, list[int]]] = []
        self.now = 0
        self.left = False

    def ahead(self, draws: Iterator[Draw]) -> Iterator[tuple[Draw, Batch]]:
        held: list[tuple[Draw, Batch]] = []
        try:
            for draw in draws:
                self.made.append((draw.epoch, list(draw)))
                held.append((draw, self._batch(draw)))
                if len(held) > 2:
                    yield held.pop(0)
            while held:
                yield held.pop(0)
        finally:
            self.left = True

    def once(self, draw: Draw) -> Batch:
        self.now += 1
        return self._batch(draw)

    def _batch(self, draw: Draw) -> Batch:
        return (torch.from_numpy(draw.samples) * 10 + draw.epoch + 1000 * draw.seed,)


COMING = [(epoch, torch.arange(2) + 2 * place) for epoch in range(2) for place in range(4)]


def test_what_was_announced_is_made_ahead_and_once() -> None:
    split = _MadeAhead()
    feed = Feed(split, seed=3)
    feed.begin(iter(COMING))
    assert not split.made, "nothing is made before it is asked for"
    for number, (epoch, samples) in enumerate(COMING):
        (batch,) = feed.batch(epoch, samples)
        assert batch.tolist() == [int(s) * 10 + epoch + 3000 for s in samples]
        assert len(split.made) == min(len(COMING), number + 3)
    assert split.now == 0
    assert split.made == [(epoch, samples.tolist()) for epoch, samples in COMING]


def test_what_was_not_announced_is_made_now_and_what_comes_stays() -> None:
    split = _MadeAhead()
    feed = Feed(split, seed=0)
    feed.begin(iter(COMING))
    other = torch.tensor([7, 9])
    assert feed.batch(1, other)[0].tolist() == [71, 91]
    assert feed.once(*COMING[0])[0].tolist() == [0, 10]
    assert split.now == 2
    for epoch, samples in COMING:
        assert feed.batch(epoch, samples)[0].tolist() == [int(s) * 10 + epoch for s in samples]
    assert split.now == 2
    assert feed.batch(*COMING[0])[0].tolist() == [0, 10], "behind the end, too"


def test_leaving_lets_go_of_what_is_under_way() -> None:
    split = _MadeAhead()
    feed = Feed(split, seed=0)
    feed.begin(iter(COMING))
    feed.batch(*COMING[0])
    feed.close()
    assert split.left
    assert feed.batch(*COMING[1])[0].tolist() == [20, 30]


def test_a_plain_split_is_asked_as_before() -> None:
    feed = Feed(_Plain(), seed=0)
    feed.begin(iter(COMING))
    assert feed.batch(1, torch.tensor([4]))[0].tolist() == [40]
    assert feed.once(1, torch.tensor([5]))[0].tolist() == [50]
