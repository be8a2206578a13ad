"""The data: each rank takes its part of every batch."""

from __future__ import annotations

import ast

from ....script.flow import argument, given
from ....script.loops import no_grad
from ....script.loops import without_gradients as decorated
from ....script.names import Function, walk
from ....script.roles import LoopNode
from ...rules.facts import integer
from ..context import Context
from ..script import ForNode
from ..training import Loop

_CONSTRUCTORS = {
    "ones", "zeros", "randn", "rand", "full", "empty", "randint", "arange",
    "FloatTensor", "LongTensor", "Tensor", "view", "reshape", "expand", "new_ones", "new_zeros",
    "new_full", "normal", "init_hidden",
}  # fmt: skip


def shard_loaders(context: Context) -> None:
    """`rankup.shard(DataLoader(…))` where the script makes its loaders."""
    for call in context.training.loader_calls:
        if context.one_by_one(call):
            shuffle = argument(call, "shuffle", 2)
            drawn = shuffle is not None and context.script.code(shuffle) != "False"
            context.leave(
                call,
                "every rank evaluates all of this, sample by sample: exact, and not faster than on "
                "one GPU. Larger batches would be dealt over the ranks"
                + (
                    "; each draws an order of its own, so that what is decided by the numbers has "
                    "to be rank 0's (rankup.broadcast)"
                    if drawn
                    else ""
                ),
                comment=False,
            )
            continue
        elsewhere = _only_elsewhere(context, call)
        if elsewhere:
            context.leave(
                call,
                f"every rank goes over all of this in {elsewhere}, which stays as it is: exact, "
                "and not faster than on one GPU",
                comment=False,
            )
            continue
        options = _options(context, call)
        context.around(call, "rankup.shard(", f"{options})")
        both = context.serves_both(call)
        context.done(
            call,
            "each rank takes its part of every batch (rankup.shard)"
            + ("; all go round equally often where a loop evaluates, too" if both else ""),
        )


def _only_elsewhere(context: Context, loader: ast.Call) -> str:
    """The file beside the script where alone a loader is gone over, and not trained from."""
    script, training = context.script, context.training
    if any(loader in training.loaders_of(one) for one in training.loops):
        return ""
    files = []
    for call in script.all(ast.Call):
        path = script.beside(call)
        if path and any(training.loader_of(arg) is loader for arg in given(call)):
            if call in training.elsewhere:
                return ""
            files.append(path.name)
    return files[0] if files else ""


def shard_foreign(context: Context) -> None:
    """`loader = rankup.shard(loader)` behind a call that brings a loader from elsewhere."""
    training = context.training
    names = training.foreign()
    seen: set[ast.AST] = set()
    for loop in training.loops:
        for origin in training.loaders_of(loop):
            if origin in training.loader_calls or origin in seen:
                continue
            if isinstance(origin, ast.Assign | ast.AnnAssign):
                found = _loader_names(context, origin, names.get(origin, set()))
                if not found:
                    text = "every rank would go over all of this: deal it with rankup.shard(loader)"
                    context.leave(origin, text)
                for name in found:
                    call = f"rankup.shard({name}{_foreign_options(context, loop)})"
                    if _by_key(context, name):
                        dealt = call.replace(f"({name}", "(one", 1)
                        call = f"{{key: {dealt} for key, one in {name}.items()}}"
                    context.after(context.script.statement(origin), f"{name} = {call}")
                    context.done(origin, f"each rank takes its part of every batch of {name}")
            elif isinstance(origin, ast.Call):
                context.around(origin, "rankup.shard(", f"{_foreign_options(context, loop)})")
                context.done(origin, "each rank takes its part of every batch (rankup.shard)")
            seen.add(origin)


def _by_key(context: Context, name: str) -> bool:
    """Whether loops go over values of a dictionary of that name: `loaders[phase]`."""
    sources = [one.source for one in context.training.loops]
    return any(
        isinstance(one, ast.Subscript)
        and context.script.dotted(one.value) == name
        and not any(integer(inner) for inner in walk(one))
        for one in sources
    )


def _loader_names(
    context: Context, origin: ast.Assign | ast.AnnAssign, iterated: set[str]
) -> list[str]:
    """What an assignment calls the loaders: of several values, those that a loop goes over."""
    script, names = context.script, []
    if isinstance(origin, ast.AnnAssign):
        return [script.dotted(origin.target)]
    for target in origin.targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for part in parts:
            written = script.dotted(part)
            if written and (len(parts) == 1 or written in iterated):
                names.append(written)
    return names


