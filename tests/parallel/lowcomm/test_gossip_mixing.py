"""Gossip mixes, keeps the mean, and learns, with every codec and at any speed of its workers."""

from __future__ import annotations

import pytest
import torch

from rankup.parallel.lowcomm.gossip.mixing import Edge, NotFinite, Turns, base_weight, neighbours
from rankup.runtime.compress.codecs import make
from rankup.runtime.compress.names import parse

from .simulated import Crowd

# What a vector of numbers still differs by after so many steps, as part of what it was.
_CODECS = {"none": 1e-4, "bf16": 1e-4, "int8": 1e-3, "topk:0.1": 0.3}


@pytest.mark.parametrize("workers", [2, 5, 16, 33])
def test_neighbours_are_mutual_and_reach_all_in_few_rounds(workers: int) -> None:
    graph = {w: neighbours(w, workers) for w in range(workers)}
    for worker, others in graph.items():
        assert len({*others}) == len(others) <= 2 * workers.bit_length()
        assert worker not in others
        assert all(worker in graph[other] for other in others)
    reached = {0}
    for _ in range((workers - 1).bit_length()):
        reached |= {other for worker in reached for other in graph[worker]}
    assert len(reached) == workers


@pytest.mark.parametrize("workers", [2, 5, 64])
def test_the_graph_mixes_fast(workers: int) -> None:
    """The second largest eigenvalue of one exchange with all neighbours stays away from 1."""
    mixing = torch.zeros(workers, workers, dtype=torch.float64)
    for worker in range(workers):
        others = neighbours(worker, workers)
        for other in [worker, *others]:
            mixing[worker, other] = 1 / (len(others) + 1)
    second = torch.linalg.eigvalsh(mixing)[:-1].abs().max()
    assert second <= 1 - 0.9 / workers.bit_length()


def test_turns_answer_first_and_pass_over_who_is_busy() -> None:
    turns = Turns(0, 8)  # 1, 7, 2, 6, 4
    assert [turns.take({1, 2, 4, 6, 7}) for _ in range(6)] == [1, 7, 2, 6, 4, 1]
    assert turns.take({1, 2, 4, 6, 7}, {6}) == 6
    assert turns.take({1, 2, 4, 6, 7}) == 7
    assert turns.take({4}) == 4
    assert turns.take(()) is None


@pytest.mark.parametrize(
    ("codec", "workers"), [("none", 2), ("topk:0.1", 3), ("int8", 5), ("bf16", 8)]
)
def test_without_gradients_all_come_to_the_mean(codec: str, workers: int) -> None:
    crowd = Crowd(workers, 200, codec)
    start = torch.randn(workers, 200, generator=torch.Generator().manual_seed(0))
    _set(crowd, start)
    before = crowd.spread
    for _ in range(60):
        crowd.step()
    crowd.settle()
    assert crowd.spread < _CODECS[codec] * before
    assert torch.allclose(crowd.values.mean(0), start.mean(0), atol=1e-5)


def test_a_slow_worker_slows_nobody_and_comes_along() -> None:
    crowd = Crowd(4, 50, slow={1: 9})
    _set(crowd, torch.randn(4, 50, generator=torch.Generator().manual_seed(0)))
    before = crowd.spread
    for _ in range(300):
        crowd.step()
    assert crowd.spread < 1e-2 * before


def test_who_dies_is_left_out() -> None:
    crowd = Crowd(5, 50)
    _set(crowd, torch.randn(5, 50, generator=torch.Generator().manual_seed(0)))
    for _ in range(3):
        crowd.step()
    crowd.leave(2)
    for _ in range(100):
        crowd.step()
    assert crowd.spread < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "topk:0.02"])
