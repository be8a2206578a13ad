"""Each rank its part of the training data, in a new order each epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ...script.flow import argument, call_name, given, literal, method_calls
from ...script.names import calls_in, walk
from ...script.roles import Loop, LoopNode, Role, Script
from ...script.source import File
from ...script.torch_names import LOADER_WRAPPERS
from ..match import Pattern
from ..rewrite.context import Context
from ..rewrite.training import Training, training_in
from .chance import drawn_batches
from .facts import (
    by_hand,
    in_parts,
    is_reduction,
    loop_sharded,
    names_rank,
    samplers,
    sharded_loader,
    true,
    wrapped,
)
from .rule import Hit, refuse, rule
from .unfit import data_of, not_data_parallel, stream_of

_SHARD = "`for batch in rankup.shard(loader):` gives each rank its part of every batch"
_EVERYTHING = "every rank would train on all of this data, the same again"
_DONE = "each rank takes its part of every batch (rankup.shard)"
_UNCLEAR = "this loop trains and evaluates"
_APART = "give training a loop of its own"
UNSEEN = "where this {} has its batches from is not seen, and every rank would train on all of them"
CALLED_BY_NAME = (
    "call the function that trains by its name, and a method by one that no optimizer has, in a "
    "loop over a DataLoader that this script makes"
)
_AHEAD = (
    "this iterator draws a batch before the one it gives is trained on, and rankup.shard weighs "
    "ranks by the batch drawn last"
)
_WORKERS = "go over the DataLoader itself: with num_workers it prepares batches ahead"
_WRAPPED = "this loop is given `{}`, and rankup.shard takes a DataLoader"
_OVER = "let it go over the DataLoader, or put rankup.shard around that by hand"
_DEEPEST = 4
_SAMPLERS = Pattern(
    "__.DistributedSampler(dataset=[_], num_replicas=[_], rank=[_], shuffle=[_shuffle])"
)
_EVEN = (
    "give all ranks equal numbers of samples, or pack it, `rankup pack`: rankup.data.PackedDataset "
    "has positions that rankup.shard deals"
)
# `with Join([model]):` and `model.join()` let ranks end at different times.
_END = re.compile(r"\bJoin\(|\.join\(\s*\)|with_epoch|resampled")


@rule("RK111", "error", "data not sharded over the ranks")
def not_sharded(file: File, script: Script) -> Iterator[Hit]:
    """A training loop over a DataLoader that has neither a distributed sampler nor `rankup.shard`.

    Every rank trains on the same batches: N times the cost for the same result.

    ```diff
     loader = DataLoader(dataset, batch_size=64, shuffle=True)
    -for x, y in loader:
    +for x, y in rankup.shard(loader):
         F.cross_entropy(model(x), y).backward()
    ```

    Puts `rankup.shard(…)` around the loader, where it is made or where the loop starts.
    """
    training = training_in(script, file)
    placed: set[ast.AST] = set()
    unseen: list[Loop] = []
    for loop in training.loops:
        if not loop.trains:
            continue
        if loop.unclear and not script.distributed:
            reason = f"{_UNCLEAR}: {_APART}"
            yield Hit(loop.node, _UNCLEAR, _APART, partial(refuse, node=loop.node, reason=reason))
        sources = training.sources(loop)
        for source in sources:
            ahead = next(filter(training.draws_ahead, training.script.above(source)), None)
            if ahead is not None and not script.distributed:
                reason = f"{_AHEAD}: {_WORKERS}"
                yield Hit(ahead, _AHEAD, _WORKERS, partial(refuse, node=ahead, reason=reason))
            place = _place(training, loop, source)
            if place in placed or not _left_whole(file, script, source):
                continue
            wrapped = _given_wrapped(training, source) if place is source else []
            if wrapped and not script.distributed:
                inner = _within(training, source, wrapped)
                if inner is None:
                    reason = _WRAPPED.format(ast.unparse(wrapped[0][1]))
                    yield Hit(
                        loop.node,
                        reason,
                        _OVER,
                        partial(refuse, node=loop.node, reason=f"{reason}: {_OVER}"),
                    )
                    continue
                place = inner
                if place in placed:
                    continue
            placed.add(place)
            yield Hit(
                place, _EVERYTHING, _SHARD, partial(_shard, loop=loop, source=source, place=place)
            )
        if not sources and not script.distributed and _unseen(training, loop):
            unseen.append(loop)
    unfit = bool(unseen) and any(True for _ in not_data_parallel.look(file, script))
    for loop in unseen if not unfit else ():
        what = UNSEEN.format("loop")
        todo = "let it go over a DataLoader that this script makes, or is given by name"
        fix = partial(refuse, node=loop.node, reason=f"{what}: {todo}")
        yield Hit(loop.source or loop.node, what, todo, fix)


def _given_wrapped(training: Training, source: ast.expr) -> list[tuple[File, ast.Call]]:
    """The `islice(loader, 5)`, or `OnDevice(loader)` of the script's own, that a loop is given."""
    script = training.script
    flow = script.flow
    found: list[tuple[File, ast.Call]] = []
    for one in flow.origins(script.file, source):
        around = [at for at in one.through if call_name(at[1]) in LOADER_WRAPPERS]
        if around and all(call_name(call) != "shard" for _, call in around):
            found.append(around[0])
        owner = flow.class_of(one.file, one.node) if isinstance(one.node, ast.Call) else None
        if owner is not None and "__iter__" in owner[0].names.members(owner[1]):
            found.append((one.file, one.node))  # type: ignore[arg-type]
    return list(dict.fromkeys(found))


