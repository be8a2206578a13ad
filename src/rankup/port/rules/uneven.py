"""Calls that wait for all ranks in a loop that they go round unequally often."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from ...script.flow import argument, call_name
from ...script.loops import taken_from
from ...script.names import calls_in, walk
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import COLLECTIVES, OUR_COLLECTIVES
from ..rewrite.training import training_in
from .facts import anywhere, loops_in, true
from .rule import Hit, rule

_WAITS = COLLECTIVES | OUR_COLLECTIVES


@rule("RK183", "error", "a collective in a loop that ranks go round unequally often")
def waits_in_uneven_loop(file: File, script: Script) -> Iterator[Hit]:
    """A collective, such as `rankup.batch_mean` or `all_reduce`, in an evaluation over a loader
    that `rankup.shard` has sharded, or in a loop that trains *and* evaluates.

    Nothing is padded in an evaluation: a rank may have a batch less, and leave the loop while the
    others wait for it. For a loop that serves both, `rankup.shard(loader, train=True)` lets all
    ranks go round equally often, with samples of weight zero that `batch_mean` and `batch_sum`
    leave out.

    ```diff
     valid = rankup.shard(DataLoader(valid_set, batch_size=64))

     @torch.no_grad()
     def evaluate(model):
         right = 0
         for x, y in valid:
    -        right += rankup.all_reduce((model(x).argmax(1) == y).sum().item())
    -    return right
    +        right += (model(x).argmax(1) == y).sum().item()
    +    return rankup.total(right)
    ```

    Puts evaluations together behind the loop, and shards by `train=True` what serves both.
    """
    if anywhere(script, "parallelize"):
        return  # where a forward needs all ranks, all of them go round equally often
    for loop in loops_in(file, script.eval_loops):
        if any(not true(argument(call, "train")) for call in _shards(script, loop)):
            yield from _waiting(file, list(calls_in(*loop.body)))
    both = [one.node for one in training_in(script, file).loops if one.phase or one.unclear]
    for loop in loops_in(file, script.train_loops):
        if loop.node in both and _uneven(script, loop):
            always = [call for call in calls_in(*loop.body) if not _conditional(loop, call)]
            yield from _waiting(file, always)


@rule("RK184", "error", "a stand-in that is counted")
def stand_ins_counted(file: File, script: Script) -> Iterator[Hit]:
    """An evaluation over a loader that `rankup.shard(loader, train=True)` has sharded, without
    `batch_mean` or `batch_sum` in it.

    A rank for which nothing is left of a short batch gets a sample of another one. It has weight
    zero in `batch_mean` and `batch_sum`; added up by hand it counts twice.

    ```diff
     valid = rankup.shard(DataLoader(valid_set, batch_size=64), train=True)
     right = 0
     with torch.no_grad():
    -    for x, y in valid:
    +    for x, y in rankup.shard(valid, train=False):
             right += (model(x).argmax(1) == y).sum().item()
     print0(rankup.total(right))
    ```

    Shards by `train=False` for a loop that evaluates, where another trains on the loader.
    """
    if anywhere(script, "parallelize"):
        return
    for loop in loops_in(file, script.eval_loops):
        shards = _shards(script, loop)
        if not shards or not all(true(argument(call, "train")) for call in shards):
            continue
        inside = {file.names.called(call) for call in calls_in(*loop.body)}
        if not inside & {"rankup.batch_sum", "rankup.batch_mean"} and loop.iterated is not None:
            yield Hit(
                loop.iterated,
                "sharded with train=True, so that a rank without a part of a short batch gets a "
                "stand-in sample, which is counted here",
                "`for batch in rankup.shard(loader, train=False):`, or rankup.batch_sum in it",
            )


def _waiting(file: File, calls: list[ast.Call]) -> Iterator[Hit]:
    for call in calls:
        dotted = file.names.called(call)
        if call_name(call) in _WAITS and dotted.startswith(("rankup.", "torch.distributed.")):
            yield Hit(
                call,
                f"{call_name(call)} waits for all ranks, and in an evaluation a rank may have a "
                "batch less than the others: the job hangs",
                "call it behind the loop (rankup.total, rankup.mean), or deal with "
                "rankup.shard(loader, train=True), where all ranks go round equally often",
            )
            return


def _shards(script: Script, loop: Loop) -> list[ast.Call]:
    """The calls of `rankup.shard` that deal what a loop goes over."""
    found: dict[ast.Call, None] = {}
    index = loop.file.names
    for expression in taken_from(loop.file, loop.node):
        around = list(itertools.takewhile(lambda up: up is not loop.node, index.up(expression)))
        if any(isinstance(up, ast.IfExp) for up in (expression, *around)):
            continue  # `shard(loader) if train else loader`: sharded where it trains alone
        through = [(loop.file, up) for up in around if isinstance(up, ast.Call)]
        for origin in script.flow.origins(loop.file, expression):
            through += [(where, call) for where, call in origin.through]
        for where, call in through:
            if where.names.called(call) == "rankup.shard":
                found[call] = None
    return list(found)


def _uneven(script: Script, loop: Loop) -> bool:
    """True where one of the loaders is sharded as an evaluation where a loop evaluates."""
    shards = _shards(script, loop)
    loose = [call for call in shards if not true(argument(call, "train"))]
    # What shuffles is trained on, as a rule; where nothing else is there it is evaluated, too.
    still = [call for call in loose if not _shuffles(call)]
    return bool(still) or (bool(loose) and len(loose) == len(shards))


def _shuffles(call: ast.Call) -> bool:
    return any(true(argument(inner, "shuffle", 2)) for inner in calls_in(call))


def _conditional(loop: Loop, call: ast.AST) -> bool:
    """True where a call in a loop is passed over where a condition says so."""
    index = loop.file.names
    inner = itertools.takewhile(lambda up: up is not loop.node, index.up(call))
    if any(isinstance(up, ast.If | ast.IfExp) for up in inner):
        return True
    line = loop.file.line(call)[0]
    return any(
        isinstance(one, ast.Continue) and loop.file.line(one)[0] < line for one in walk(*loop.body)
    )
