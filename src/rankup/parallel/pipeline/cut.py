"""Where to cut a model into pipeline stages: its links, what each costs, and the best cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...base.errors import UserError

_HOW = """\
give it a method that lists the steps of its forward, each with the modules that it uses:

    def chain(self):
        return [
            (self.embed, ["tokens"]),
            *((block, [f"blocks.{i}"]) for i, block in enumerate(self.blocks)),
            (self.finish, ["norm", "head"]),
        ]

where each step takes what the one before returned; or make the model an nn.Sequential"""


@dataclass(frozen=True)
class Link:
    """One step of a model's forward; stages are cut between links.

    Attributes:
        call: takes what the link before returned, a tensor or a tuple of tensors, positionally.
        modules: full names of the submodules that it uses; a buffer of the model itself may be
            named too.
    """

    name: str
    call: Callable[..., Any]
    modules: tuple[str, ...]


def links(model: nn.Module) -> list[Link]:
    """The steps that a model's forward is the composition of.

    They come from the model's method `chain()`, or are the children of an `nn.Sequential`.

    Raises:
        UserError: the model has neither, or its links leave a parameter out; says what to write.
    """
    chain = getattr(model, "chain", None)
    if callable(chain):
        found = [_link(model, call, names) for call, names in chain()]
    elif isinstance(model, nn.Sequential):
        # Each place counts, also where one module stands in several; `named_children` skips those.
        children = model._modules.items()
        found = [Link(name, child, (name,)) for name, child in children if child is not None]
    else:
        raise UserError(f"{type(model).__name__} cannot be cut into pipeline stages: {_HOW}")
    _check_cover(model, found)
    return found


def _link(model: nn.Module, call: Callable[..., Any], names: Sequence[str]) -> Link:
    if isinstance(call, nn.Module):
        name = next((n for n, module in model.named_modules() if module is call), "")
    else:
        name = getattr(call, "__name__", "")
    return Link(name or "+".join(names), call, tuple(names))


def _check_cover(model: nn.Module, found: list[Link]) -> None:
    kind = type(model).__name__
    if not found:
        raise UserError(f"{kind} has no links to cut between: {_HOW}")
    modules = dict(model.named_modules(remove_duplicate=False))
    buffers = dict(model.named_buffers(recurse=False))
    for link in found:
        for name in link.modules:
            if not name or (name not in modules and name not in buffers):
                raise UserError(
                    f"{kind}.chain() says that {link.name} uses {name!r}, but the model has no "
                    f"submodule of that name; give names as model.named_modules() has them"
                )
    own = [name for name, _ in model.named_parameters(recurse=False)]
    if own:
        raise UserError(
            f"{kind} holds the parameter {own[0]} itself, so no pipeline stage can own it: put it "
            f"into a submodule, and name that in chain()"
        )
    named = {name for link in found for name in link.modules}
    for name, _ in model.named_parameters(remove_duplicate=False):
        if not any(name.startswith(f"{module}.") for module in named):
            raise UserError(
                f"no link of {kind} names the parameter {name}: add its module to the list of the "
                f"step that uses it, in chain()"
            )


def costs(found: Sequence[Link], model: nn.Module, args: tuple[Any, ...] | None) -> list[float]:
    """What each link costs: the mean of its share of the parameters and of the forward's FLOPs.

    The forward is counted on meta tensors rather than timed: a cut that hung on a clock would
    differ from run to run, and the model need not be in memory.

    Args:
        model: on the meta device, or real.
        args: what the model's forward takes, tensors on any device (only shape and type are used);
            None counts parameters alone.
    """
    parameters = [float(_parameters(link, model)) for link in found]
    flops = _flops(found, args) if args is not None else [0.0] * len(found)
    shares = [_shares(parameters), _shares(flops)]
    return [sum(parts) / 2 for parts in zip(*shares, strict=True)]


def _parameters(link: Link, model: nn.Module) -> int:
    modules = [model.get_submodule(n) for n in link.modules if not _is_buffer(model, n)]
    unique = {p: p.numel() for module in modules for p in module.parameters()}
    return sum(unique.values())


def _is_buffer(model: nn.Module, name: str) -> bool:
    return name in dict(model.named_buffers(recurse=False))


def _flops(found: Sequence[Link], args: tuple[Any, ...]) -> list[float]:
    counts = []
    values: Any = tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args)
    try:
        with torch.device("meta"), torch.no_grad():
            for link in found:
                with FlopCounterMode(display=False) as counter:
                    values = link.call(*values)
                counts.append(float(counter.get_total_flops()))
                values = values if isinstance(values, tuple) else (values,)
    except Exception as error:
        warnings.warn(
            f"the pipeline's stages are balanced by their parameters alone, because the model's "
            f"forward does not run on meta tensors ({type(error).__name__}: {error})",
            stacklevel=2,
        )
        return [0.0] * len(found)
    return counts


def _shares(numbers: list[float]) -> list[float]:
    total = sum(numbers)
    return [number / total if total else 0.0 for number in numbers]


# The largest stage's cost, the sum of squares, and where the stages end.
_Best = tuple[float, float, tuple[int, ...]]


def cut(found: Sequence[Link], model: nn.Module, cost: Sequence[float], stages: int) -> list[range]:
    """The links of each stage, so that the costliest stage is as cheap as can be.

    What has nothing to train stays with the link before it, or at the start with the one behind:
    a stage of an activation alone would leave its rank without an optimizer.

    Raises:
        UserError: more stages than links that can be parted.
    """
    own = [i for i, link in enumerate(found) if _trains(link, model)]
    starts = [0, *own[1:]]
    units = [range(a, b) for a, b in zip(starts, [*starts[1:], len(found)], strict=True)]
    if len(units) < min(stages, len(found)):
        raise UserError(
            f"{stages} pipeline stages were asked for, but only {len(units)} of the model's "
            f"{len(found)} links have parameters to train, and each stage needs one: ask for 1 to "
            f"{len(units)} (ranks on the pp axis x stages per rank), or freeze less"
        )
    parts = balance([sum(cost[i] for i in unit) for unit in units], stages)
    return [range(units[part[0]].start, units[part[-1]].stop) for part in parts]


def _trains(link: Link, model: nn.Module) -> bool:
    modules = [model.get_submodule(n) for n in link.modules if not _is_buffer(model, n)]
    return any(p.requires_grad for module in modules for p in module.parameters())


def balance(cost: Sequence[float], stages: int) -> list[range]:
    """Cut links into contiguous stages so that the costliest stage is as cheap as can be.

    Exact, by dynamic programming over (links, stages); among equally good cuts the one whose
    stages cost most alike (least sum of squares) is taken, the same on every rank.

    Returns:
        For each stage the range of its links; none is empty.

    Raises:
        UserError: more stages than links.
    """
    number = len(cost)
    if not 1 <= stages <= number:
        raise UserError(
            f"{stages} pipeline stages were asked for, but the model has {number} links to share "
            f"among them: ask for 1 to {number} (ranks on the pp axis x stages per rank)"
        )
    sums = [0.0, *accumulate(cost)]
    # For each number of links, the best cut of them into as many stages as the loop has reached.
    best: dict[int, _Best] = {0: (0.0, 0.0, (0,))}
    for stage in range(1, stages + 1):
        longer: dict[int, _Best] = {}
        for end in range(stage, number - (stages - stage) + 1):
            candidates = []
            for start, (largest, squares, cuts) in best.items():
                if start < end:
                    part = sums[end] - sums[start]
                    candidates.append((max(largest, part), squares + part * part, (*cuts, end)))
            longer[end] = min(candidates)
        best = longer
    cuts = best[number][2]
    return [range(start, end) for start, end in pairwise(cuts)]
