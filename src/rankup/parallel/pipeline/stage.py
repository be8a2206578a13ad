"""What one rank holds of a model: its pruned links, each run of them as a module to call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...base.errors import UserError
from ...runtime.collectives import all_gather_object
from ...runtime.state import local
from ..mesh import group_among
from ..sharded import CONTAINERS
from .cut import Link


class StageModule(nn.Module):
    """A run of links, called one after the other.

    Sees the submodules that it uses as its own, so that `parameters()` and `fully_shard` find
    them; they stay part of the user's model under their true names.

    Args:
        index: place among the model's `count` stages.
        names: full names of the submodules used.
    """

    def __init__(self, model: nn.Module, links: Sequence[Link], index: int, count: int) -> None:
        super().__init__()
        self.index, self.count = index, count
        self.names = _names(model, links)
        for name in self.names:  # a name of its own, beside all that nn.Module has
            self.add_module(f"part/{name.replace('.', '/')}", model.get_submodule(name))
        self._calls = tuple(link.call for link in links)

    def forward(self, *args: Any) -> Any:
        values: Any = args
        for call in self._calls:
            values = call(*values) if isinstance(values, tuple) else call(values)
        return values

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


def carve(
    model: nn.Module, links: Sequence[Link], cuts: Sequence[range], held: Sequence[int]
) -> list[StageModule]:
    """Prune `model` in place to the stages of this rank, and return those as modules.

    What remains keeps its name: children of containers go without renumbering, other submodules
    become None. A buffer of the model itself stays everywhere. Two stages that share a parameter
    have a copy each, also on one rank; see `ties`.

    Args:
        cuts: links of each stage, from `cut`.
        held: the stages that this rank holds.

    Raises:
        UserError: a submodule is used by links of different stages.
    """
    _refuse_shared_modules(model, links, cuts)
    stages = [
        StageModule(model, [links[i] for i in cuts[index]], index, len(cuts)) for index in held
    ]
    _part(stages)
    kept = {name for stage in stages for name in stage.names}
    for link in links:
        for name in link.modules:
            inside = any(name.startswith(f"{other}.") for other in kept)
            if name not in kept and not inside and _exists(model, name):
                _remove(model, name)
    return stages


def _names(model: nn.Module, links: Sequence[Link]) -> tuple[str, ...]:
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    named = dict.fromkeys(name for link in links for name in link.modules if name in modules)
    # A module within another named one comes with it.
    return tuple(n for n in named if not any(n.startswith(f"{other}.") for other in named))


def _refuse_shared_modules(model: nn.Module, links: Sequence[Link], cuts: Sequence[range]) -> None:
    user: dict[nn.Module, tuple[int, str]] = {}
    for stage, cut in enumerate(cuts):
        for name in _names(model, [links[i] for i in cut]):
            for module in model.get_submodule(name).modules():
                if not any(True for _ in module.parameters(recurse=False)):
                    continue
                before, first = user.setdefault(module, (stage, name))
                if before != stage:
                    raise UserError(
                        f"pipeline stages {before} and {stage} both use the module {first}; give "
                        f"each a module of its own and tie their weights (b.weight = a.weight), "
                        f"or ask for fewer stages"
                    )


def _part(stages: Sequence[StageModule]) -> None:
    """Give stages on one rank a parameter each where they shared one."""
    owner: dict[nn.Parameter, int] = {}
    copied: dict[tuple[int, nn.Parameter], nn.Parameter] = {}
    for stage in stages:
        for module in stage.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if owner.setdefault(parameter, stage.index) == stage.index:
                    continue
                key = (stage.index, parameter)
                if key not in copied:
                    again = parameter.detach().clone()
                    copied[key] = nn.Parameter(again, parameter.requires_grad)
                    owner[copied[key]] = stage.index
                setattr(module, name, copied[key])


def _exists(model: nn.Module, name: str) -> bool:
    return any(name == found for found, _ in model.named_modules(remove_duplicate=False))


def _remove(model: nn.Module, name: str) -> None:
    path, _, child = name.rpartition(".")
    parent = model.get_submodule(path)
    if isinstance(parent, CONTAINERS):
        del parent._modules[child]
    else:
        setattr(parent, child, None)


# Parameters that several stages share, such as tied embeddings: each stage has a copy of its own.
# They start equal and stay equal, because all get the sum of their gradients before the
# optimizer's step.


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
        ways = [way for part in all_gather_object(ways, group) for way in part]
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
