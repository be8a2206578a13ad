"""Evaluations: all of it on every rank; sharded where only sums over samples leave the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from ...script import roles
from ...script.flow import argument, call_name, literal, method_calls
from ...script.loops import gradients_off
from ...script.names import Function
from ...script.roles import Loop, LoopNode
from ...script.source import File
from ..rewrite.context import Context
from ..rewrite.losses import Kind
from ..rewrite.script import ForNode, Scope, Script
from ..rewrite.training import Training, training_in
from .chance import drawn_by_items
from .facts import guard, in_parts
from .rule import Fix, Hit, rule
from .sums import Sums, loader_origins, plain_batches

_SHARD = "`for batch in rankup.shard(loader, train=False):`"
_BY_HAND = (
    "to shard it by hand: `for batch in rankup.shard(loader, train=False):`, and behind the loop "
    "rankup.total(…) of what are sums over samples, rankup.gather(…) of what are lists of them"
)


class Obstacle(Exception):  # noqa: N818
    """Raised where something stands in the way of sharding an evaluation."""

    def __init__(self, node: ast.AST, text: str) -> None:
        super().__init__(text)
        self.node = node


@rule("RK119", "warning", "evaluated by every rank")
def evaluated_by_all(file: File, script: roles.Script) -> Iterator[Hit]:
    """An evaluation loop over a loader that is not sharded.

    Exact, but no faster than on one GPU. A script that is ported already may leave it so.

    ```diff
     with torch.no_grad():
    -    for x, y in DataLoader(valid, batch_size=64):
    +    for x, y in rankup.shard(DataLoader(valid, batch_size=64)):
             metric.update(model(x), y)
    ```

    Shards it where every value that leaves the loop is a sum over samples: hits, sizes,
    `loss.item() * len(batch)` (`rankup.total`); else the report says what stands in the way.
    """
    if script.distributed:
        return  # what a port leaves as it is
    training = training_in(script, file)
    for loop in training.loops:
        if loop.trains or guard(file, script, loop.node):
            continue
        if any(in_parts(script, file, one) for one in training.sources(loop)):
            continue
        found = obstacle(training, loop)
        if isinstance(found, list):
            todo = f"{_SHARD}; then rankup.total of what are sums over samples"
            fix: Fix = partial(_shard, loop=loop, totals=found)
        else:
            line = file.line(found.node)[0]
            at = "" if line == file.line(loop.node)[0] else f" (line {line})"
            todo = f"nothing, or shard it by hand: what stands in the way is that {found}{at}"
            fix = partial(_leave, loop=loop, reason=f"{found}{at}")
        yield Hit(
            loop.source or loop.node,
            "every rank would evaluate all of this data: exact, and no faster than on one GPU",
            todo,
            fix,
        )


def _shard(context: Context, loop: Loop, totals: list[str]) -> str:
    """`rankup.shard(loader, train=False)` and `rankup.total(…)` where that is exact."""
    for source in context.training.sources(loop):
        context.around(source, "rankup.shard(", ", train=False)")
    names = ", ".join(totals)
    context.sharded.add(loop.node)
    context.after(loop.node, f"{names} = rankup.total({names})")
    return f"each rank evaluates its part, {names} of all ranks (rankup.total)"


def _leave(context: Context, loop: Loop, reason: str) -> str:
    text = f"every rank evaluates everything, which is exact: {reason}; {_BY_HAND}"
    context.leave(loop.node, text, comment=False)
    return ""


def metrics_of_one_rank(context: Context) -> None:
    """A metric of torchmetrics in an evaluation that every rank goes over in full has a remark.

    Its `compute()` puts the ranks' states together: N times the whole, where each rank has all.
    """
    script = context.script
    names = {
        script.dotted(call.func.value if isinstance(call.func, ast.Attribute) else call.func)
        for loop in context.training.loops
        if not loop.trains and loop.node not in context.sharded
        for call in script.inside(loop.node, ast.Call)
    }
    for assign in script.all(ast.Assign):
        made = {script.dotted(one) for one in assign.targets} & names
        for call in script.inside(assign.value, ast.Call) if made else ():
            library, _, kind = script.name(call.func).rpartition(".")
            own = library.split(".")[0] == "torchmetrics" and kind[:1].isupper()
            if own and argument(call, "sync_on_compute") is None and kind != "MetricCollection":
                context.leave(
                    call,
                    "compute() puts the ranks' states together, N times the whole where each rank "
                    "has all of an evaluation: give sync_on_compute=False there",
                )


def obstacle(training: Training, loop: Loop) -> list[str] | Obstacle:
    """The sums that leave an evaluation, or what stands in the way of sharding it."""
    try:
        return additive(training, loop)
    except Obstacle as reason:
        return reason


def additive(training: Training, loop: Loop) -> list[str]:
    """The names that leave an evaluation, each a sum over samples.

    Raises:
        Obstacle: something else leaves it, or that cannot be seen.
    """
    script, node = training.script, loop.node
    if not isinstance(node, ForNode) or node.orelse:
        raise Obstacle(node, "it is no plain `for` loop over a loader")
    if not plain_batches(training, loop):
        raise Obstacle(
            node,
            "its loader is not seen to be a DataLoader that puts samples of one shape together",
        )
    made = [
        one[1]
        for source in training.sources(loop)
        for one in loader_origins(script, source)
        if one is not None
    ]
    if any(_one_by_one(one) for one in made):
        raise Obstacle(node, "its batches are of one sample, which one rank would have all of")
    for source in training.sources(loop):
        for made_at in script.flow.origins(script.file, source):
            for draw in drawn_by_items(script.understood, made_at):
                raise Obstacle(node, f"its data are drawn for each sample, `{ast.unparse(draw)}`")
    values = Sums(training, loop, lambda name: None)
    run = {
        script.dotted(one.func) for one in script.inside(node, ast.Call) if values.runs_model(one)
    }
    if not all(_in_eval_mode(script, node, name) for name in run or {""}):
        raise Obstacle(node, "that the model is in evaluation mode is not seen in this function")
    totals: list[str] = []
    _block(script, values, totals, node.body)
    if not totals:
        raise Obstacle(node, "nothing is counted in it")
    scope = script.scope(node)
    shared = shared_names(script, scope)
    for name in sorted(values.defined.keys() | set(loop.batch)):
        if name not in totals and (name in shared or read_after(script, node, name)):
            raise Obstacle(node, f"`{name}` of the last batch is used behind it")
    for name in sorted(totals):
        if name in shared or not _fresh(script, node, name):
            raise Obstacle(node, f"`{name}` does not begin at nothing before this loop")
    if loop.index is not None and read_after(script, node, loop.index):
        raise Obstacle(node, f"the number of batches, `{loop.index}`, is used behind it")
    return totals


def _one_by_one(loader: ast.Call) -> bool:
    """True where a loader's batches are of one sample."""
    size = argument(loader, "batch_size", 1)
    if size is None:
        return all(one.arg is not None for one in loader.keywords)
    return literal(size) == 1


