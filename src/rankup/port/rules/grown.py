"""Values that grow over the batches of a loop, and are used as if they were of all ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import call_name, given, returned
from ...script.names import Function, assigned, calls_in, made_of, mentioned, walk
from ...script.roles import Count, Loop, Script
from ...script.source import File
from ...script.torch_names import SHOWING
from ..rewrite.losses import Kind
from ..rewrite.means import declared
from ..rewrite.training import Training, training_in
from .facts import guard, integer, is_reduction, loop_sharded, loops_in, ported
from .rule import Hit, rule

_COUNTED = re.compile(
    r"loss|acc|correct|right|hit|total|metric|score|error|err\b|mse|mae|dice|iou", re.I
)
_DEPTH = 3  # callers to which a value may be given back
_ADD = ("rankup.total", "rankup.gather")


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
        left = left_local(file, script, loop)
        if left:
            names = ", ".join(dict.fromkeys(one.name for one in left))
            yield Hit(
                left[0].node,
                f"{names}: of this rank's batches only",
                "sum and count on each rank, then rankup.mean(total, count)",
                # What a port puts together is found by RK126; of the rest it says what it is.
                level="warning" if loop.backwards and ported(script) else None,
            )


def left_local(file: File, script: Script, loop: Loop) -> list[Count]:
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
    if count.name in reassigned(loop):
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
    if not any(first.id in mentioned(one) for one in _behind(file, node)):
        return []
    return [Count(file, first, first.id, first)]


def _behind(file: File, node: ast.stmt) -> list[ast.stmt]:
    """The statements behind one in its own block."""
    block = file.names.block(node)
    return block[block.index(node) + 1 :]


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


def reassigned(loop: Loop) -> set[str]:
    """Names that every round gives another value: `loss += penalty` is no running sum."""
    found = _names(loop.node.target) if isinstance(loop.node, ast.For) else set()
    for one in loop.body:
        if isinstance(one, ast.Assign):
            names = {name for target in one.targets for name in _names(target)}
            found |= names - mentioned(one.value)
    return found


def _names(target: ast.AST) -> set[str]:
    return mentioned(target) - {"_"}
