"""A start-up check that the backend adds, averages and gathers as every layout relies on.

A backend that answers wrongly trains without an error and without learning: gloo before torch
2.11, say, took the average of `reduce_scatter` for a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from .collectives import ALL_GATHER, REDUCE_SCATTER, all_gather_object
from .hang.state import differing, fingerprint
from .log import print0
from .world import World


class _Case(NamedTuple):
    """One collective, and what it has to answer on this rank."""

    name: str
    call: Callable[[torch.Tensor, torch.Tensor], object]
    given: torch.Tensor
    expected: torch.Tensor
    average: bool = False


def probe(world: World) -> None:
    """Run each collective that layouts use once, on a few numbers. Call it on every rank.

    Costs milliseconds. In a group of one there is nothing to check. Every mean of rankup is a sum
    that is divided, so a backend that gives something else for `ReduceOp.AVG` is no error here:
    rank 0 prints a line for who calls it in a script of their own. One without it refuses by
    itself.

    Raises:
        RuntimeError: a wrong answer; names the backend, torch's version and what came.
    """
    if world.world_size == 1:
        return
    devices = {world.device.type: world.device}
    if "cpu" in str(dist.get_backend_config()) or dist.get_backend() != "nccl":
        devices["cpu"] = torch.device("cpu")  # votes and objects go over it beside NCCL
    # All calls first: who stopped at the first wrong answer would leave the others waiting.
    wrong: list[str] = []
    averages: list[str] = []
    for device in devices.values():
        for case in _cases(world.rank, world.world_size, device):
            if text := _wrong(case, device):
                (averages if case.average else wrong).append(text)
    if wrong:
        raise RuntimeError("; ".join(wrong))
    for text in averages:
        print0(f"rankup: {text}", flush=True)


def same_code(world: World) -> None:
    """Compare what the ranks run. Call it on every rank, once; costs two small collectives.

    Raises:
        RuntimeError: on every rank, where Python, torch, rankup or the script differ; names what
            differs and on which ranks.
    """
    if world.world_size == 1:
        return
    found = differing(all_gather_object((world.node, fingerprint())))
    if found:
        raise RuntimeError(
            f"the ranks run different code: {found}; give every node the same environment and "
            "the same checkout"
        )


def _cases(rank: int, size: int, device: torch.device) -> list[_Case]:
    """Rank r gives r+1 at its own place and multiples beside it, so a mixed-up order shows too."""
    row = torch.arange(1.0, size + 1, device=device)  # one number of each rank's part
    mine = row * (rank + 1)
    total = size * (size + 1) / 2
    part = row[rank : rank + 1] * total
    own = torch.full((1,), rank + 1.0, device=device)
    reduce, scatter, op = _all_reduce, _reduce_scatter, dist.ReduceOp
    return [
        _Case("all_reduce(SUM)", reduce(op.SUM), mine, row * total),
        _Case("reduce_scatter(SUM)", scatter(op.SUM), mine, part),
        _Case("all_gather", getattr(dist, ALL_GATHER), own, row),
        _Case("all_reduce(AVG)", reduce(op.AVG), mine, row * total / size, True),
        _Case("reduce_scatter(AVG)", scatter(op.AVG), mine, part / size, True),
    ]


def _all_reduce(op: dist.ReduceOp.RedOpType) -> Callable[[torch.Tensor, torch.Tensor], object]:
    def call(out: torch.Tensor, given: torch.Tensor) -> object:
        return dist.all_reduce(out.copy_(given), op=op)

    return call


def _reduce_scatter(op: dist.ReduceOp.RedOpType) -> Callable[[torch.Tensor, torch.Tensor], object]:
    def call(out: torch.Tensor, given: torch.Tensor) -> object:
        return getattr(dist, REDUCE_SCATTER)(out, given, op=op)

    return call


def _wrong(case: _Case, device: torch.device) -> str:
    """What is wrong with one collective; empty when it answers as it should."""
    backend = dist.get_backend() if device.type == "cuda" else _cpu_backend()
    who = f"{case.name} on backend {backend} of torch {torch.__version__}"
    out = torch.full_like(case.expected, -1.0)
    try:
        case.call(out, case.given)
    except (RuntimeError, ValueError, TypeError) as error:
        return "" if case.average else f"{who} failed: {error}"
    # A sum of small whole numbers is exact; a mean is so up to one rounding.
    if torch.allclose(out, case.expected, rtol=1e-6, atol=0.0):
        return ""
    advice = (
        "rankup divides sums and is not concerned; a script that asks for it would be"
        if case.average
        else "Training on it would be wrong too: use another torch or backend"
    )
    return (
        f"{who} is wrong on rank {dist.get_rank()} of {dist.get_world_size()}: expected "
        f"{case.expected.tolist()}, got {out.tolist()}. {advice}"
    )


def _cpu_backend() -> str:
    return "gloo" if "cpu:gloo" in str(dist.get_backend_config()) else str(dist.get_backend())