def _within(
    training: Training, source: ast.expr, wrapped: list[tuple[File, ast.Call]]
) -> ast.expr | None:
    """The loader in the one such call that a training loop is given, and no other loop."""
    script, flow = training.script, training.script.flow
    (file, call), *others = wrapped
    if others or file is not script.file:
        return None
    loaders = [one for one in given(call) if training.loader_of(one) is not None]
    if len(loaders) != 1:
        return None
    made = {one.node for one in flow.origins(file, source)} - {call}
    elsewhere = [
        at
        for loop in training.loops
        if not loop.trains
        for one in training.sources(loop)
        for at in _given_wrapped(training, one)
    ]
    inner = {one.node for one in flow.origins(file, loaders[0])} - {call}
    return loaders[0] if made <= inner and (file, call) not in elsewhere else None


def _left_whole(file: File, script: Script, source: ast.expr) -> bool:
    """True where no rank has a part of what a loop trains on."""
    known = [one for one in script.of(file, source) if one.kind.endswith("_loader")]
    if not by_hand(script) and not any(one.confidence >= 0.9 for one in known):
        return False
    if any(stream_of(script.flow, one) for one in script.flow.origins(file, source)):
        return False  # RK117
    return not in_parts(script, file, source)


def _unseen(training: Training, loop: Loop) -> bool:
    """True where a backward stands in a loop whose batches come from somewhere else."""
    script = training.script
    inside = any(loop.node in script.above(one) for one in training.backwards)
    steps = {script.scope(one) for one in training.backwards}
    calls = list(script.inside(loop.node.body, ast.Call, deep=False))
    stepping = any(script.called(one) in steps for one in calls)
    loops = {script.scope(one.node) for one in training.loops if one.trains}
    own = stepping and not any(script.called(one) in loops for one in calls)
    drawn = any(loop.node in script.above(one) for one in drawn_batches(training))
    return (inside or own) and not drawn


def _place(training: Training, loop: Loop, source: ast.expr) -> ast.expr:
    """Where `rankup.shard(…)` belongs: where the loader is made if training loops alone use it;
    else at the head of the loop, so that it stays as it is for all else."""
    loader = training.loader_of(source)
    several = len(training.all_loaders(source)) > 1  # each branch makes its own
    alone = isinstance(loader, ast.Call) and not several
    return loader if alone and _used_by_training_alone(training, loader) else source  # type: ignore


def _shard(context: Context, loop: Loop, source: ast.expr, place: ast.expr) -> str:
    per_gpu = context.options.batch == "per-gpu"
    options = _trains(context.training, loop) + (', batch="per-gpu"' if per_gpu else "")
    context.around(place, "rankup.shard(", f"{options})")
    alone = place is context.training.loader_of(source)
    if per_gpu and not alone:
        context.leave(
            place,
            "len() of this loader outside of the loop counts batches of one GPU, N times as many",
            comment=False,
        )
    return _DONE


def _trains(training: Training, loop: Loop) -> str:
    """`train=True` where neither order nor mode tells that batches are trained on."""
    made = [one for one in training.loaders_of(loop) if isinstance(one, ast.Call)]
    shuffles = bool(made) and all(
        (value := argument(one, "shuffle", 2)) is not None and training.script.code(value) == "True"
        for one in made
    )
    return ", train=True" if not shuffles and _in_eval_mode(training, loop) else ""


