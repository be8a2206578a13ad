"""The numbers that an evaluation counts, and puts together behind its loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.flow import call_name, given
from ...script.names import calls_in, mentioned, walk
from ...script.roles import Count, Script
from ...script.source import File
from ..rewrite.losses import Kind
from ..rewrite.terms import terms
from ..rewrite.training import Training, training_in
from .facts import guard, loop_sharded, loops_in, ported
from .rule import Hit, rule

_ADD = ("rankup.total", "rankup.gather")


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
    return not weighed and {one.kind for one in terms(training, value)} == {Kind.MEAN}


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
