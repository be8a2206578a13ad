"""What several rules ask: is a loader dealt to the ranks, what is wrapped, what is called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import libcst as cst

from ..roles import Loop, Role, Roles
from ..roles.loops import no_grad, taken_from, without_gradients
from ..roles.pieces import argument, around_model, call_name
from ..source import Source
from ..tree import walk

# Not the name of rankup itself, nor `rank0_first`, whose value is the same on all ranks.
_RANKED = re.compile(
    r"rank(?!up|0_first)|world|shard|split_by_node|num_replicas|get_worker_info\(\)\.\w*rank"
)


def calls(source: Source, *names: str) -> Iterator[tuple[cst.Call, str]]:
    """Calls by the last word of what is called, with the dotted name."""
    for call in source.index.all(cst.Call):
        if call_name(call) in names:
            yield call, source.index.called(call)


def anywhere(roles: Roles, *names: str) -> bool:
    """Whether something of that name is called in any of the files."""
    return any(True for source in roles.sources for _ in calls(source, *names))


def ported(roles: Roles) -> bool:
    """Whether it uses rankup, or its copy beside the script."""
    return "rankup" in roles.runtimes


def by_hand(roles: Roles) -> bool:
    """Whether a device or a loader is to be judged as in a script for one GPU.

    In one that joins ranks by torch.distributed itself much is a default that it never uses; with
    rankup there is nothing left to choose.
    """
    return not roles.distributed or ported(roles)


def text_of(roles: Roles, source: Source, node: cst.CSTNode) -> str:
    """The code of an expression and of what it is made by."""
    parts = [source.code(node)]
    parts += [one.source.code(one.node) for one in roles.flow.origins(source, node)]
    return "\n".join(parts)


def ranked(roles: Roles, source: Source, node: cst.CSTNode) -> bool:
    """Whether a value depends on the rank."""
    return _RANKED.search(text_of(roles, source, node)) is not None


def samplers(roles: Roles, loader: Role) -> list[tuple[Source, cst.CSTNode]]:
    """What a loader's order comes from, if it was given a sampler."""
    if not isinstance(loader.node, cst.Call):
        return []
    found = []
    for name in ("sampler", "batch_sampler"):
        given = argument(loader.node, name)
        if given is not None:
            found += [(one.source, one.node) for one in roles.flow.origins(loader.source, given)]
    return found


def distributed_sampler(source: Source, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and (
        "Distributed" in call_name(node) or _RANKED.search(source.code(node)) is not None
    )


def dealt(roles: Roles, loader: Role) -> bool:
    """Whether each rank gets its own part, by what a loader is made with."""
    for source, node in samplers(roles, loader):
        if distributed_sampler(source, node):
            return True
        if isinstance(node, cst.Call) and any(
            distributed_sampler(where, inner)
            for arg in node.args
            for where, inner in (
                (one.source, one.node) for one in roles.flow.origins(source, arg.value)
            )
        ):
            return True
        owner = roles.flow.class_of(source, node)
        if owner is not None and _RANKED.search(owner[0].code(owner[1])):
            return True
    if isinstance(loader.node, cst.Call):
        if call_name(loader.node) == "prepare":
            return True
        for arg in loader.node.args[:1]:
            if ranked(roles, loader.source, arg.value):
                return True
            for origin in roles.flow.origins(loader.source, arg.value):
                owner = roles.flow.class_of(origin.source, origin.node)
                if owner and _RANKED.search(owner[0].code(owner[1])):
                    return True
        return any(
            arg.star == "**" and _RANKED.search(text_of(roles, loader.source, arg.value))
            for arg in loader.node.args
        )
    return False


def sharded(roles: Roles, loop: Loop, loader: Role | None = None) -> bool:
    """Whether a loop's batches come through `rankup.shard`, or an accelerator's `prepare`.

    Args:
        loader: the one of its loaders that is asked about; any of them without one.
    """
    for expression in taken_from(loop.source, loop.node):
        around = itertools.takewhile(
            lambda up: up is not loop.node, loop.source.index.up(expression)
        )
        here = any(isinstance(up, cst.Call) and call_name(up).endswith("shard") for up in around)
        for origin in roles.flow.origins(loop.source, expression):
            if loader is not None and origin.node is not loader.node:
                continue
            if here or any(call_name(call) == "shard" for _, call in origin.through):
                return True
    return False


def wrapped(roles: Roles) -> dict[cst.CSTNode, set[str]]:
    """What makes each wrapped model, and the wrappers around it."""
    found: dict[cst.CSTNode, set[str]] = {}
    for source in roles.sources:
        for call in source.index.all(cst.Call):
            kind = around_model(source, call)
            first = argument(call, "module", 0) if kind else None
            if first is None or kind == "sync-bn":
                continue
            for origin in roles.flow.origins(source, first):
                found.setdefault(origin.node, set()).add(kind)
    return found


def trained_here(source: Source, roles: Roles, node: cst.CSTNode) -> bool:
    """Whether a place runs in a training step with gradients on."""
    for up in source.index.up(node):
        if no_grad(up):
            return False
        if any(up is loop.node for loop in roles.train_loops):
            return True
        if isinstance(up, cst.FunctionDef):
            return up in roles.training_functions and not without_gradients(up)
    return False


def string(node: cst.CSTNode | None) -> str | None:
    """The value of a literal string."""
    return str(node.raw_value) if isinstance(node, cst.SimpleString) else None


def true(node: cst.CSTNode | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def loops_in(source: Source, loops: Iterable[Loop]) -> list[Loop]:
    return [loop for loop in loops if loop.source is source]


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    for one in walk(node):
        if isinstance(one, cst.Call):
            yield one