def _block(script: Script, values: Sums, totals: list[str], block: list[ast.stmt]) -> None:
    for one in block:
        match one:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.With(items=items, body=body):
                for item in items:
                    name = script.name(getattr(item.context_expr, "func", item.context_expr))
                    if not (gradients_off(script.file, one) or name.endswith("autocast")):
                        raise Obstacle(one, f"`with {script.code(item.context_expr)}` in it")
                _block(script, values, totals, body)
            case ast.AugAssign(op=ast.Add(), target=ast.Name(id=name), value=value):
                _counted(script, values, totals, name, value)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.BinOp(op=ast.Add(), left=ast.Name(id=left), right=value),
            ) if name == left:
                values.defined.pop(name, None)
                _counted(script, values, totals, name, value)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _local(script, values, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                _local(script, values, target, value)
            case _:
                text = script.code(one).splitlines()[0]
                raise Obstacle(one, f"`{text}` is no sum over samples")


def _counted(script: Script, values: Sums, totals: list[str], name: str, value: ast.expr) -> None:
    if values.kind(value) not in (Kind.SUM, Kind.SIZE):
        raise Obstacle(
            value, f"`{name} += {script.code(value)}` is not seen to be a sum over samples"
        )
    if name not in totals:
        totals.append(name)


def _local(script: Script, values: Sums, target: ast.expr, value: ast.expr) -> None:
    """A name of the loop's own, of which it is known what it holds."""
    pairs = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if pairs and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for one, other in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            _local(script, values, one, other)
        return
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(one, ast.Name) for one in names):
        raise Obstacle(target, f"`{script.code(target)}` outlives it")
    kind = values.kind(value)
    if kind is Kind.UNKNOWN:
        raise Obstacle(value, f"`{script.code(value)}` is not seen to be of each sample alone")


