"""Random states: alike on all ranks, apart within a pass over a training loader."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

import rankup
from rankup.runtime.world import World
from tests.pool import RankPool

Draw = tuple[float, float, float]


def draw() -> Draw:
    """A number from each generator."""
    return random.random(), float(np.random.random()), float(torch.rand(()))


class Drawing(Dataset[torch.Tensor]):
    """Draws in `__getitem__`, as augmentation does."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, *draw()], dtype=torch.float64)


class Shuffled(BatchSampler):
    """Batches of 2 in an order that NumPy and Python draw."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n // 2

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.permutation(self.n).tolist()
        for start in range(0, self.n, 2):
            batch = order[start : start + 2]
            random.shuffle(batch)
            yield batch


@contextmanager
def may_start_processes() -> Iterator[None]:
    """The pool's own processes are daemons, which may not start any."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = True


def _drawn_by_each(world: World) -> Draw:
    return draw()


def test_setup_gives_all_ranks_one_state(ranks: RankPool) -> None:
    """The pool seeds each of its processes in another way."""
    assert len(set(ranks.run(3, _drawn_by_each))) == 1


def _exhausted(loader: Any) -> list[Draw]:
    return [draw() for _ in loader]


def _left_early(loader: Any) -> list[Draw]:
    drawn = []
    for _ in loader:
        drawn.append(draw())
        if len(drawn) == 2:
            break
    return drawn


def _closed(loader: Any) -> list[Draw]:
    batches = (batch for batch in loader)
    drawn = [draw() for _ in (next(batches), next(batches))]
    batches.close()
    return drawn


def _never_begun(loader: Any) -> list[Draw]:
    iter(loader)
    return []


def _failed(loader: Any) -> list[Draw]:
    drawn = []
    try:
        for _ in loader:
            drawn.append(draw())
            raise ArithmeticError
    except ArithmeticError:
        return drawn
    return []


def _zipped(loader: Any) -> list[Draw]:
    other = DataLoader(Drawing(12), batch_size=4, shuffle=True)
    return [draw() for _ in zip(loader, rankup.shard(other, train=True), strict=False)]


def _nested(loader: Any) -> list[Draw]:
    drawn = []
    for _ in loader:
        drawn.append(draw())
        drawn += [draw() for _ in rankup.shard(DataLoader(Drawing(4), batch_size=2), train=True)]
        drawn.append(draw())
    return drawn


def _restarted(loader: Any) -> list[Draw]:
    batches, drawn = iter(loader), []
    for _ in range(8):
        try:
            next(batches)
        except StopIteration:
            batches = iter(loader)
            next(batches)
        drawn.append(draw())
    return drawn


WAYS: list[Callable[[Any], list[Draw]]] = [
    _exhausted,
    _left_early,
    _closed,
    _never_begun,
    _failed,
    _zipped,
    _nested,
    _restarted,
]


def _passes(world: World, workers: int) -> list[tuple[list[Draw], Draw]]:
    """What is drawn within two passes of each way, and behind each."""
    torch.manual_seed(world.rank)  # a script that seeds each rank in another way
    more: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    found = []
    with may_start_processes():
        loader = DataLoader(Drawing(12), batch_size=4, shuffle=True, num_workers=workers, **more)
        for way in WAYS:
            for _ in range(2):
                drawn = way(rankup.shard(loader, train=True))
                found.append((drawn, draw()))
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_apart_within_a_pass_and_alike_behind_it(ranks: RankPool, workers: int) -> None:
    one, other = ranks.run(2, _passes, workers)
    for (mine, behind), (theirs, behind_theirs) in zip(one, other, strict=True):
        assert len(mine) == len(theirs)
        assert behind == behind_theirs
    for kind in range(3):
        within = [drawn[kind] for rank in (one, other) for found, _ in rank for drawn in found]
        assert len(set(within)) == len(within), "no draw comes twice"


