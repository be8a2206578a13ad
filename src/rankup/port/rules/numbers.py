"""Losses, metrics and decisions: of all ranks, not of this one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..roles import Loop, Roles
from ..roles.pieces import argument, call_name
from ..similar import similarities
from ..source import Source
from ..tree import walk
from .batches import of_batch
from .facts import anywhere, calls, loops_in, trained_here
from .grown import left_local
from .guards import guard
from .reduced import is_reduction, mentions, tainted
from .rule import Hit, Rule

_BEST = re.compile(r"best|lowest|highest|min_(?:val|loss)|max_acc|patience", re.IGNORECASE)
_NETWORK = re.compile(r"net|model|encoder|transform", re.IGNORECASE)
_CONTRASTIVE = re.compile(
    r"nt_?xent|info_?nce|contrastive|simclr|sup_?con|clip_?loss|barlow|vicreg|batch_?hard",
    re.IGNORECASE,
)


def decision(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK122: ranks that decide differently."""
    for node in source.index.all(cst.If):
        compared = _compared(node.test)
        if not compared or not _local_value(source, roles, node, compared):
            continue
        if guard(source, roles, node):
            continue
        yield Hit(
            node.test,
            "decides by this rank's value: ranks would disagree on the best model or on stopping",
            "compare the value of all ranks: rankup.mean(total, count)",
        )
    for scheduler in roles.schedulers:
        if call_name(scheduler.node) != "ReduceLROnPlateau":  # type: ignore[arg-type]
            continue
        for call, _ in calls(source, "step"):
            if not call.args or not isinstance(call.func, cst.Attribute):
                continue
            if scheduler not in roles.of(source, call.func.value):
                continue
            if _local_value(source, roles, call, mentions(call.args[0].value)):
                yield Hit(
                    call,
                    "ReduceLROnPlateau would see each rank's own value: learning rates part",
                    "step it with the value of all ranks: rankup.mean(total, count)",
                )


def _compared(test: cst.BaseExpression) -> set[str]:
    """The values in `val_loss < best` that are no record themselves."""
    found: set[str] = set()
    for node in walk(test):
        if not isinstance(node, cst.Comparison):
            continue
        if not isinstance(
            node.comparisons[0].operator,
            (cst.LessThan, cst.GreaterThan, cst.LessThanEqual, cst.GreaterThanEqual),
        ):
            continue
        names = mentions(node)
        if any(_BEST.search(name) for name in names):
            found |= {name for name in names if not _BEST.search(name)}
    return found


def _local_value(source: Source, roles: Roles, node: cst.CSTNode, names: set[str]) -> bool:
    """Whether one of these names comes out of a loop whose counts are not put together."""
    around: cst.CSTNode = source.index.function(node) or source.module
    for loop in (*roles.eval_loops, *roles.train_loops):
        left = left_local(loop.source, roles, loop)
        if not left:
            continue
        home = loop.function
        if (
            loop.source is source
            and (home or source.module) is around
            and names & tainted(source, around, {one.name for one in left})
        ):
            return True
        if home is None:
            continue
        for where, call in roles.flow.callers.get(home, ()):
            if where is not source or (source.index.function(call) or source.module) is not around:
                continue
            assign = source.index.enclosing(call, cst.Assign, cst.BaseCompoundStatement)
            if isinstance(assign, cst.Assign):
                targets = mentions(assign.targets[0].target)
                if names & tainted(source, around, targets) and not _reduced_here(
                    source, around, targets
                ):
                    return True
    return False


def _reduced_here(source: Source, around: cst.CSTNode, names: set[str]) -> bool:
    return any(
        isinstance(one, cst.Call) and is_reduction(source, one) and mentions(one) & names
        for one in walk(around)
    )


def sum_reduced(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK123: a sum over the batch is trained on."""
    if any("world_size" in loop_text(loop) for loop in roles.train_loops if roles.distributed):
        return
    if anywhere(roles, "count", "summed") and "rankup" in roles.runtimes:
        return
    todo = "`rankup.summed(loss).backward()`, or multiply the loss by the world size"
    message = "a loss summed over the batch: ranks average their gradients, which makes it smaller"
    for loss in roles.losses:
        call = loss.node
        if loss.source is not source or not isinstance(call, cst.Call):
            continue
        reduction = argument(call, "reduction")
        old = argument(call, "size_average")
        summed = reduction is not None and "sum" in source.code(reduction)
        summed = summed or (old is not None and source.code(old) == "False")
        if summed and loss_trains(source, roles, call):
            yield Hit(call, message, todo)
    for loop in roles.train_loops:
        for where, backward in loop.backwards:
            if where is source and isinstance(backward.func, cst.Attribute):
                value = backward.func.value
                if isinstance(value, cst.Call) and call_name(value) == "sum":
                    yield Hit(backward, message, todo)


def loop_text(loop: Loop) -> str:
    return loop.source.code(loop.node)


def loss_trains(source: Source, roles: Roles, call: cst.Call) -> bool:
    """Whether a loss is computed in a training step, directly or by the criterion made here."""
    if trained_here(source, roles, call):
        return True
    for where in roles.sources:
        for other in where.index.all(cst.Call):
            if other is call or not isinstance(other.func, (cst.Name, cst.Attribute)):
                continue
            if call_name(other) not in _criterion_names(source, call):
                continue
            if trained_here(where, roles, other) and any(
                one.node is call for one in roles.flow.origins(where, other.func)
            ):
                return True
    return False


def _criterion_names(source: Source, call: cst.Call) -> set[str]:
    assign = source.index.enclosing(call, cst.Assign, cst.BaseCompoundStatement)
    names = {"criterion", "loss_fn", "loss_func", "loss_function", "crit"}
    if isinstance(assign, cst.Assign):
        target = assign.targets[0].target
        names.add(target.attr.value if isinstance(target, cst.Attribute) else source.code(target))
    return names


def batch_coupled(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK124: a loss that compares the samples of a batch with each other."""
    if any("GatherLayer" in one.text or "distributed.nn" in one.text for one in roles.sources):
        return
    if roles.distributed and anywhere(roles, "all_gather", "all_gather_with_grad"):
        return
    message = "compares the samples of a batch with each other: each rank would only see its own"
    todo = "gather the features with gradients: torch.distributed.nn.functional.all_gather"
    for call in source.index.all(cst.Call):
        name = call_name(call)
        if not _CONTRASTIVE.search(name) or _NETWORK.search(name):
            continue
        if loss_trains(source, roles, call):
            yield Hit(call, message, todo)
    for loop in loops_in(source, roles.train_loops):
        for product in similarities(loop.body, of_batch(source, loop)):
            yield Hit(product, message, todo)
            break


RULES = (
    Rule("RK122", "decision-not-reduced", "error", decision),
    Rule("RK123", "sum-reduced-loss", "warning", sum_reduced),
    Rule("RK124", "batch-coupled-loss", "warning", batch_coupled),
)
