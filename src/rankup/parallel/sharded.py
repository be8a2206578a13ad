"""FSDP2: each parameter lives in parts over the data axes, and is whole only while it is used."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.modules.batchnorm import _NormBase

from .mesh import Mesh

# What holds modules side by side, and leaves the calling to others.
_LISTS = (nn.ModuleList, nn.ModuleDict)
CONTAINERS = (*_LISTS, nn.Sequential)
# Fewer numbers are not worth collectives of their own, which take as long for one as for these.
SMALL = 2**20


def blocks(model: nn.Module) -> list[nn.Module]:
    """The parts a model consists of: what its outermost lists of modules hold.

    Each is called as a whole, so it is what is sharded, recomputed and compiled by itself.
    """
    return list(_blocks(model))


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    children = list(module.children())
    # Lists are not called, so what holds some is no list of blocks but has them side by side.
    of_blocks = isinstance(module, CONTAINERS) and not any(map(_is_list, children))
    for child in children:
        if not of_blocks:
            yield from _blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, _LISTS)


def beside_blocks(model: nn.Module, units: Sequence[nn.Module]) -> list[nn.Module]:
    """The parts of a model beside its blocks that are gathered by themselves, in order.

    Embeddings and the head, as a rule. Each has `SMALL` numbers or more, shares no parameter with
    another part, and the model does nothing with it but call it: a model that multiplies with
    `self.embedding.weight` would find a shard. Where its code does not say so, a part is left out.
    """
    found: list[tuple[str, nn.Module]] = []
    owners: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        owners.append(module)
        for name, child in module.named_children():
            if child in units:
                continue
            if _is_list(child) or any(unit in units for unit in child.modules()):
                look(child)
            elif sum(parameter.numel() for parameter in child.parameters()) >= SMALL:
                found.append((name, child))

    look(model)
    called = _only_called(owners)
    names = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))

    def owns(part: nn.Module) -> bool:
        own = Counter(id(p) for _, p in part.named_parameters(remove_duplicate=False))
        return all(names[parameter] == number for parameter, number in own.items())

    return [child for name, child in found if name in called and owns(child)]


def _only_called(owners: Sequence[nn.Module]) -> set[str]:
    """Names of attributes that the forwards of some modules call, and use in no other way.

    Read are `forward` and `chain`, and whatever of the modules' classes these come to.
    """
    classes = {kind for owner in owners for kind in type(owner).__mro__}
    functions: dict[str, list[Any]] = {}
    for kind in classes - {nn.Module, *_LISTS, object}:
        for name, value in vars(kind).items():
            functions.setdefault(name, []).append(getattr(value, "fget", value))
    if any("forward" in vars(owner) for owner in owners):  # not the code of its class
        return set()
    called: set[str] = set()
    used: set[str] = set()
    todo = ["forward", "chain"]
    while todo:
        for function in filter(inspect.isfunction, functions.pop(todo.pop(), [])):
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            except (OSError, SyntaxError):
                return set()
            nodes = list(ast.walk(tree))
            attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
            calls = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
            of_names = {id(node.value) for node in attributes}
            own = next(iter(inspect.signature(function).parameters), None)
            for node in nodes:
                if isinstance(node, ast.Name) and node.id == own and id(node) not in of_names:
                    return set()  # the module itself is handed on
            for attribute in attributes:
                (called if id(attribute) in calls else used).add(attribute.attr)
                todo.append(attribute.attr)
    return called - used


def shard(
    roots: Sequence[nn.Module],
    units: Sequence[nn.Module],
    beside: Sequence[nn.Module],
    mesh: Mesh,
    *,
    half: torch.dtype | None,
    float_outputs: bool = False,
    sums: torch.dtype = torch.float32,
    offload: bool,
    reshard: bool,
) -> None:
    """Shard a model over the mesh's data axes, in place.

    Gradients become sums over the data axes: the loss has been divided by the global count.

    Args:
        roots: the models, or a rank's pipeline stages; what is left of each is one group, which
            stays whole between its forward and its backward, as the backward begins with it.
        units, beside: its blocks, and other parts that are gathered one at a time.
        half: gather and compute in this type, for which no autocast is needed.
        float_outputs: cast what the roots return to float32. Logits of a large vocabulary take 12
            bytes each in place of 4 then, with their gradient.
        sums: the type in which gradients are sent and added up.
        offload: keep parts, gradients and optimizer state in host memory.
        reshard: give a part's memory back between its forward and its backward.
    """
    over = mesh.device_mesh["dp_shard"]
    if mesh.at_step.dp_replicate > 1:
        over = mesh.device_mesh["dp_replicate", "dp_shard"]
    options: dict[str, Any] = {"mesh": over}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.world.device.type == "cuda")
    last: dict[str, Any] = {}
    if half is not None or sums != torch.float32:
        options["mp_policy"] = MixedPrecisionPolicy(half, sums)
        if float_outputs:
            last["mp_policy"] = replace(options["mp_policy"], output_dtype=torch.float32)
    for root in roots:
        inside = list(root.modules())[1:]
        own = [unit for unit in units if unit in inside]
        others = [part for part in beside if part in inside]
        # Without being told torch keeps the root whole until its backward, which is the next thing
        # to come; so it is with what stands behind the last block, a head as a rule.
        end = max((inside.index(unit) for unit in own), default=len(inside))
        behind = [part for part in others if inside.index(part) > end]
        for child in (*own, *others):
            fully_shard(child, reshard_after_forward=reshard and child not in behind, **options)
        kept = {} if reshard else {"reshard_after_forward": False}
        fully_shard(root, **options | kept | last)
        if reshard and mesh.layout.pp == 1:  # a pipeline holds and releases all of it itself
            root.register_forward_hook(_after_forward)
        for part in sharded_parts(root):
            _sum_gradients(part)
        for module in filter(has_statistics, root.modules()) if half else ():
            _compute_in_float(module)


def _after_forward(root: nn.Module, *_: Any) -> None:
    """Keep nothing whole where no backward follows: what is read or changed next are shards."""
    if not torch.is_grad_enabled():
        release(root)


def release(model: nn.Module) -> None:
    """Give parameters back that are whole."""
    for module in sharded_parts(model):
        module.reshard()


def sharded_parts(model: nn.Module) -> Iterator[FSDPModule]:
    """The modules that are gathered by themselves."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def has_statistics(module: nn.Module) -> bool:
    """Return True for a batch norm that keeps running statistics."""
    return isinstance(module, _NormBase) and module.track_running_stats


def _compute_in_float(norm: nn.Module) -> None:
    """Let a batch norm multiply in float32, the type of its statistics: another one is refused."""
    forward = norm.forward

    @functools.wraps(forward)
    def in_float(*args: Any, **kwargs: Any) -> Any:
        gathered = dict(norm._parameters)
        whole = {name: p.float() for name, p in gathered.items() if p is not None}
        norm._parameters.update(whole)  # type: ignore[arg-type]
        try:
            return forward(*args, **kwargs)
        finally:
            norm._parameters.update(gathered)

    norm.forward = in_float  # type: ignore[method-assign]


def _sum_gradients(module: FSDPModule) -> None:
    # A factor other than the group's size is a reduction that NCCL alone has, unless forced to sum;
    # and gloo's mean was a sum before torch 2.11.
    if hasattr(module, "set_gradient_divide_factor"):
        module.set_gradient_divide_factor(1.0)
    else:
        module.set_reduce_scatter_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
