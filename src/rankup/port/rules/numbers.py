"""The numbers of one rank's part: shown as if they were of all ranks, or decided by.

For decisions and losses the changes that `port` makes are tried on a file, and nothing is written.
What it would change is a hit: in a ported script only what is missing there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from ...script.flow import call_name, given, returned
from ...script.names import calls_in, elements, made_of, mentioned, walk
from ...script.roles import Count, Script
from ...script.source import File
from ..rewrite.context import Context, Options
from ..rewrite.edits import Edits
from ..rewrite.losses import Kind
from ..rewrite.means import declared
from ..rewrite.training import Training, training_in
from .decisions import broadcast_decisions
from .evaluation import Leaving, obstacle
from .facts import guard, loop_sharded, loops_in, ported, shares
from .metrics import training_numbers
from .rule import Hit, rule

_DECISION, _LOSS = "RK122", "RK126"
_COUNTED = re.compile(
    r"loss|acc|correct|right|hit|total|metric|score|error|err\b|mse|mae|dice|iou", re.I
)
_DEPTH = 3  # callers to which a value may be given back
_ADD = ("rankup.total", "rankup.gather")


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


def _method(count: Count) -> str:
    return call_name(count.node) if isinstance(count.node, ast.Call) else ""


@rule("RK127", "error", "means added up as if they were sums")
def means_added_up(file: File, script: Script) -> Iterator[Hit]:
    """In a script that uses rankup: an evaluation that adds up means over batches, and gives the
    result to `rankup.total`.

    With N ranks N means are added where one process adds one: N times too large.

    ```diff
     rankup.setup()
     total = 0.0
     with torch.no_grad():
         for x, y in rankup.shard(valid_loader):
    -        total += F.cross_entropy(model(x), y).item()
    -print0(rankup.total(total) / len(valid_loader))
    +        total += F.cross_entropy(model(x), y).item() * len(x)
    +print0(rankup.total(total) / len(valid))
    ```

    Shards an evaluation only where what it adds up are sums over samples.
    """
    if not ported(script):
        return
    training = training_in(script, file)
    for loop in loops_in(file, script.eval_loops):
        if not loop_sharded(script, loop):
            continue
        around: ast.AST = file.names.function(loop.node) or file.tree
        totals = [one for one in calls_in(around) if file.names.called(one) == "rankup.total"]
        added = mentioned(*(arg for one in totals for arg in given(one)))
        for count in loop.counts:
            single = _method(count) in ("", "append")
            if count.name in added and single and _is_mean(training, count.value):
                yield Hit(
                    count.node,
                    f"{count.name}: means over this rank's parts of the batches, which "
                    "rankup.total adds up as if they were sums",
                    "add up mean * len(batch) and len(batch), and divide behind the loop",
                )


def _is_mean(training: Training, value: ast.expr) -> bool:
    """True of a mean over the batch; times a number of samples it may be a sum."""
    weighed = any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) for one in walk(value)
    )
    return not weighed and declared(training, value) is Kind.MEAN


@rule("RK128", "error", "added up although every rank has it all")
def counted_by_all(file: File, script: Script) -> Iterator[Hit]:
    """An evaluation that every rank goes over in full, and `rankup.total` or `rankup.gather` of
    what it has counted, in a script that uses rankup.

    Every rank has the whole number already; with N ranks the sum is N times too large.

    ```diff
     rankup.setup()
     correct = 0
     with torch.no_grad():
    -    for x, y in DataLoader(valid, batch_size=64):
    +    for x, y in rankup.shard(DataLoader(valid, batch_size=64), train=False):
             correct += (model(x).argmax(1) == y).sum().item()
     print0(rankup.total(correct))
    ```

    Shards an evaluation and adds up behind it, or does neither.
    """
    if not ported(script):
        return
    for loop in loops_in(file, script.eval_loops):
        if loop_sharded(script, loop) or guard(file, script, loop.node):
            continue
        names = {count.name for count in loop.counts}
        for one in calls_in(file.names.function(loop.node) or file.tree):
            both = names & mentioned(*given(one))
            if both and file.names.called(one) in _ADD:
                yield Hit(
                    one,
                    f"{min(both)}: every rank has counted all of the data, and this adds up what "
                    "they have",
                    "go over rankup.shard(loader, train=False), or leave this out",
                )
                break