def _foreign_options(context: Context, loop: Loop) -> str:
    options = ', batch="per-gpu"' if context.options.batch == "per-gpu" and loop.trains else ""
    both = any(context.serves_both(one) for one in context.training.loaders_of(loop))
    return f", train=True{options}" if both else options


def _options(context: Context, call: ast.Call) -> str:
    """`train=` where neither the order nor the model's mode tells; `batch=` where asked."""
    loops = [one for one in context.training.loops if call in context.training.loaders_of(one)]
    trains = any(loop.trains for loop in loops) or not loops
    options = ""
    if loops and not trains and not all(without_gradients(context, loop.node) for loop in loops):
        options = ", train=False"
    shuffle = argument(call, "shuffle", 2)
    shuffles = shuffle is not None and context.script.code(shuffle) == "True"
    if (
        loops
        and all(one.trains for one in loops)
        and not shuffles
        and _in_eval_mode(context, loops)
    ):
        options = ", train=True"
    if context.serves_both(call):
        options = ", train=True"  # what the loop says of its batches needs all ranks
    if context.options.batch == "per-gpu" and trains:
        options += ', batch="per-gpu"'
    return options


def _in_eval_mode(context: Context, loops: list[Loop]) -> bool:
    """Whether a model may be in its evaluation mode when a training loop begins."""
    script = context.script

    def says(node: ast.AST, mode: str) -> bool:
        return any(
            isinstance(call.func, ast.Attribute) and call.func.attr == mode and not given(call)
            for call in script.inside(node, ast.Call)
        )

    if not says(script.tree, "eval"):
        return False
    for loop in loops:
        around = [one for one in script.above(loop.node) if isinstance(one, LoopNode)]
        scope = script.scope(loop.node)
        inner = around[-1] if around else scope
        if not says(inner, "train"):
            return True
    return False


def without_gradients(context: Context, node: ast.AST) -> bool:
    """Whether a statement stands under `torch.no_grad()` or `inference_mode()`."""
    script = context.script
    for parent in script.above(node):
        if no_grad(parent) or (isinstance(parent, Function) and decorated(parent)):
            return True
        if isinstance(parent, Function):
            calls = script.calls_of.get(parent, [])
            return bool(calls) and all(without_gradients(context, call) for call in calls)
    return False


def deal_drawn(context: Context) -> None:
    """`x, y = rankup.deal(get_batch(…))`: batches that the script draws itself."""
    if context.options.batch == "global":
        for call in drawn_batches(context):
            context.around(call, "rankup.deal(")
            context.done(call, "each rank takes its part of a batch drawn by hand (rankup.deal)")


def drawn_batches(context: Context) -> list[ast.Call]:
    """Calls in a loop that draw a batch by numbers."""
    script = context.script
    drawers = {
        function
        for function in script.functions
        if any(
            script.name(c.func) in ("torch.randint", "numpy.random.randint")
            for c in script.inside(function, ast.Call)
        )
        and any(True for _ in script.inside(function, ast.Return))
        and not isinstance(script.owner(function), ast.ClassDef)
    }
    return [
        call
        for call in script.all(ast.Call)
        if script.called(call) in drawers
        and any(loop.node in script.above(call) for loop in context.training.loops)
    ]


def batch_size_names(context: Context) -> None:
    """`torch.ones(batch_size, 1)` in a loop means the part of the batch that this rank has."""
    script = context.script
    sizes = {
        script.code(arg)
        for call in context.training.loader_calls
        if (arg := argument(call, "batch_size", 1)) is not None and not integer(arg)
    }
    for loop in context.training.loops:
        batch = first_of_batch(context, loop)
        if batch is None:
            continue
        for call in script.inside(loop.node.body, ast.Call, deep=False):
            last = script.code(call.func).split(".")[-1]
            if last not in _CONSTRUCTORS:
                continue
            for arg in given(call):
                for value in _alone_or_in_tuple(arg):
                    if script.code(value) in sizes:
                        context.replace(value, f"{batch}.size(0)")
                        context.done(value, "a batch here is this rank's part of it")

    _peeked(context)


def _peeked(context: Context) -> None:
    """`len(next(iter(loader))[0])`: a batch looked at outside of the loops is a rank's part."""
    script = context.script
    known = {script.code(one.source) for one in context.training.loops if one.source is not None}
    for call in script.all(ast.Call):
        code = script.code(call)
        if not code.startswith("len(next(iter("):
            continue
        looked = code.removeprefix("len(next(iter(").partition(")")[0]
        if looked in known:
            context.around(call, "rankup.all_reduce(")
            context.done(call, "the size of the whole batch (rankup.all_reduce)")
        else:
            context.leave(call, "this is the size of this rank's part of the batch", comment=False)


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
