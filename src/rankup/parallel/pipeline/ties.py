"""Parameters that several pipeline stages share, such as tied embeddings.

Each stage has a copy of its own; they start equal and stay equal, because all get the sum of their
gradients before the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...base.errors import UserError
from ...runtime.state import local
from ..mesh import group_among
from .cut import Link


@dataclass(frozen=True)
class Tie:
    """One parameter under several names.

    Attributes:
        stages: the stages that use it, ascending.
        names: for each of them, what the parameter is called there; the first is its true name.
    """

    stages: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def canonical(self) -> str:
        return self.names[0]


def find_ties(model: nn.Module, links: Sequence[Link], cuts: Sequence[range]) -> list[Tie]:
    """The parameters that stages share, found on the whole model before it is pruned.

    A parameter with two names within one stage needs no care and is not among them.
    """
    holders: dict[nn.Parameter, dict[int, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        for stage, cut in enumerate(cuts):
            if any(_uses(links[i], name) for i in cut):
                holders.setdefault(parameter, {}).setdefault(stage, name)
    ties = []
    for stages in holders.values():
        if len(stages) > 1:
            order = sorted(stages)
            ties.append(Tie(tuple(order), tuple(stages[stage] for stage in order)))
    return ties


def _uses(link: Link, parameter: str) -> bool:
    return any(parameter.startswith(f"{module}.") for module in link.modules)


def copies(ties: Sequence[Tie], held: Sequence[int]) -> dict[str, str]:
    """Local name -> true name of the copies a rank holds that are not the first.

    They are drawn by their true name, and left out of gradient norms and checkpoints.

    Args:
        held: the stages that the rank holds.
    """
    return {
        name: tie.canonical
        for tie in ties
        for stage, name in zip(tie.stages[1:], tie.names[1:], strict=True)
        if stage in held
    }


class Ties:
    """Sums the gradients of shared parameters over the stages that hold them.

    Making one is a collective: call on all ranks of the world.

    Args:
        model: pruned; parameters are looked up by name at each sum.
        place: for each stage the place on the pp axis of the rank that holds it.
        lines: the global ranks of every group along the pp axis, the same list on all ranks.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        model: nn.Module,
        place: Sequence[int],
        lines: Sequence[Sequence[int]],
    ) -> None:
        self.model = model
        rank = dist.get_rank()
        here = next(line.index(rank) for line in map(list, lines) if rank in line)
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        # What this rank does: its own names of a shared parameter, and whom it shares it with.
        self.shared: list[tuple[Tie, tuple[str, ...], dist.ProcessGroup | None]] = []
        for tie in ties:
            places = tuple(sorted({place[stage] for stage in tie.stages}))
            if len(places) > 1 and places not in groups:
                groups[places] = group_among(
                    [[line[p] for p in places] for line in lines], "mesh_ties"
                )
            own = groups.get(places)
            names = tuple(
                name
                for stage, name in zip(tie.stages, tie.names, strict=True)
                if place[stage] == here
            )
            if names:
                self.shared.append((tie, names, own))
        self._checked = False

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Give each copy the sum of all copies' gradients; sharded ones part by part.

        Call on all ranks after the backward, before gradients are clipped.

        Raises:
            UserError: the copies are cut in different ways.
        """
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        for tie, names, group in self.shared:
            mine = [parameters[name] for name in names]
            if not mine[0].requires_grad:
                continue  # a gradient of zeros would let the optimizer decay what is frozen
            if not self._checked:
                _check_alike(tie, mine, group)
            total = torch.zeros_like(local(mine[0]))
            for parameter in mine:
                if parameter.grad is not None:
                    total += local(parameter.grad)
            if group is not None:
                dist.all_reduce(total, group=group)
            for parameter in mine:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                local(parameter.grad).copy_(total)
        self._checked = True


def _check_alike(
    tie: Tie, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None
) -> None:
    ways = [_way(parameter) for parameter in parameters]
    if group is not None:
        found: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
        dist.all_gather_object(found, ways, group=group)
        ways = [way for part in found for way in part]
    if len(set(ways)) > 1:
        raise UserError(
            f"{' and '.join(dict.fromkeys(tie.names))} are one parameter on several pipeline "
            f"stages, but are cut in different ways ({', '.join(dict.fromkeys(ways))}); give both "
            f"the same style in the tensor plan, or untie them"
        )


def _way(parameter: nn.Parameter) -> str:
    shape = tuple(local(parameter).shape)
    if isinstance(parameter, DTensor):
        return f"{shape} of {tuple(parameter.shape)}, {parameter.placements}"
    return f"{shape}"
