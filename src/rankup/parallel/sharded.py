"""FSDP2 over the data axes: parts of parameters, the precision, the sum of gradients.

A parameter lies in parts over `dp_shard`, and is whole only while it is used. Where that axis is of
one rank, each has all of it: nothing is gathered, and gradients are added up over the replicas.
"""

from __future__ import annotations

import functools
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
# What models call the map from their stream to logits.
HEADS = ("head", "lm_head", "output", "embed_out")
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

    Its head, which is known by its name (`HEADS`), and its embeddings, each of `SMALL` numbers or
    more that no other part has. A model without a head of its own may multiply with the weight of
    its embedding, and would find a shard there: of such a model nothing is gathered by itself.
    """
    inside = {module for unit in units for module in unit.modules()}
    names = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))

    def is_apart(name: str, part: nn.Module) -> bool:
        own = list(part.parameters(recurse=False))
        head = isinstance(part, nn.Linear) and name.rpartition(".")[2] in HEADS
        shared = any(names[id(parameter)] > 1 for parameter in own)
        large = sum(parameter.numel() for parameter in own) >= SMALL
        return (head or isinstance(part, nn.Embedding)) and large and not shared

    named = [(name, part) for name, part in model.named_modules() if part not in inside]
    apart = [part for name, part in named if is_apart(name, part)]
    return apart if any(isinstance(part, nn.Linear) for part in apart) else []


def shard(
    roots: Sequence[nn.Module],
    units: Sequence[nn.Module],
    beside: Sequence[nn.Module],
    mesh: Mesh,
    *,
    half: torch.dtype | None,
    autocast: bool = False,
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
        half: gather and compute in this type.
        autocast: leave inputs as they are, compute the roots' forwards within torch's autocast to
            `half`, and cast what they return to float32. Logits of a large vocabulary take 12 bytes
            each in place of 4 then, with their gradient.
        sums: the type in which gradients are sent and added up.
        offload: keep parts, gradients and optimizer state in host memory.
        reshard: give a part's memory back between its forward and its backward. In a pipeline all
            of a stage stays from its first forward of a step on: torch adds gradients up behind the
            last backward, so that data ranks need not have chunks in step.
    """
    reshard = reshard and mesh.layout.pp == 1
    over = mesh.device_mesh["dp_shard"]
    if mesh.at_step.dp_replicate > 1:
        over = mesh.device_mesh["dp_replicate", "dp_shard"]
    options: dict[str, Any] = {"mesh": over}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.world.device.type == "cuda")
    last: dict[str, Any] = {}
    if half is not None or sums != torch.float32:
        options["mp_policy"] = MixedPrecisionPolicy(half, sums, cast_forward_inputs=not autocast)
        if autocast:
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
        if mesh.layout.pp == 1:  # a pipeline gives it back itself
            root.register_forward_hook(_after_forward)
        for part in sharded_parts(root):
            _sum_gradients(part)
        if half is not None and autocast:
            _autocast(root, mesh.world.device.type, half)


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


def _autocast(root: nn.Module, device_type: str, half: torch.dtype) -> None:
    """Let torch choose the type of each operator of a forward, where float32 and 16 bits meet."""
    forward = root.forward

    @functools.wraps(forward)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, half):
            return forward(*args, **kwargs)

    root.forward = chosen  # type: ignore[method-assign]


def keep_norms(model: nn.Module, autocast: bool) -> None:
    """Let norms multiply in float32 where torch refuses weights of 16 bits; before they recompute.

    Batch norms always do, as their statistics are float32. With `autocast` others may be given
    float32, which on a GPU is the type that it computes them in, and on a CPU is refused.
    """
    for module in model.modules():
        if has_statistics(module):
            _compute_in_float(module, always=True)
        elif autocast and isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm):
            _compute_in_float(module, always=False)


def _compute_in_float(norm: nn.Module, always: bool) -> None:
    """Let a norm multiply in float32, always or where its input is of that type."""
    forward = norm.forward

    @functools.wraps(forward)
    def in_float(*args: Any, **kwargs: Any) -> Any:
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        if not (always or any(value.dtype == torch.float32 for value in given)):
            return forward(*args, **kwargs)
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
