"""What port does not put together, or cannot see through: said at the line, nothing changed."""

from __future__ import annotations

import ast
import re

from ....script.flow import argument, given
from ....script.names import Function
from ....script.roles import LoopNode
from ..context import Context
from ..expressions import read, targets_of, words
from ..script import ForNode
from ..training import Loop
from .kinds import derived, increments, made_anew

_TAKES = ("update", "add", "add_batch")
_OF_LOSSES = re.compile(r"loss|dice|jaccard|tversky|iou|criterion", re.IGNORECASE)
_CLOCK = re.compile(r"\btime\.(time|monotonic|perf_counter)\(|\bdatetime\.|\belapsed\b")


def of_a_part(context: Context) -> None:
    """Remarks on what is of this rank's part of a batch, or of its clock, alone."""
    _unfrozen(context)
    _collected(context)
    _single_batches(context)
    _by_the_clock(context)
    _ratios(context)
    _mixed(context)
    _side_by_side(context)
    for loop in context.training.loops:
        if not loop.trains and loop.source is not None and context.dealt(loop):
            _kept(context, loop)


def _unfrozen(context: Context) -> None:
    """Layers that begin to train when the model was wrapped long ago."""
    script = context.script
    found: list[ast.AST] = [
        one
        for one in script.all(ast.Assign)
        if script.code(one.targets[0]).endswith(".requires_grad")
        and script.code(one.value) == "True"
    ]
    found += [
        call
        for call in script.all(ast.Call)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "requires_grad_"
        and all(script.code(arg) == "True" for arg in given(call))
    ]
    models = {model.name.split(".")[0] for model in context.training.models}
    for node in found:
        above = [one for one in script.above(node) if isinstance(one, LoopNode)]
        names = {
            name
            for place in (node, *above[:1])
            for name in words(place.iter if isinstance(place, ForNode) else node)
        }
        if names & models and any(context.training.trains(one) for one in above):
            context.leave(
                node,
                "what is unfrozen behind rankup.wrap exchanges no gradients: let it train from the "
                "beginning, with a learning rate of 0 until now",
            )


def _collected(context: Context) -> None:
    """Comprehensions over a loader that is dealt."""
    script, training = context.script, context.training
    for one in script.all(ast.comprehension):
        loader = training.loader_of(one.iter)
        if loader is None or context.one_by_one(loader):
            continue
        context.leave(
            one.target,
            "what is collected here is of this rank's part of the batches: write it as a loop, "
            "which port puts together, or call rankup.total or rankup.gather",
        )


def _single_batches(context: Context) -> None:
    """`next(iter(loader))` outside a training, and batches that come a second time."""
    script, training = context.script, context.training
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if name == "itertools.cycle" and call.args and training.loader_of(call.args[0]):
            context.leave(
                call,
                "the same batches come again and again, shuffled once: right, but what is printed "
                "of a batch that came before is weighed by the newest one's size",
                comment=False,
            )
        if name != "next" or not call.args:
            continue
        inner = _begun(context, call.args[0])
        if inner is None or not inner.args:
            continue
        above = set(script.above(call))
        trained = any(loop.trains and loop.node in above for loop in training.loops)
        if not trained and training.loader_of(inner.args[0]) is not None:
            context.leave(
                call,
                "each rank has its part of this batch: what is computed of it alone is not that of "
                "the whole one (rankup.gather)",
                comment=False,
            )


def _side_by_side(context: Context) -> None:
    """`zip(one, other)` over loaders whose batches are of different sizes."""
    script, training = context.script, context.training
    heads = [
        one.node.iter for one in training.loops if one.trains and isinstance(one.node, ForNode)
    ]
    for call in (call for head in heads for call in script.inside(head, ast.Call)):
        if script.name(call.func) != "zip":
            continue
        loaders = [training.loader_of(arg) for arg in given(call)]
        made = [one for one in loaders if isinstance(one, ast.Call)]
        sizes = [argument(one, "batch_size", 1) for one in made]
        if len({script.code(one) if one else "1" for one in sizes}) > 1:
            context.leave(
                call,
                "gradients and means are weighed by this rank's part of the last loader's batch: "
                "not quite those of one GPU at a short batch of another loader",
                comment=False,
            )


def _begun(context: Context, value: ast.expr) -> ast.Call | None:
    """The `iter(…)` that a `next` is given, itself or by a name."""
    script = context.script
    made = [value]
    if isinstance(value, ast.Name):
        given = context.training.assigned(value.id, script.scope(value))
        made = [one for _, one in given]
    for one in made:
        if isinstance(one, ast.Call) and script.name(one.func) == "iter":
            return one
    return None


