"""Decisions and losses that `port` would put together over the ranks, in any kind of script.

The changes that `port` makes are tried on a file, and nothing is written. What it would change is a
hit: in a ported script only what is missing there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from ...script.flow import call_name, given, returned
from ...script.names import calls_in, elements, made_of, mentioned, walk
from ...script.roles import Script
from ...script.source import File
from ..rewrite.context import Context, Options
from ..rewrite.edits import Edits
from ..rewrite.training import training_in
from .decisions import broadcast_decisions
from .evaluation import Leaving, obstacle
from .facts import guard, ported, shares
from .metrics import training_numbers
from .rule import Hit, rule

_DECISION, _LOSS = "RK122", "RK126"


@dataclass
class _Rehearsal(Context):
    """A port that notes what it would put together.

    Attributes:
        found: for each fix the expressions, or the loops, and the call that they lack.
    """

    found: dict[str, dict[ast.AST, str]] = field(default_factory=dict)

    def around(self, node: ast.AST, before: str, after: str = ")") -> None:
        """Note an expression that lacks a collective."""
        file = self.script.file
        if not before.startswith("rankup.") or _put_together(file, node):
            return
        if self.fix != _DECISION or not self._made_whole(node):
            self._lacks(node, before)

    def after(self, statement: ast.AST, *lines: str) -> None:
        """Note a loop behind which a collective is missing."""
        self._lacks(statement, "rankup.broadcast(")

    def leave(self, node: ast.AST | None, text: str, *, comment: bool = True) -> None:
        """Note what a person has to put together."""
        if node is not None and comment:
            self._lacks(node, "")

    def _made_whole(self, node: ast.AST) -> bool:
        """True of what is made of numbers that have been put together before."""
        script, file = self.script, self.script.file
        if mentioned(node) & _whole_names(file, script.scope(node)):
            return True
        function = script.called(node) if isinstance(node, ast.Call) else None
        if function is None:
            return False
        whole = _whole_names(file, function)
        parts = [part for value in returned(function) for part in elements(value)]
        return bool(parts) and all(
            mentioned(part) & whole or _put_together(file, part) for part in parts
        )

    def _lacks(self, node: ast.AST, call: str) -> None:
        if not self.script.per_sample(node):
            self.found.setdefault(self.fix, {}).setdefault(node, call)


def _put_together(file: File, node: ast.AST) -> bool:
    """True of what has a collective around it or in it, or beside it: `mean(x) if train else x`."""
    around = [node]
    for up in file.names.up(node):
        if not isinstance(up, ast.expr | ast.keyword):
            break
        around.append(up)
    choices = [inner for up in around if isinstance(up, ast.IfExp) for inner in walk(up)]
    return any(
        isinstance(one, ast.Call) and shares(file, one) for one in (*around, *walk(node), *choices)
    )


def _whole_names(file: File, scope: ast.AST) -> set[str]:
    """The names in a function that are made of what a collective gives, or that one changes."""
    found: set[str] = set()
    for one in walk(scope):
        if isinstance(one, ast.Assign | ast.Expr) and any(
            isinstance(call, ast.Call) and shares(file, call) for call in walk(one.value)
        ):
            changed = one.targets if isinstance(one, ast.Assign) else [one.value]
            found |= {name for target in changed for name in mentioned(target)}
    return made_of(walk(scope), found)


def _lacking(file: File, script: Script, fix: str) -> dict[ast.AST, str]:
    """Return what a port would put together in a file: expressions, or loops, and the call."""
    files = script.to_port if file in script.to_port else (file,)
    return _rehearsed(script, files)[file].get(fix, {})


@lru_cache(maxsize=2)
def _rehearsed(
    script: Script, files: tuple[File, ...]
) -> dict[File, dict[str, dict[ast.AST, str]]]:
    port: list[Context] = []
    found: dict[File, dict[str, dict[ast.AST, str]]] = {}
    for one in files:
        training = training_in(script, one)
        context = _Rehearsal(training.script, training, Options(), Edits(one), port=port)
        found[one] = context.found
        if not script.distributed:
            whole = [loop for loop in training.loops if not loop.trains]
            additive = [loop for loop in whole if isinstance(obstacle(training, loop), Leaving)]
            context.sharded |= {loop.node for loop in additive}
    for change, fix in ((training_numbers, _LOSS), (broadcast_decisions, _DECISION)):
        for each in port:
            each.fix = fix
            change(each)
    return found


@rule("RK122", "error", "a decision by one rank's value")
def decision(file: File, script: Script) -> Iterator[Hit]:
    """The result of an evaluation by which something is decided: `if val_loss < best`, patience, a
    scheduler's step, a file name. Also ranks that evaluate everything differ: by rounding, by the
    buffers of batch norm, by random draws.

    Ranks save different models, learning rates part, or one stops and the others wait for it.

    ```diff
     rankup.setup()
     total, seen = 0.0, 0
     with torch.no_grad():
         for x, y in rankup.shard(valid_loader):
             total += F.cross_entropy(model(x), y, reduction="sum").item()
             seen += len(y)
    -val_loss = total / seen
    +val_loss = rankup.mean(total, seen)
     if val_loss < best:
         best = val_loss
    ```

    Puts `rankup.broadcast` around the value at this place. A sharded evaluation has the value of
    all ranks already ([RK119](RK119.md)).
    """
    for node in _lacking(file, script, _DECISION):
        if not guard(file, script, node):
            yield Hit(
                node,
                "something is decided by this rank's value: ranks would disagree on it",
                "decide by rank 0's, rankup.broadcast(value), or by rankup.mean(total, count)",
            )


@rule("RK126", "warning", "the loss of one rank's part")
def loss_of_part(file: File, script: Script) -> Iterator[Hit]:
    """In a script that uses rankup: a loss, or the length of a batch, that a training loop prints,
    logs or stops by without `rankup.batch_mean` or `rankup.batch_sum`.

    What rank 0 tells is of its part of each batch, and another for each number of GPUs.
    `batch_mean` is for all ranks: it has no place under `if rankup.is_root_process():`.

    ```diff
     rankup.setup()
     for step, (x, y) in enumerate(rankup.shard(loader)):
         loss = F.cross_entropy(model(x), y)
         loss.backward()
    -    print0(step, loss.item())
    +    print0(step, rankup.batch_mean(loss.item()))
    ```

    Puts `rankup.batch_mean` or `rankup.batch_sum` around what a training loop reads of a loss.
    """
    if not ported(script):
        return
    for node, call in _lacking(file, script, _LOSS).items():
        if call and not guard(file, script, node) and not _kept(file, node):
            code = file.code(node)
            yield Hit(
                node,
                f"{code}: of this rank's part of the batch only",
                f"{call}{code}) on all ranks, then tell it",
            )


def _kept(file: File, node: ast.AST) -> bool:
    """True of what a rank adds up or keeps (RK121), or puts together by a name of its own."""
    statement = file.names.statement(node)
    if isinstance(statement, ast.Assign):
        scope = file.names.function(node) or file.tree
        shared = (arg for call in calls_in(scope) if shares(file, call) for arg in given(call))
        return bool(made_of(walk(scope), mentioned(*statement.targets)) & mentioned(*shared))
    call = statement.value if isinstance(statement, ast.Expr) else None
    grows = isinstance(call, ast.Call) and call_name(call) in ("append", "extend", "update", "add")
    return isinstance(statement, ast.AugAssign) or grows
