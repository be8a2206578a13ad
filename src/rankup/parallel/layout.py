"""The layout of a run: the sizes of the mesh's five axes. No torch here.

    pp            pipeline stages: each rank holds a run of the model's layers
    dp_replicate  copies of the model, each computing other micro-batches
    dp_shard      ranks that share one copy: each holds a part of every parameter
    cp            ranks that share each sequence, and one copy as well
    tp            ranks that share each matrix product

Rank numbers run through the last axis fastest, so that ranks of one tensor-parallel group, which
talk most, are neighbours on one node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from ..base import gone
from ..base.errors import UserError

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
STRATEGIES = ("ddp", "fsdp", "hsdp", "tp", "pp", "3d", "local-sgd", "diloco")
# Copies that train apart: each may itself be shared by several ranks.
SELDOM = ("local-sgd", "diloco")
# What a person calls an axis: the flags of `rankup run`.
FLAG = {"pp": "--pp", "dp_replicate": "--dp", "dp_shard": "--shard", "cp": "--cp", "tp": "--tp"}


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes; their product is the world size."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return (self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp)

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes)

    @property
    def data_size(self) -> int:
        """Groups of ranks that compute different micro-batches."""
        return self.dp_replicate * self.dp_shard

    @property
    def shard_size(self) -> int:
        """Ranks over which each parameter is cut: all of a copy that hold the same layers."""
        return self.dp_shard * self.cp

    @property
    def copy(self) -> Layout:
        """Of one copy of the model alone."""
        return replace(self, dp_replicate=1)

    @property
    def only_replicas(self) -> bool:
        """Whether every rank holds the whole model, as under DDP or alone."""
        return self.pp == self.shard_size == self.tp == 1

    def coordinates(self, rank: int) -> tuple[int, int, int, int, int]:
        """Where `rank` stands on each axis, in the order of `AXES`."""
        found = []
        for size in reversed(self.sizes):
            rank, here = divmod(rank, size)
            found.append(here)
        pp, replicate, shard, cp, tp = reversed(found)
        return pp, replicate, shard, cp, tp

    def data_rank(self, rank: int) -> int:
        """Which of the `data_size` parts of a global batch `rank` computes."""
        _, replicate, shard, _, _ = self.coordinates(rank)
        return replicate * self.dp_shard + shard

    def shard_rank(self, rank: int) -> int:
        """The number, of `shard_size`, of the part of a parameter that `rank` holds."""
        _, _, shard, cp, _ = self.coordinates(rank)
        return shard * self.cp + cp

    def __str__(self) -> str:
        named = [f"{FLAG[a][2:]} {n}" for a, n in zip(AXES, self.sizes, strict=True) if n > 1]
        return " x ".join(named) or "one rank"


def choose(
    world_size: int,
    per_node: int,
    strategy: str | None = None,
    *,
    dp: int | None = None,
    shard: int | None = None,
    cp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    fits: Callable[[Layout], bool] = lambda layout: True,
) -> Layout:
    """The layout that was asked for, with the sizes that were left open filled in.

    A strategy alone says it all: `ddp` copies the model to every rank, `fsdp` shares it among all,
    `hsdp` shares it within a node and copies it over nodes, `tp` cuts matrices within a node, `pp`
    makes every rank a pipeline stage, and `3d` is tensor 2 x pipeline 2 with the rest sharded.
    `local-sgd` and `diloco` copy the model to every rank, too.
    Given sizes go before; what then remains of the world goes to data parallelism, sharded under
    `fsdp` and `3d`, else copied.

    Args:
        per_node: ranks on each node.
        fits: whether the model can be split so; what cannot is not proposed.

    Raises:
        UserError: the sizes do not make up the world; names those that would.
    """
    given = {"pp": pp, "dp_replicate": dp, "dp_shard": shard, "cp": cp, "tp": tp}
    asked = {axis: size for axis, size in given.items() if size is not None}
    if strategy is not None and strategy not in STRATEGIES:
        gone.refuse("--strategy", strategy)
        raise UserError(f"unknown strategy {strategy!r}; known are: {', '.join(STRATEGIES)}")
    for axis, size in asked.items():
        if size < 1:
            raise UserError(f"{FLAG[axis]} {size} is no number of ranks; give 1 or more")
    _refuse_contradiction(strategy, asked)
    sizes = {**_usual(strategy, asked, world_size, per_node), **asked}
    rest = "dp_shard" if strategy in ("fsdp", "3d") else "dp_replicate"
    if rest in sizes and rest not in asked:
        del sizes[rest]
    known = math.prod(sizes.values())
    if rest not in sizes and world_size % known == 0:
        sizes[rest] = world_size // known
    layout = Layout(**sizes)
    if layout.world_size != world_size:
        raise UserError(_impossible(layout, world_size, strategy, fits))
    return layout


def _usual(
    strategy: str | None, asked: dict[str, int], world_size: int, per_node: int
) -> dict[str, int]:
    """What a strategy's name alone means for the axes that were not given."""
    left = max(1, world_size // max(1, math.prod(asked.values())))
    near = math.gcd(left, max(1, per_node))  # as many as a node holds, where that comes out
    if strategy == "hsdp" and "dp_shard" not in asked:
        if "dp_replicate" in asked:
            return {"dp_shard": left}
        # On one node there is nothing to copy over: two copies, where they come out.
        return {"dp_shard": near if near < left or left % 2 or left < 4 else left // 2}
    if strategy == "tp" and "tp" not in asked:
        return {"tp": near}
    if strategy == "pp" and "pp" not in asked:
        return {"pp": left}
    if strategy == "3d":
        return {axis: 2 for axis in ("tp", "pp") if axis not in asked}
    return {}


def _refuse_contradiction(strategy: str | None, asked: dict[str, int]) -> None:
    foreign = {
        "ddp": ("dp_shard", "cp", "tp", "pp"),
        "fsdp": ("dp_replicate", "tp", "pp"),
        "hsdp": ("tp", "pp"),
        "tp": ("pp",),
        "pp": ("tp",),
    }.get(strategy or "", ())
    for axis in foreign:
        if asked.get(axis, 1) > 1:
            raise UserError(
                f"--strategy {strategy} and {FLAG[axis]} {asked[axis]} contradict each other: "
                f"leave --strategy out, and the sizes alone say how the model is split"
            )


def _impossible(
    layout: Layout, world_size: int, strategy: str | None, fits: Callable[[Layout], bool]
) -> str:
    named_sizes = zip(AXES, layout.sizes, strict=True)
    product = " x ".join(f"{FLAG[a][2:]} {n}" for a, n in named_sizes if n > 1 or a != "cp")
    near = nearest_layouts(layout, world_size, fits=fits)
    options = " or ".join(
        " ".join(f"{FLAG[a]} {n}" for a, n in zip(AXES, found.sizes, strict=True) if n > 1)
        or "--dp 1"
        for found in near
    )
    named = f"--strategy {strategy} on {world_size} ranks: " if strategy else ""
    return (
        f"{named}{product} is {layout.world_size} ranks, and there are {world_size}; "
        f"nearest that come out: {options}; or another number of ranks "
        f"(a multiple of {layout.pp * layout.cp * layout.tp})"
    )


def nearest_layouts(
    layout: Layout,
    world_size: int,
    number: int = 3,
    fits: Callable[[Layout], bool] = lambda layout: True,
) -> list[Layout]:
    """Layouts of `world_size` ranks whose sizes differ least, by ratio, from those of `layout`.

    Sequences are shared only where they are in `layout`: few models can.
    """

    def distance(other: Layout) -> tuple[float, tuple[int, ...]]:
        ratios = (abs(math.log(a / b)) for a, b in zip(other.sizes, layout.sizes, strict=True))
        return sum(ratios), other.sizes

    # To try a layout on a model may take a moment, so only as many are as have to be.
    every = [found for found in _all(world_size) if found.cp == 1 or layout.cp > 1]
    return list(islice(filter(fits, sorted(every, key=distance)), number))


def _all(world_size: int) -> Iterator[Layout]:
    def cuts(number: int, parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (number,)
            return
        for size in range(1, number + 1):
            if number % size == 0:
                for rest in cuts(number // size, parts - 1):
                    yield (size, *rest)

    for sizes in cuts(world_size, len(AXES)):
        yield Layout(*sizes)


def crossing(layout: Layout, per_node: int) -> str | None:
    """A warning when the ranks of a tensor-parallel group lie on several nodes, else None."""
    if layout.tp <= 1 or per_node % layout.tp == 0:
        return None
    fitting = max(n for n in range(1, layout.tp + 1) if per_node % n == 0 and layout.tp % n == 0)
    return (
        f"--tp {layout.tp} spans nodes of {per_node} ranks: each layer then waits for the network "
        f"several times; --tp {fitting} stays on a node"
    )