def _mixed(context: Context) -> None:
    """Samples of a batch that are mixed with each other, and statistics over the batches."""
    script, training = context.script, context.training
    steps = [
        one
        for loop in training.loops
        if loop.trains
        for one in script.inside(loop.node.body, ast.Call, deep=False)
    ]
    reached = {function for call in steps if (function := script.called(call)) is not None}
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if (
            name == "torch.randperm"
            and call.args
            and (call in steps or script.scope(call) in reached)
        ):
            context.leave(
                call,
                "the samples of this rank's part of a batch are put together among themselves: as "
                "random as on one GPU, but other pairs",
                comment=False,
            )
        if name.endswith("swa_utils.update_bn") and call.args:
            context.leave(
                call,
                "the statistics of batch norm are of this rank's part of the batches: give it "
                "the loader as it was before rankup.shard",
            )


def _by_the_clock(context: Context) -> None:
    """A rank that looks at its own clock ends alone."""
    script = context.script
    for one in script.all(ast.If):
        leaves = any(True for _ in script.inside(one.body, ast.Break, deep=False))
        loops = [up for up in script.above(one) if isinstance(up, LoopNode)]
        if (
            leaves
            and _CLOCK.search(script.code(one.test))
            and any(context.training.trains(up) for up in loops)
        ):
            context.leave(
                one,
                "each rank looks at its own clock, and one that stops alone leaves the others "
                "waiting: let rank 0 decide, rankup.broadcast(…)",
            )


def _ratios(context: Context) -> None:
    """A loss of the script's own that divides sums over the whole batch, as Dice does."""
    script = context.script
    for function in script.functions:
        owner = script.owner(function)
        names = [function.name, owner.name if isinstance(owner, ast.ClassDef) else ""]
        if not any(_OF_LOSSES.search(name) for name in names):
            continue
        for one in script.inside(function.body, ast.BinOp):
            sides = [script.code(one.left), script.code(one.right)]
            if isinstance(one.op, ast.Div) and _sums(context, function, sides):
                context.leave(
                    one,
                    "a ratio of sums over the batch, of which each rank has its part: not the "
                    "ratio of the whole batch. Take it for each sample and average these",
                )
                break


def _sums(context: Context, function: Function, sides: list[str]) -> bool:
    """Whether both sides are sums over all there is, maybe through a name."""
    script = context.script
    made = {
        script.dotted(one.targets[0])
        for one in script.inside(function.body, ast.Assign)
        if ".sum()" in script.code(one.value)
    }
    return all(".sum()" in side or made & set(re.findall(r"\w+", side)) for side in sides)


def _kept(context: Context, loop: Loop) -> None:
    """What an evaluation keeps in another way than by adding up."""
    script = context.script
    known = {one.target for one in increments(context, loop)} | made_anew(context, loop)
    assigns = list(script.inside(loop.node.body, ast.Assign, deep=False))
    for assign in assigns:  # under `with`, too
        used = read(assign.value)
        names = {script.dotted(one) for one in targets_of(assign.targets[0])}
        known |= {name for name in names if name and name not in used}
    made = derived(context, loop)
    for call in script.inside(loop.node.body, ast.Call, deep=False):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _TAKES:
            continue
        holder = script.dotted(call.func.value)
        used = words(given(call))
        alone = isinstance(script.parents.get(call), ast.Expr)
        if alone and holder and holder not in known and used & made and _own(context, holder):
            context.leave(
                call,
                f"{holder} takes in this rank's part of the batches: put it together behind the "
                "loop (rankup.total), or give it what rankup.gather returns",
            )
            known.add(holder)
    for assign in assigns:
        target = assign.targets[0]
        written = script.dotted(target)
        used = read(assign.value)
        if isinstance(target, ast.Subscript):
            written = script.dotted(target.value)
            grows = True
        else:
            grows = bool(written) and written in used
        if written and grows and written not in known and (used - {written}) & made:
            context.leave(
                assign,
                f"{written} is of this rank's part of the batches: put it together behind the loop "
                "(rankup.gather, rankup.total)",
            )
            known.add(written)


def _own(context: Context, name: str) -> bool:
    """Whether an object is of a class of the script, which puts nothing together by itself."""
    script = context.script
    classes = {one.name for one in script.all(ast.ClassDef)}
    return any(
        isinstance(one.value, ast.Call) and script.dotted(one.value.func) in classes
        for one in script.all(ast.Assign)
        if script.dotted(one.targets[0]) == name
    )