def _behind(world: World) -> tuple[list[Draw], list[Draw], list[float]]:
    """What is drawn within three passes to their ends, behind each, and behind batches by hand."""
    torch.manual_seed(0)
    loader = rankup.shard(DataLoader(Drawing(12), batch_size=4, shuffle=True), train=True)
    within, behind = [], []
    for _ in range(3):
        within += [draw() for _ in loader for _ in range(5)]
        behind += [draw() for _ in range(6)]
    by_hand = []
    for _ in range(3):
        x = rankup.deal(lambda: torch.rand(4))
        by_hand += [*x.tolist(), *torch.rand(8).tolist()]
    return within, behind, by_hand


def test_what_is_drawn_behind_a_pass_repeats_nothing(ranks: RankPool) -> None:
    """Going back to where rank 0 began it would."""
    (mine, behind, hand), (theirs, behind_theirs, other_hand) = ranks.run(2, _behind)
    assert behind == behind_theirs
    for kind in range(3):
        drawn = [numbers[kind] for numbers in (*mine, *theirs, *behind)]
        assert len(set(drawn)) == len(drawn)
    by_hand = [*hand, *other_hand]
    assert len(set(by_hand)) == len(by_hand)


def _augmented(world: World, workers: int, seeded: bool) -> list[list[float]]:
    """What the data set drew for each sample of two epochs."""

    def seed_alike(worker: int) -> None:
        random.seed(worker)
        np.random.seed(worker)
        torch.manual_seed(worker)

    more: dict[str, Any] = {}
    if workers:
        more = {"multiprocessing_context": "fork", "num_workers": workers}
        more["worker_init_fn"] = seed_alike if seeded else None
    loader = DataLoader(Drawing(8), batch_size=4, shuffle=True, **more)
    with may_start_processes():
        return [row.tolist() for _ in range(2) for batch in rankup.shard(loader) for row in batch]


@pytest.mark.parametrize(("workers", "seeded"), [(0, False), (2, False), (2, True)])
def test_augmentation_is_each_ranks_own(ranks: RankPool, workers: int, seeded: bool) -> None:
    found = ranks.run(2, _augmented, workers, seeded)
    for epoch in (slice(0, 4), slice(4, 8)):
        rows = [row for rank in found for row in rank[epoch]]
        assert sorted(row[0] for row in rows) == list(range(8))
        for kind in (1, 2, 3):
            assert len({row[kind] for row in rows}) == 8
    if not seeded:
        for kind in (1, 2, 3):
            assert len({row[kind] for rank in found for row in rank}) == 16, "epochs differ"


def _orders(world: World) -> tuple[list[list[float]], Draw, list[list[float]], Draw]:
    """Two epochs of a sampler that draws from NumPy and Python, sharded and as on one GPU."""
    found: list[Any] = []
    for make in (lambda loader: rankup.shard(loader, train=True), lambda loader: loader):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        loader = make(DataLoader(Plain(6), batch_sampler=Shuffled(6)))
        found.append([batch.tolist() for _ in range(2) for batch in loader])
        found.append(draw())
    return tuple(found)  # type: ignore[return-value]


class Plain(Dataset[int]):
    """0, 1, 2 …"""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


def test_an_order_from_any_generator_is_that_of_one_process(ranks: RankPool) -> None:
    """And where nothing else is drawn, so is all that comes behind it."""
    found = ranks.run(2, _orders)
    for parts, behind, whole, behind_whole in found:
        assert behind == behind_whole
        assert len(parts) == len(whole) == 6
    joined = [[*a, *b] for a, b in zip(found[0][0], found[1][0], strict=True)]
    assert joined == found[0][2]


def _evaluated(world: World) -> tuple[int, Draw]:
    """An evaluation that draws, of which rank 1 has a batch more than rank 0."""
    batches = 0
    for _ in rankup.shard(DataLoader(Drawing(5), batch_size=2), train=False):
        draw()
        batches += 1
    return batches, draw()


