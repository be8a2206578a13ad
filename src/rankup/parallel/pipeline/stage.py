"""What one rank holds of a model: its pruned links, each run of them as a module to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ...base.errors import UserError
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