def _in_eval_mode(training: Training, loop: Loop) -> bool:
    """True where a model may be in its evaluation mode when a training loop begins."""
    script = training.script

    def says(node: ast.AST, mode: str) -> bool:
        calls = method_calls(script.inside(node, ast.Call), mode)
        return any(not given(call) for call, _ in calls)

    if not says(script.tree, "eval"):
        return False
    around = [one for one in script.above(loop.node) if isinstance(one, LoopNode)]
    return not says(around[-1] if around else script.scope(loop.node), "train")


def _used_by_training_alone(training: Training, loader: ast.Call) -> bool:
    """True of `loader = DataLoader(…)` whose name is used by training loops and for its length."""
    script = training.script
    assign = script.parents[loader]
    if not (isinstance(assign, ast.Assign) and len(assign.targets) == 1):
        return False
    target = assign.targets[0]
    if not isinstance(target, ast.Name):
        return False
    return _trained_on(training, target.id, script.scope(target), 0)


def _trained_on(training: Training, name: str, scope: ast.AST, depth: int) -> bool:
    script, names = training.script, training.script.file.names
    if depth > _DEEPEST:
        return False
    sources = {
        source for loop in training.loops if loop.trains for source in training.sources(loop)
    }
    used = False
    for one in script.all(ast.Name):
        if one.id != name or not isinstance(one.ctx, ast.Load):
            continue
        if names.bindings(name, names.scope(one))[0] is not scope:
            continue
        parent = script.parents[one]
        length = isinstance(parent, ast.Call) and script.name(parent.func) == "len"
        if one not in sources and (length or isinstance(parent, ast.Attribute)):
            continue
        if one not in sources and not _handed_to_training(training, one, parent, depth):
            return False
        used = True
    return used


def _handed_to_training(training: Training, name: ast.Name, parent: ast.AST, depth: int) -> bool:
    """True where a function of the script is given a loader that it trains on and nothing else."""
    script = training.script
    call = script.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is name:
        return False
    function = script.called(call)
    return function is not None and any(
        script.given(function, parameter, call) is name
        and _trained_on(training, parameter, function, depth + 1)
        for parameter in script.parameters(function)
    )


@rule("RK112", "error", "no set_epoch")
def no_set_epoch(file: File, script: Script) -> Iterator[Hit]:
    """A `DistributedSampler` that shuffles for training, and no `set_epoch` anywhere.

    The sampler shuffles with the same seed in every epoch: all have the same batches.

    ```diff
     sampler = DistributedSampler(dataset)
     loader = DataLoader(dataset, batch_size=64, sampler=sampler)
     for epoch in range(10):
    +    sampler.set_epoch(epoch)
         for x, y in loader:
             F.cross_entropy(model(x), y).backward()
    ```

    Nothing: `rankup.shard` takes the order from the loader's own sampler.
    """
    if any(".set_epoch(" in one.text for one in script.files):
        return
    trains = {node for loader in script.train_loaders for _, node in samplers(script, loader)}
    for match in _SAMPLERS.find(file):
        if match.call in trains and literal(match.get("shuffle")) is not False:
            yield Hit(
                match.call,
                "without set_epoch this sampler gives the same order in every epoch",
                "sampler.set_epoch(epoch) at the top of each epoch; rankup.shard needs none",
            )


@rule("RK113", "error", "evaluation padded or cut")
def evaluation_padded(file: File, script: Script) -> Iterator[Hit]:
    """A `DistributedSampler` or `drop_last=True` on a loader that is only evaluated on.

    Samples are repeated or dropped until all ranks have as many: the accuracy is that of another
    data set, and changes with the number of GPUs.

    ```diff
    -valid = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
    +valid = DataLoader(dataset, batch_size=64)
     with torch.no_grad():
    -    for x, y in valid:
    +    for x, y in rankup.shard(valid):
             metric.update(model(x), y)
    ```

    Uses `rankup.shard`, which neither pads nor drops.
    """
    trains = {node for loader in script.train_loaders for _, node in samplers(script, loader)}
    in_training = {loader.node for loader in script.train_loaders}
    for loader in script.eval_loaders:
        if loader.node in in_training or not isinstance(loader.node, ast.Call):
            continue
        for where, node in samplers(script, loader):
            if where is not file or not isinstance(node, ast.Call) or node in trains:
                continue
            if call_name(node) != "DistributedSampler":
                continue
            drops = true(argument(node, "drop_last", 5))
            if drops and any("Subset(" in one.text for one in script.files):
                continue  # the rest is evaluated apart
            what = "drops" if drops else "repeats"
            yield Hit(
                node,
                f"DistributedSampler {what} samples: the evaluation is not of the data set",
                "`for batch in rankup.shard(loader):` neither pads nor drops, then rankup.mean",
            )
        if loader.file is file and true(argument(loader.node, "drop_last")):
            yield Hit(
                loader.node,
                "drop_last leaves the last samples out of the evaluation, more with more ranks",
                "remove drop_last=True here",
            )