def test_alike_behind_an_uneven_evaluation(ranks: RankPool) -> None:
    (few, one), (more, other) = ranks.run(2, _evaluated)
    assert few < more
    assert one == other


def _evaluated_within(world: World) -> tuple[list[Draw], Draw]:
    drawn = []
    for _ in rankup.shard(DataLoader(Drawing(4), batch_size=2), train=True):
        drawn.append(draw())
        with torch.no_grad():
            evaluated = rankup.shard(DataLoader(Drawing(3), batch_size=2, shuffle=True))
            drawn += [draw() for _ in evaluated]
        drawn.append(draw())
    return drawn, draw()


def test_an_evaluation_within_a_pass_stays_apart(ranks: RankPool) -> None:
    (one, behind), (other, behind_other) = ranks.run(2, _evaluated_within)
    assert behind == behind_other
    assert not {*one} & {*other}


def _by_hand(split: str) -> tuple[str, torch.Tensor]:
    return split, torch.tensor([[*draw()] for _ in range(4)], dtype=torch.float64)


def _dealt(world: World) -> dict[str, list[Any]]:
    """Steps on batches drawn by hand, with noise, evaluations between them, and a pass behind."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    model = rankup.wrap(torch.nn.Linear(3, 1))
    found: dict[str, list[Any]] = {"rows": [], "noise": [], "alike": []}
    for step in range(4):
        split, rows = rankup.deal(_by_hand, "train")
        assert split == "train"
        found["rows"].append(rows.tolist())
        found["noise"] += [draw(), draw()]
        if step % 2:
            model.eval()
            found["alike"] += [draw(), _by_hand("val")[1].tolist()]
            model.train()
    with torch.no_grad():
        found["rows"].append(rankup.deal(_by_hand, split="val")[1].tolist())
    found["alike"].append(draw())
    rankup.deal(_by_hand, "train")
    list(rankup.shard(DataLoader(Plain(4), batch_size=2), train=True))
    found["alike"].append(draw())
    return found


def test_apart_behind_a_batch_drawn_by_hand(ranks: RankPool) -> None:
    [alone] = ranks.run(1, _dealt)
    one, other = ranks.run(2, _dealt)
    assert one["alike"] == other["alike"]
    noise = one["noise"] + other["noise"]
    assert len(set(noise)) == len(noise)
    assert [len(rows) for rows in one["rows"]] == [2] * 5
    assert one["rows"][0] + other["rows"][0] == alone["rows"][0], "as one process draws"
    drawn = [tuple(row) for found in (one, other) for rows in found["rows"] for row in rows]
    assert len(set(drawn)) == len(drawn), "a batch is drawn once, and cut"


def _deprecated(world: World) -> Draw:
    torch.manual_seed(world.rank)
    random.seed(world.rank)
    np.random.seed(world.rank)
    rankup.same_random()
    return draw()


def test_same_random_is_still_there(ranks: RankPool) -> None:
    assert len(set(ranks.run(2, _deprecated))) == 1


def _held_by_a_circle(world: World) -> list[Draw]:
    """What is drawn behind a pass, before which Python has collected another on one rank alone."""
    circles: list[Any] = []
    drawn = []
    gc.disable()
    try:
        for _ in range(2):
            batches = iter(rankup.shard(DataLoader(Drawing(12), batch_size=4), train=True))
            next(batches)
            if world.rank == 0:
                circles.append(batches)
            del batches
            for _ in rankup.shard(DataLoader(Drawing(12), batch_size=4, shuffle=True), train=True):
                draw()
            drawn.append(draw())
        circles.clear()
        drawn.append(draw())
    finally:
        gc.enable()
    return drawn


def test_a_pass_that_one_rank_has_not_let_go_yet_parts_nobody(ranks: RankPool) -> None:
    """One that was left early hangs in a circle until Python collects it, each rank's by itself."""
    one, other = ranks.run(2, _held_by_a_circle)
    assert one == other
    assert len({*one}) == 3
