"""The training data: each rank takes its part of every batch."""

from __future__ import annotations

import ast

from ....base.errors import UserError
from ....script.flow import argument, call_name, given
from ....script.names import Function
from ....script.roles import LoopNode
from ...rules.chance import drawn_batches
from ...rules.facts import integer
from ..context import Context
from ..script import ForNode
from ..training import Loop, Training

_CONSTRUCTORS = {
    "ones", "zeros", "randn", "rand", "full", "empty", "randint", "arange",
    "FloatTensor", "LongTensor", "Tensor", "view", "reshape", "expand", "new_ones", "new_zeros",
    "new_full", "normal", "init_hidden",
}  # fmt: skip
_DEEPEST = 4


def shard_loaders(context: Context) -> None:
    """`rankup.shard(…)` around what a training loop goes over.

    Where the loader is made if training loops alone use it; else at the head of the loop, so that
    it stays as it is for all else.

    Raises:
        UserError: a loop trains and evaluates, and which of them cannot be said at its head.
    """
    training, script = context.training, context.script
    done: set[ast.AST] = set()
    unseen: list[Loop] = []
    for loop in training.loops:
        if not loop.trains:
            continue
        if loop.unclear:
            raise UserError(
                f"{script.file.path}:{script.line(loop.node)}: not ported: this loop trains and "
                "evaluates, and which of them cannot be seen at its head: give training a loop of "
                'its own, or put its backward under a condition such as `if phase == "train":`'
            )
        sources = training.sources(loop)
        for source in sources:
            _shard(context, loop, source, done)
        if not sources and _unseen(context, loop):
            unseen.append(loop)
    for call in training.elsewhere:
        for arg in _trained_elsewhere(context, call):
            if arg not in done:
                done.add(arg)
                context.around(arg, "rankup.shard(", f"{_per_gpu(context)})")
                context.done(arg, "each rank takes its part of every batch (rankup.shard)")
    for loop in unseen:
        if not done:
            raise UserError(
                f"{script.file.path}:{script.line(loop.node)}: not ported: where this loop has its "
                "batches from is not seen, and every rank would train on all of them: let it go "
                "over a DataLoader that this script makes, or is given by name"
            )
        context.leave(
            loop.node,
            "where this loop has its batches from is not seen: where it is a DataLoader, go over "
            "rankup.shard(…) of it, else every rank trains on all of them",
        )


def _trained_elsewhere(context: Context, call: ast.Call) -> list[ast.expr]:
    """The loaders that a function of another file is given and trains on."""
    script = context.script
    found = script.whole_flow.definition(script.file, call.func)
    if found is None or isinstance(found[1], ast.ClassDef):
        return []
    other = script.sibling(found[0])
    trained = {
        source.id
        for loop in Training(other).loops
        if loop.trains and other.scope(loop.node) is found[1] and isinstance(loop.node, ForNode)
        for source in other.inside(loop.node.iter, ast.Name)
    }
    values = [script.given(found[1], name, call) for name in other.parameters(found[1]) & trained]
    return [one for one in values if one is not None and context.training.loader_of(one)]


def _unseen(context: Context, loop: Loop) -> bool:
    """True where a backward stands in a loop whose batches come from somewhere else."""
    script = context.script
    inside = any(loop.node in script.above(one) for one in context.training.backwards)
    steps = {script.scope(one) for one in context.training.backwards}
    calls = list(script.inside(loop.node.body, ast.Call, deep=False))
    stepping = any(script.called(one) in steps for one in calls)
    loops = {script.scope(one.node) for one in context.training.loops if one.trains}
    own = stepping and not any(script.called(one) in loops for one in calls)
    drawn = any(loop.node in script.above(one) for one in drawn_batches(context.training))
    return (inside or own) and not drawn


def _shard(context: Context, loop: Loop, source: ast.expr, done: set[ast.AST]) -> None:
    training, script = context.training, context.script
    loader = training.loader_of(source)
    options = f"{_trains(context, loop)}{_per_gpu(context)}"
    several = len(training.all_loaders(source)) > 1  # each branch makes its own
    alone = isinstance(loader, ast.Call) and (
        source is loader
        or (not loop.phase and not several and used_by_training_alone(context, loader))
    )
    place = loader if alone and loader is not None else source
    if place in done:
        return
    done.add(place)
    note = "each rank takes its part of every batch (rankup.shard)"
    if loop.phase:
        code = script.code(source)
        context.around(place, "rankup.shard(", f"{options}) if {loop.phase} else {code}")
        note += f", where {loop.phase}"
    else:
        context.around(place, "rankup.shard(", f"{options})")
    context.done(place, note)
    if context.options.batch == "per-gpu" and not alone:
        context.leave(
            place,
            "len() of this loader outside of the loop counts batches of one GPU: the run has fewer "
            "by the number of ranks",
            comment=False,
        )