def test_learns_what_no_worker_could_alone(codec: str) -> None:
    """Least squares whose rows lie apart: each worker sees its own directions alone."""
    generator = torch.Generator().manual_seed(0)
    size, workers = 40, 4
    wanted = torch.randn(size, generator=generator)
    rows = [torch.randn(12, size, generator=generator) for _ in range(workers)]
    crowd = Crowd(workers, size, codec)

    def loss(values: torch.Tensor) -> float:
        return float(torch.stack([((r @ (values - wanted)) ** 2).mean() for r in rows]).mean())

    first = loss(crowd.values.mean(0))
    for step in range(1200):
        lr = 0.01 / (1 + step / 400)
        with torch.no_grad():
            for model, row in zip(crowd.models, rows, strict=True):
                model[0].sub_(lr * 2 * row.T @ (row @ (model[0] - wanted)) / len(row))
        crowd.step()
    assert loss(crowd.values.mean(0)) < 0.02 * first
    for values in crowd.values:  # and each by itself is near
        assert loss(values) < 0.1 * first


def test_who_was_away_takes_the_others_values_and_gives_none() -> None:
    codec, start = make(parse("none")), torch.zeros(3)
    old, new = Edge(start, codec), Edge(start, codec)
    told = old.speak(torch.full((3,), -9.0), 0.5, behind=True)
    new.hear(told)
    assert new.to_answer
    assert not old.between_rounds
    old.hear(new.speak(torch.ones(3), 0.5))
    change, guided, _ = old.take()
    assert change is not None
    assert guided
    assert torch.equal(torch.full((3,), -9.0) + change, torch.ones(3))
    assert new.take() == (None, False, False)
    assert old.take() == (None, False, False)


@pytest.mark.parametrize(
    ("codec", "away", "seed"),
    [("none", {0, 2, 4}, 0), ("bf16", {1}, 3), ("int8", {1, 2}, 6), ("topk:0.1", {1, 2}, 3)],
)
def test_who_was_away_comes_to_the_others_and_moves_them_nowhere(
    codec: str, away: set[int], seed: int
) -> None:
    """Rounds are under way when they stop, and messages on the way when they come back."""
    crowd = Crowd(6, 200, codec, seed=seed)
    for _ in range(5 + seed):
        crowd.step()
    crowd.away |= away
    for _ in range(60):  # the others learn something
        with torch.no_grad():
            for worker in {*range(6)} - away:
                crowd.models[worker][0].add_(0.1)
        crowd.step()
    for worker in sorted(away):
        crowd.come_back(worker)
    for _ in range(200):
        crowd.step()
    crowd.settle()
    assert not any(mixer.behind for mixer in crowd.mixers)
    near = 0.6 if codec.startswith("topk") else 0.06  # of 6; rounding, and images that lag
    assert float((crowd.values - 6).abs().max()) < near


def test_where_all_stood_still_they_go_on_as_they_were() -> None:
    crowd = Crowd(4, 50)
    _set(crowd, torch.randn(4, 50, generator=torch.Generator().manual_seed(0)))
    for _ in range(3):
        crowd.step()
    crowd.away |= {0, 1, 2, 3}
    for worker in range(4):
        crowd.come_back(worker)
    for _ in range(100):
        crowd.step()
    assert not any(mixer.behind for mixer in crowd.mixers)
    assert crowd.spread < 1e-3


def test_what_is_not_finite_is_refused() -> None:
    codec, start = make(parse("none")), torch.zeros(3)
    one, other = Edge(start, codec), Edge(start, codec)
    message = one.speak(torch.tensor([1.0, float("nan"), 0.0]), 0.5)
    with pytest.raises(NotFinite):
        other.hear(message)
    assert other.between_rounds
    other.hear(Edge(start, codec).speak(start, 0.5))
    again = Edge(start, codec).speak(start, 0.5)
    with pytest.raises(ValueError, match="message 1 came where 2"):
        other.hear(again)


def test_large_compressions_move_in_small_steps() -> None:
    assert base_weight(parse("int8")) == 0.5
    assert base_weight(parse("topk:0.01")) == pytest.approx(0.05)


def _set(crowd: Crowd, values: torch.Tensor) -> None:
    with torch.no_grad():
        for model, value in zip(crowd.models, values, strict=True):
            model[0].copy_(value)
