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
from ...script.names import Function, assigned, calls_in, elements, made_of, mentioned, walk
from ...script.roles import Count, Loop, Script
from ...script.source import File
from ...script.torch_names import SHOWING
from ..rewrite.context import Context, Options
from ..rewrite.edits import Edits
from ..rewrite.losses import Kind
from ..rewrite.means import declared
from ..rewrite.training import Training, training_in
from .decisions import broadcast_decisions
from .evaluation import Leaving, obstacle
from .facts import guard, integer, is_reduction, loop_sharded, loops_in, ported, shares
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


@rule("RK121", "error", "a number of this rank's batches only")
def unreduced(file: File, script: Script) -> Iterator[Hit]:
    """A loss, a metric or a counter that grows over the batches and is told, returned or divided
    without a reduction; with `rankup.shard` also lists of outputs, and numbers of batches.

    What rank 0 prints is of its part of the data: noisier, and another for each number of GPUs.

    ```diff
     rankup.setup()
     correct = 0
     with torch.no_grad():
         for x, y in rankup.shard(valid_loader):
             correct += (model(x).argmax(1) == y).sum().item()
    -print0(correct / len(valid_set))
    +print0(rankup.total(correct) / len(valid_set))
    ```

    `rankup.total` behind an evaluation; in training `rankup.batch_mean` and `rankup.batch_sum`.
    """
    for loop in loops_in(file, (*script.eval_loops, *script.train_loops)):
        left = _left_local(file, script, loop)
        if left and (file is script.file or script.comes_to(file, loop.node)):
            names = ", ".join(dict.fromkeys(one.name for one in left))
            yield Hit(
                left[0].node,
                f"{names}: of this rank's batches only",
                "sum and count on each rank, then rankup.mean(total, count)",
                # What a port puts together is found by RK126; of the rest it says what it is.
                level="warning" if loop.backwards and ported(script) else None,
            )


def _left_local(file: File, script: Script, loop: Loop) -> list[Count]:
    """The counts of a loop that are used after it without being put together."""
    # Where `rankup.shard` deals, it is certain that a rank counts its own batches.
    sharded_here = ported(script) and loop_sharded(script, loop)
    found = [
        one
        for one in loop.counts
        if (_of_part(file, script, loop, one) if sharded_here else _by_name(one))
        and (_used_after(file, loop, one.name) or (sharded_here and _logged_inside(loop, one)))
    ]
    if sharded_here and loop in script.eval_loops:
        found += _index(file, loop)
    if not found:
        return []
    if script.distributed:
        if guard(file, script, loop.node):
            return []
        if loop in script.eval_loops and not loop_sharded(script, loop):
            return []  # every rank has it all
        found = [one for one in found if not _reduced(file, script, loop, one)]
    return found


def _reduced(file: File, script: Script, loop: Loop, count: Count) -> bool:
    """True where a count of a loop, or what is made of it, goes through a reduction."""

    def adds_up(where: File, call: ast.Call) -> bool:
        # Rank 0's is the value of all only where every rank has it all.
        rank_0s = call_name(call) == "broadcast" and loop in script.train_loops
        return is_reduction(where, call) and not rank_0s

    def reduces(where: File, call: ast.Call) -> bool:
        found = script.flow.callee(where, call)
        inner = [(found[0], one) for one in calls_in(found[1])] if found is not None else []
        return any(adds_up(*one) for one in [(where, call), *inner])

    def reaches(where: File, around: ast.AST, names: set[str], depth: int) -> bool:
        made = made_of(walk(around), names)
        if any(mentioned(call) & made and reduces(where, call) for call in calls_in(around)):
            return True
        values = returned(around) if isinstance(around, Function) and depth else []
        if not any(mentioned(value) & made for value in values):
            return False
        for outer, call in script.flow.callers.get(around, ()):
            statement = outer.names.statement(call)
            above = [up for up in outer.names.up(call) if outer.names.statement(up) is statement]
            if any(isinstance(up, ast.Call) and adds_up(outer, up) for up in above):
                return True
            taken = mentioned(*assigned(statement))
            scope = outer.names.function(call) or outer.tree
            if taken and reaches(outer, scope, taken, depth - 1):
                return True
        return False

    if _reduces_itself(file, script, count):
        return True
    if any(reduces(file, one) for one in calls_in(count.node)):
        return True
    return reaches(file, _around(file, loop, count.name), {count.name}, _DEPTH)