@rule("RK117", "error", "a stream that ranks do not share")
def stream_not_shared(file: File, script: Script) -> Iterator[Hit]:
    """A loader over an `IterableDataset`, or a streaming data set, that nothing splits, or that
    ranks split into parts of different lengths while a wrapper waits for all of them.

    A stream has no positions that a sampler could deal: all ranks read the same samples. Where each
    takes every N-th of them, one may have a batch more, and waits for the others at the end.

    ```diff
     class Lines(torch.utils.data.IterableDataset):
         def __iter__(self):
    -        return iter(open("lines.txt"))
    +        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    +        lines = open("lines.txt").readlines()
    +        return iter(lines[rank : len(lines) // world_size * world_size : world_size])

     loader = DataLoader(Lines(), batch_size=64)
     for x in loader:
         model(x).mean().backward()
    ```

    Nothing: it refuses, since `rankup.shard` has no positions to cut by. What `rankup pack` writes
    has positions: `rankup.data.PackedDataset` reads it.
    """
    for loader in script.train_loaders:
        if loader.file is not file:
            continue
        if sharded_loader(script, loader):
            uneven = _uneven_parts(script, loader)
            if uneven:
                message = f"ranks may have different numbers of batches of {uneven}: one waits"
                yield Hit(loader.node, f"{message} at the end for the others", _EVEN)
            continue
        if any(loop_sharded(script, loop) for loop in script.train_loops if loader in loop.loaders):
            continue
        made = stream_of(script.flow, loader)
        if made:
            yield Hit(
                loader.node,
                f"{made} is read in full by every rank: a stream has no positions to shard by",
                _EVEN,
            )


def _uneven_parts(script: Script, loader: Role) -> str:
    """The stream of the script's own of which ranks may have parts of different lengths.

    Empty where something evens them: a number of steps, whole multiples of the number of ranks, a
    stream without an end, `Join`, or where no wrapper waits.
    """
    waits = {kind for kinds in wrapped(script).values() for kind in kinds} & {"ddp", "fsdp"}
    loops = [one for one in script.train_loops if loader in one.loaders]
    if not waits or any(_END.search(one.text) for one in script.files):
        return ""
    if any(_steps_counted(one) for one in loops):
        return ""
    for origin in data_of(script.flow, loader.file, loader.node):
        owner = script.flow.class_of(origin.file, origin.node)
        if owner is None or not stream_of(script.flow, loader):
            continue
        places = [(origin.file, origin.node), *script.flow.family(*owner)]
        if not any(_evened(where, one) for where, at in places for one in walk(at)):
            return owner[1].name
    return ""


def _evened(file: File, node: ast.AST) -> bool:
    """True of `count // world_size`, `count % world_size`, and of what goes round for ever.

    Not of `number % world_size == rank`, by which a rank only chooses.
    """
    match node:
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=right):
            return names_rank(right) and not isinstance(file.names.parents[node], ast.Compare)
        case ast.While(test=ast.Constant(value=value)):
            return bool(value)
        case ast.Call():
            return call_name(node) in ("cycle", "repeat", "count", "divmod")
    return False


def _steps_counted(loop: Loop) -> bool:
    """True of a loop that ends after a number of batches, or where ranks agree on its end."""
    head = loop.node.iter if not isinstance(loop.node, ast.While) else loop.node.test
    cut = {call_name(one) for one in calls_in(head)} & {"islice", "zip", "range", "trange"}
    agreed = any(is_reduction(loop.file, one) for one in calls_in(*loop.body))
    return bool(cut) or agreed or any(isinstance(one, ast.Break) for one in walk(*loop.body))
