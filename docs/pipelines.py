"""Time lines of pipeline schedules, worked out: what `pictures.py` draws of them."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD, BACKWARD = 1.0, 2.0  # a backward is two matrix products for the forward's one


@dataclass(frozen=True)
class Op:
    """The forward or the backward of one chunk in one stage; stage s is on rank s % ranks."""

    stage: int
    chunk: int
    forward: bool


Span = tuple[Op, float, float]


def one_by_one(ranks: int, chunks: int) -> list[list[Op]]:
    """One chunk at a time."""
    return [[Op(r, c, way) for c in range(chunks) for way in (True, False)] for r in range(ranks)]


def gpipe(ranks: int, chunks: int) -> list[list[Op]]:
    """All forwards, then all backwards (Huang et al., 2019)."""
    return [[Op(r, c, way) for way in (True, False) for c in range(chunks)] for r in range(ranks)]


def one_f_one_b(ranks: int, chunks: int) -> list[list[Op]]:
    """One forward, one backward, after as many forwards as there are stages to come."""
    return [
        _alternate(
            [Op(r, c, True) for c in range(chunks)],
            [Op(r, c, False) for c in range(chunks)],
            ranks - r - 1,
        )
        for r in range(ranks)
    ]


def interleaved(ranks: int, chunks: int, rounds: int) -> list[list[Op]]:
    """1F1B where each rank holds `rounds` shorter stages (Narayanan et al., 2021)."""

    def nth(rank: int, n: int, forward: bool) -> Op:
        turn = n // ranks % rounds
        turn = turn if forward else rounds - 1 - turn
        return Op(turn * ranks + rank, n // (ranks * rounds) * ranks + n % ranks, forward)

    number = chunks * rounds
    return [
        _alternate(
            [nth(rank, n, True) for n in range(number)],
            [nth(rank, n, False) for n in range(number)],
            2 * (ranks - rank - 1) + (rounds - 1) * ranks,
        )
        for rank in range(ranks)
    ]


def _alternate(forwards: list[Op], backwards: list[Op], ahead: int) -> list[Op]:
    ahead = min(ahead, len(forwards))
    order = forwards[:ahead]
    for n, backward in enumerate(backwards):
        order += [*forwards[ahead + n : ahead + n + 1], backward]
    return order


def timed(orders: list[list[Op]], rounds: int = 1) -> list[list[Span]]:
    """When each rank does what: everything as soon as what it needs is there.

    Args:
        rounds: stages per rank; a stage then takes that fraction of the time.
    """
    last = len(orders) * rounds - 1
    ended: dict[Op, float] = {}
    spans: list[list[Span]] = [[] for _ in orders]
    while any(len(done) < len(order) for done, order in zip(spans, orders, strict=True)):
        before = len(ended)
        for done, order in zip(spans, orders, strict=True):
            if len(done) == len(order):
                continue
            op = order[len(done)]
            needs = [ended.get(need) for need in _needs(op, last)]
            if None in needs:
                continue
            start = max([done[-1][2] if done else 0.0, *(t for t in needs if t is not None)])
            end = start + (FORWARD if op.forward else BACKWARD) / rounds
            ended[op] = end
            done.append((op, start, end))
        assert len(ended) > before, "the orders wait for each other"
    return spans


def _needs(op: Op, last: int) -> list[Op]:
    if op.forward:
        return [Op(op.stage - 1, op.chunk, True)] if op.stage else []
    if op.stage == last:
        return [Op(op.stage, op.chunk, True)]
    return [Op(op.stage, op.chunk, True), Op(op.stage + 1, op.chunk, False)]


def bubble(spans: list[list[Span]]) -> float:
    """The part of all ranks' time in which nothing is computed."""
    end = max(stop for row in spans for _, _, stop in row)
    busy = sum(stop - start for row in spans for _, start, stop in row)
    return 1 - busy / (end * len(spans))
