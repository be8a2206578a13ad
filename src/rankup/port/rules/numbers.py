"""Losses, metrics and decisions: of all ranks, not of this one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import call_name, first_argument
from ...script.names import made_of, mentioned, walk
from ...script.roles import Script
from ...script.source import File
from .facts import calls
from .grown import left_local
from .guards import guard
from .reduced import is_reduction
from .rule import Hit, Rule

_BEST = re.compile(r"best|lowest|highest|min_(?:val|loss)|max_acc|patience", re.IGNORECASE)


def decision(file: File, script: Script) -> Iterator[Hit]:
    """RK122: ranks that decide differently."""
    for node in file.names.all(ast.If):
        compared = _compared(node.test)
        if not compared or not _local_value(file, script, node, compared):
            continue
        if guard(file, script, node):
            continue
        yield Hit(
            node.test,
            "decides by this rank's value: ranks would disagree on the best model or on stopping",
            "compare rank 0's, rankup.broadcast(value), or that of all: rankup.mean(total, count)",
        )
    for scheduler in script.schedulers:
        if call_name(scheduler.node) != "ReduceLROnPlateau":  # type: ignore[arg-type]
            continue
        for call, _ in calls(file, "step"):
            stepped = first_argument(call)
            if stepped is None or not isinstance(call.func, ast.Attribute):
                continue
            if scheduler not in script.of(file, call.func.value):
                continue
            if _local_value(file, script, call, mentioned(stepped)):
                yield Hit(
                    call,
                    "ReduceLROnPlateau would see each rank's own value: learning rates part",
                    "step it with rank 0's value, rankup.broadcast(value), or that of all ranks: "
                    "rankup.mean(total, count)",
                )


def _compared(test: ast.expr) -> set[str]:
    """The values in `val_loss < best` that are no record themselves."""
    found: set[str] = set()
    for node in walk(test):
        if not isinstance(node, ast.Compare):
            continue
        if not isinstance(
            node.ops[0],
            (ast.Lt, ast.Gt, ast.LtE, ast.GtE),
        ):
            continue
        names = mentioned(node)
        if any(_BEST.search(name) for name in names):
            found |= {name for name in names if not _BEST.search(name)}
    return found


def _local_value(file: File, script: Script, node: ast.AST, names: set[str]) -> bool:
    """Whether one of these names comes out of a loop whose counts are not put together."""
    around: ast.AST = file.names.function(node) or file.tree
    for loop in (*script.eval_loops, *script.train_loops):
        left = left_local(loop.file, script, loop, decides=True)
        if not left:
            continue
        home = loop.function
        if (
            loop.file is file
            and (home or file.tree) is around
            and names & made_of(walk(around), {one.name for one in left})
        ):
            return True
        if home is None:
            continue
        for where, call in script.flow.callers.get(home, ()):
            if where is not file or (file.names.function(call) or file.tree) is not around:
                continue
            assign = file.names.statement(call)
            if isinstance(assign, ast.Assign):
                targets = mentioned(assign.targets[0])
                if names & made_of(walk(around), targets) and not _reduced_here(
                    file, around, targets
                ):
                    return True
    return False


def _reduced_here(file: File, around: ast.AST, names: set[str]) -> bool:
    return any(
        isinstance(one, ast.Call) and is_reduction(file, one) and mentioned(one) & names
        for one in walk(around)
    )


RULES = (Rule("RK122", "decision-not-reduced", "error", decision),)