def _per_gpu(context: Context) -> str:
    return ', batch="per-gpu"' if context.options.batch == "per-gpu" else ""


def _trains(context: Context, loop: Loop) -> str:
    """`train=True` where neither order nor mode tells that batches are trained on."""
    made = [one for one in context.training.loaders_of(loop) if isinstance(one, ast.Call)]
    shuffles = bool(made) and all(
        (value := argument(one, "shuffle", 2)) is not None and context.script.code(value) == "True"
        for one in made
    )
    return ", train=True" if not shuffles and _in_eval_mode(context, loop) else ""


def _in_eval_mode(context: Context, loop: Loop) -> bool:
    """True where a model may be in its evaluation mode when a training loop begins."""
    script = context.script

    def says(node: ast.AST, mode: str) -> bool:
        return any(
            isinstance(call.func, ast.Attribute) and call.func.attr == mode and not given(call)
            for call in script.inside(node, ast.Call)
        )

    if not says(script.tree, "eval"):
        return False
    around = [one for one in script.above(loop.node) if isinstance(one, LoopNode)]
    return not says(around[-1] if around else script.scope(loop.node), "train")


def used_by_training_alone(context: Context, loader: ast.Call) -> bool:
    """True of `loader = DataLoader(…)` whose name is used by training loops and for its length."""
    script = context.script
    assign = script.parents[loader]
    if not (isinstance(assign, ast.Assign) and len(assign.targets) == 1):
        return False
    target = assign.targets[0]
    if not isinstance(target, ast.Name):
        return False
    return _trained_on(context, target.id, script.scope(target), 0)


def _trained_on(context: Context, name: str, scope: ast.AST, depth: int) -> bool:
    script, training, names = context.script, context.training, context.script.file.names
    if depth > _DEEPEST:
        return False
    sources = {
        source
        for loop in training.loops
        if loop.trains and not loop.phase
        for source in training.sources(loop)
    }
    used = False
    for one in script.all(ast.Name):
        if one.id != name or not isinstance(one.ctx, ast.Load):
            continue
        if names.bindings(name, names.scope(one))[0] is not scope:
            continue
        parent = script.parents[one]
        if one in sources:
            used = True
        elif isinstance(parent, ast.Attribute) or (
            isinstance(parent, ast.Call) and script.name(parent.func) == "len"
        ):
            continue
        elif not _handed_to_training(context, one, parent, depth):
            return False
        else:
            used = True
    return used


def _handed_to_training(context: Context, name: ast.Name, parent: ast.AST, depth: int) -> bool:
    """True where a function of the script is given a loader that it trains on and nothing else."""
    script = context.script
    call = script.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is name:
        return False
    function = script.called(call)
    if not isinstance(function, Function):
        return False
    return any(
        script.given(function, parameter, call) is name
        and _trained_on(context, parameter, function, depth + 1)
        for parameter in script.parameters(function)
    )


def batch_size_names(context: Context) -> None:
    """`torch.ones(batch_size, 1)` in a loop means the part of the batch that this rank has."""
    script = context.script
    sizes = batch_sizes(context)
    if not sizes:
        return
    for loop in context.training.loops:
        if not loop.trains:
            continue
        batch = first_of_batch(context, loop)
        own = {
            one.id for one in script.inside(loop.node, ast.Name) if isinstance(one.ctx, ast.Store)
        }
        for call in script.inside(loop.node.body, ast.Call, deep=False):
            makes = call_name(call) in _CONSTRUCTORS
            for value in (one for arg in given(call) for one in _alone_or_in_tuple(arg)):
                if script.code(value) not in sizes - own:
                    continue
                if makes and batch is not None:
                    context.replace(value, f"{batch}.size(0)")
                    context.done(value, "a batch here is this rank's part of it")
                elif makes or script.called(call) is not None:
                    context.leave(
                        call,
                        f"{script.code(value)} is the size of the whole batch, of which a rank "
                        "has a part: take the size from the batch",
                    )


def batch_sizes(context: Context) -> set[str]:
    """What the script calls the sizes of its loaders' batches: `args.batch_size`."""
    return {
        context.script.code(arg)
        for call in context.training.loader_calls
        if (arg := argument(call, "batch_size", 1)) is not None and not integer(arg)
    }


def first_of_batch(context: Context, loop: Loop) -> str | None:
    """The first name that a loop gives a tensor of the batch."""
    if not isinstance(loop.node, ForNode):
        return None
    target: ast.expr = loop.node.target
    if loop.index is not None and isinstance(target, ast.Tuple):
        target = target.elts[1]
    names = [name.id for name in context.script.inside(target, ast.Name)]
    several = isinstance(target, ast.Tuple | ast.List)
    return names[0] if names and several and names[0] != "_" else None


def _alone_or_in_tuple(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts
    return [value]