def _around(file: File, loop: Loop, name: str) -> ast.AST:
    """The function in which a count may be used; of an attribute its class."""
    own = file.names.enclosing(loop.node, ast.ClassDef) if name.startswith("self.") else None
    return own or file.names.function(loop.node) or file.tree


def _reduces_itself(file: File, script: Script, count: Count) -> bool:
    """True of a meter whose class has a reduction: torchmetrics, `meter.all_reduce()`."""
    if not isinstance(count.node, ast.Call) or not isinstance(count.node.func, ast.Attribute):
        return False
    for one in script.flow.origins(file, count.node.func.value):
        owner = script.flow.class_of(one.file, one.node)
        if owner is not None and any(is_reduction(owner[0], call) for call in calls_in(owner[1])):
            return True
        made = one.file.names.called(one.node) if isinstance(one.node, ast.Call) else ""
        if made.startswith("torchmetrics"):
            return True
    return False


def _by_name(count: Count) -> bool:
    """True of a count that adds a number of this batch, not a list of file names."""
    return (
        _COUNTED.search(count.name) is not None
        and not integer(count.value)
        and (isinstance(count.node, ast.AugAssign) or _method(count) != "extend")
    )


def _of_part(file: File, script: Script, loop: Loop, count: Count) -> bool:
    """True where it grows by what differs from rank to rank."""
    if count.name in _reassigned(loop):
        return False
    if integer(count.value):  # batches, or samples that a condition lets through
        return loop in script.eval_loops
    if _method(count) in ("update", "add") and not _COUNTED.search(count.name):
        return False  # a bar, a set
    if _given_whole(file, loop, count.value):
        return False
    training = training_in(script, file)
    same = [one for one in training.loops if one.node is loop.node]
    of_batch = training.derived(same[0]) if same else set()
    return bool(mentioned(count.value) & of_batch) or _by_name(count)


def _given_whole(file: File, loop: Loop, value: ast.expr) -> bool:
    """True of a name that a loop gives nothing but what all ranks have."""
    if not isinstance(value, ast.Name):
        return False
    made = [
        one.value
        for one in walk(*loop.body)
        if isinstance(one, ast.Assign)
        and any(value.id in mentioned(target) for target in one.targets)
    ]
    return bool(made) and all(isinstance(one, ast.Call) and is_reduction(file, one) for one in made)


def _method(count: Count) -> str:
    return call_name(count.node) if isinstance(count.node, ast.Call) else ""


def _index(file: File, loop: Loop) -> list[Count]:
    """The count of `enumerate` that is used behind the loop: the batches of this rank."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return []
    first = node.target.elts[0]
    if "enumerate(" not in file.code(node.iter) or not isinstance(first, ast.Name):
        return []
    block = file.names.block(node)
    if first.id not in mentioned(*block[block.index(node) + 1 :]):
        return []
    return [Count(file, first, first.id, first)]


def _used_after(file: File, loop: Loop, name: str) -> bool:
    """True where a count is divided, logged, returned or compared: added up for somebody to see."""
    around = _around(file, loop, name)
    inside = set(walk(loop.node))
    uses = ast.Return | ast.BinOp | ast.Compare | ast.Call
    return any(
        name in mentioned(node)
        if isinstance(node, uses)
        else isinstance(node, ast.AugAssign) and file.code(node.target) == name
        for node in walk(around)
        if node not in inside and node is not around
    )


def _logged_inside(loop: Loop, count: Count) -> bool:
    shown = [one for one in calls_in(*loop.body) if call_name(one) in SHOWING]
    return count.name in mentioned(*shown)


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


def _reassigned(loop: Loop) -> set[str]:
    """Names that every round gives another value: `loss += penalty` is no running sum."""
    found = mentioned(loop.node.target) if isinstance(loop.node, ast.For) else set()
    for one in loop.body:
        if isinstance(one, ast.Assign):
            found |= mentioned(*one.targets) - mentioned(one.value)
    return found