def _in_eval_mode(script: Script, node: ast.AST, model: str) -> bool:
    """True where `.eval()` is called above a loop in its function, and no `.train()` since."""
    here = script.inside(script.scope(node), ast.Call, deep=False)
    calls = [
        call
        for call, owner in method_calls(here, "eval", "train")
        if f"{model}.".startswith(f"{script.dotted(owner)}." if model else "")
    ]
    before = [call for call in calls if script.span(call)[0] < script.span(node)[0]]
    if not before:
        return False
    last = max(before, key=lambda one: script.span(one)[0])
    off = [one for one in last.args if literal(one) is False]
    around = [up for up in script.above(last) if isinstance(up, ast.If | LoopNode | ast.Try)]
    holds = all(up in list(script.above(node)) for up in around)
    return holds and (call_name(last) == "eval" or bool(off))


def _fresh(script: Script, node: ast.AST, name: str) -> bool:
    """True where a name is given 0 before each time the loop runs."""
    chain: list[ast.AST] = [node]
    for parent in script.above(node):
        if isinstance(parent, Function | LoopNode | ast.If | ast.Try):
            break
        chain.append(parent)
    for at in chain:
        block = script.file.names.block(at)
        for before in reversed(block[: block.index(at)] if at in block else []):  # type: ignore[arg-type]
            uses = [one for one in script.inside(before, ast.Name, deep=False) if one.id == name]
            if not uses:
                continue
            if not isinstance(before, ast.Assign):
                return False
            values = [
                literal(value)
                for where, value in script.assigned(name, script.scope(node))
                if where is before
            ]
            return len(values) == 1 and type(values[0]) in (int, float) and values[0] == 0
    return False


def shared_names(script: Script, scope: Scope) -> set[str]:
    """The names that a function has from around it: `global best`."""
    return {
        name
        for one in script.inside(scope.body, ast.stmt, deep=False)
        if isinstance(one, ast.Global | ast.Nonlocal)
        for name in one.names
    }


def read_after(script: Script, node: ast.AST, name: str) -> bool:
    """True where a name is read behind a loop before it is given another value.

    Behind it is also the beginning of a loop around it, of which there is a next round.
    """
    scope, end = script.scope(node), script.span(node)[1]
    own = script.uses(node, name)
    uses = [one for one in script.uses(scope, name) if one not in own]
    later = sorted((one for one in uses if script.span(one)[0] >= end), key=script.span)
    if later:
        grown = isinstance(script.parents[later[0]], ast.AugAssign)
        return grown or not isinstance(later[0].ctx, ast.Store)
    around = [up for up in script.above(node) if isinstance(up, LoopNode)]
    again = sorted(
        (one for one in uses if around and around[-1] in script.above(one)), key=script.span
    )
    if again:
        return not isinstance(again[0].ctx, ast.Store)
    return bool(around) and bool(own) and isinstance(own[0].ctx, ast.Load)
