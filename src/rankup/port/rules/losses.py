"""The loss that is differentiated: a sum, a mean over some targets, or one between samples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from ...script.effects import run_by_call
from ...script.flow import Flow, argument, call_name, given, literal
from ...script.names import (
    COMPREHENSIONS,
    Function,
    elements,
    inside,
    made_of,
    mentioned,
    walk,
    words_in,
)
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import words
from ..match import calls
from ..rewrite.context import Context
from ..rewrite.losses import Kind, MaskedMean, differentiated
from ..rewrite.means import NotSeen, check_mean, declared, masked_means, takes_together
from ..rewrite.script import Script as Source
from ..rewrite.training import Training, training_in
from .facts import (
    anywhere,
    parameters_of,
    single,
)
from .kept import kept
from .rule import Hit, refuse, rule

_VALID = "a mean over valid targets only: ranks have different numbers of them"
_NUMBER = "int((targets != ignored).sum())"
_MIXED = (
    "this loss adds up over the samples in one part and not in another: ranks weigh them unequally"
)
_PARTLY = (
    "this loss is a mean over some targets in one part, and over others or all samples in another: "
    "ranks weigh them unequally"
)
_ONE_DIVISOR = "Divide all parts by one number, as (losses * mask).sum() / len(losses) does"
_ONE_WAY = "Divide the sums by the number of samples, or take reduction='mean' throughout"
_TOGETHER = "the model takes a batch together, where its first dimension is the samples'"
_TIME_FIRST = words(
    "LSTM GRU RNN MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer Transformer"
)
_MOVES = words(
    "transpose transpose_ permute T mT t view reshape unsqueeze squeeze swapaxes movedim rearrange "
    "stack flatten cat chunk split unbind einsum pad_sequence pack_padded_sequence"
)
_SAME = ("contiguous", "detach", "float", "half")
_MOST = 60  # functions that a loop leads to
_NO_LOSS = re.compile(r"net|model|encoder|transform|data|view", re.IGNORECASE)
_CONTRASTIVE = re.compile(
    r"nt_?xent|info_?nce|contrastive|simclr|sup_?con|clip_?loss|barlow|vicreg|batch_?hard|ge2e",
    re.IGNORECASE,
)
_MESSAGE = (
    "a contrastive loss compares the samples of a batch, of which each rank would only see its own"
)
_TODO = "gather the features with gradients: torch.distributed.nn.functional.all_gather"
_POOLS = words("embeddingbag set2set readout scatter_mean scatter_add scatter sum_nodes mean_nodes")
_AVERAGED = "each rank's value is of its part of a batch, and ranks average them by samples"


@rule("RK123", "warning", "a loss that is a sum")
def sum_reduced(file: File, script: Script) -> Iterator[Hit]:
    """A backward from a sum over the batch: `reduction="sum"`, `size_average=False`, `.sum()`, also
    in a helper. A sum that is divided by the number of samples is none.

    Ranks average their gradients. Of sums over their parts that is 1/N of the sum over the whole
    batch: the learning rate is off by N.

    ```diff
     rankup.setup()
     for x, y in rankup.shard(loader):
         loss = F.mse_loss(model(x), y, reduction="sum")
    -    loss.backward()
    +    rankup.summed(loss).backward()
    ```

    Writes `rankup.summed(loss)`. A loss that is a sum in one part and a mean in another is refused:
    no weight of a rank is right for both. So is a mean over some targets beside one over others, or
    over all samples.
    """
    if _weighs_by_hand(script):
        return
    training = training_in(script, file)
    for call in training.backwards:
        loss = differentiated(call)
        kind = declared(training, loss) if loss is not None else Kind.UNKNOWN
        if loss is None or kind not in (Kind.SUM, Kind.MIXED):
            continue
        if kind is Kind.SUM:
            yield Hit(
                call,
                "a loss summed over the batch: ranks average gradients, which makes it smaller",
                "`rankup.summed(loss).backward()`, or multiply the loss by the world size",
                partial(_sum, loss=loss),
            )
        else:
            masked = bool(masked_means(training, loss))
            why, todo = (_PARTLY, _ONE_DIVISOR) if masked else (_MIXED, _ONE_WAY)
            yield Hit(call, why, todo, partial(refuse, node=call, reason=f"{why}. {todo}"))


def _sum(context: Context, loss: ast.expr) -> str:
    context.around(loss, "rankup.summed(")
    return "a loss summed over the batch is summed over the ranks too"


def _weighs_by_hand(script: Script) -> bool:
    """True where a script that joins ranks itself multiplies by their number in a training loop."""
    return script.distributed and any(
        "world_size" in loop.file.code(loop.node) for loop in script.train_loops
    )


@rule("RK125", "warning", "a mean over masked units without count")
def masked_mean(file: File, script: Script) -> Iterator[Hit]:
    """A mean over some of the targets, by `ignore_index`, `weight=` for each class, a mask, or the
    `labels` of a language model of transformers, and no `rankup.count`.

    Ranks have different numbers of valid targets, and without them each weighs alike.

    ```diff
     for x, y in rankup.shard(loader):
         loss = F.cross_entropy(model(x), y, ignore_index=-100)
    +    rankup.count(int((y != -100).sum()))
         loss.backward()
    ```

    Writes `rankup.count(…)` of the targets or their weights behind a cross-entropy with
    `ignore_index` or `weight=`, and for `labels` of transformers. Of others only you know the
    units.
    """
    counted = any(
        dotted == "rankup.count" for one in script.files for _, dotted in calls(one, "count")
    )
    if counted or _weighs_by_hand(script):
        return
    training = training_in(script, file)
    yield from _in_the_model(training)
    for call in training.backwards:
        loss = differentiated(call) or call
        above = training.script.above(call)
        loop = next((up for up in above if isinstance(up, LoopNode)), None)
        found = {one.call: one for one in masked_means(training, loss)}
        if not found:
            continue
        first = next(iter(found.values()))
        alike = len({one.units for one in found.values()}) == 1
        alone = alike and _can_be_counted(training, first, call, loop)
        yield Hit(
            first.call if alone else call,
            _VALID,
            f"rankup.count({first.units or _NUMBER}) before backward()",
            partial(_count, first=first) if alone else None,
            "the loss is a mean over the targets that count, of which ranks have different "
            "numbers: call rankup.count(number of them, or sum of their weights) before this",
        )


def _can_be_counted(
    training: Training, first: MaskedMean, backward: ast.Call, loop: ast.AST | None
) -> bool:
    """True where `rankup.count` can stand behind the statement with the loss."""
    script = training.script
    statement = script.statement(first.call)
    return (
        bool(first.units)
        and script.scope(statement) is script.scope(backward)
        and backward not in script.inside(statement, ast.Call)
        and not hasattr(statement, "body")
        and script.begins_line(statement)
        and (loop is None or loop in script.above(statement))
        and not any(  # the next backward takes what is counted
            script.span(statement) < script.span(one) < script.span(backward)
            for one in training.backwards
            if script.scope(one) is script.scope(backward)
        )
    )


def _count(context: Context, first: MaskedMean) -> str:
    context.after(context.script.statement(first.call), f"rankup.count({first.units})")
    return "the mean is over the targets of all ranks that count (rankup.count)"


def _in_the_model(training: Training) -> Iterator[Hit]:
    """A model that returns its loss, a mean over valid targets."""
    script = training.script
    for call in script.all(ast.Call):
        scope = script.scope(call)
        inside = isinstance(scope, Function) and scope.name == "forward"
        if inside and argument(call, "ignore_index") is not None:
            yield Hit(call, _VALID, f"rankup.count({_NUMBER}) before backward()")


@rule("RK124", "warning", "a loss between the samples of a batch")
def batch_coupled(file: File, script: Script) -> Iterator[Hit]:
    """Contrastive losses by their names (InfoNCE, NT-Xent, SupCon, CLIP, …), and products of what
    is made of a batch with its transpose: `out @ out.t()`, `einsum("nc,mc->nm", …)`; also in a loss
    or a `forward` of another file.

    Each sample is compared with its batch, of which a rank sees 1/N: another objective.

    ```diff
     for a, b in rankup.shard(loader):
    -    info_nce(model(a), model(b)).backward()
    +    every = torch.distributed.nn.functional.all_gather(model(a))
    +    info_nce(torch.cat(every), model(b)).backward()
    ```

    Refuses. Gather the features with gradients, and decide what rows a rank computes.
    """
    if any("GatherLayer" in one.text or "distributed.nn" in one.text for one in script.files):
        return
    if script.distributed and anywhere(script, "all_gather", "all_gather_with_grad"):
        return
    for call in file.names.all(ast.Call):
        name = call_name(call)
        contrastive = _CONTRASTIVE.search(name) and not _NO_LOSS.search(name)
        if contrastive and not file.names.called(call).startswith("rankup."):
            yield Hit(call, _MESSAGE, _TODO)
    for loop in training_in(script, file).loops:
        if not loop.trains:
            continue
        found = _comparison(script.flow, file, loop.node.body, loop.batch)
        if found is not None:
            where, node, entry = found
            if where is file:
                yield Hit(node, _MESSAGE, _TODO)
            else:
                yield Hit(entry or file.tree, f"{_MESSAGE} ({where.short_place(node)})", _TODO)


def _comparison(
    flow: Flow, file: File, body: Sequence[ast.AST], batch: set[str]
) -> tuple[File, ast.AST, ast.Call | None] | None:
    """A product of two things made of a batch, each sample with each other, in a loop and what it
    calls: functions, losses and models of the repository.

    Args:
        body: the statements of a loop.
        batch: names of the batch in them.

    Returns:
        The file, the expression, and the call that leads there from the statements of the loop.
    """
    waiting: list[tuple[File, Sequence[ast.AST], set[str], ast.Call | None]] = []
    waiting.append((file, body, batch, None))
    seen: set[tuple[ast.AST, frozenset[str]]] = set()
    while waiting and len(seen) < _MOST:
        where, statements, names, entry = waiting.pop(0)
        names = made_of(inside(*statements, kinds=(ast.stmt,)), names)
        for node in inside(*statements, kinds=(ast.BinOp, ast.Call)):
            if _compares(node, names):
                return where, node, entry
            if not isinstance(node, ast.Call):
                continue
            found = run_by_call(flow, where, node)
            taken = parameters_of(node, found[1], names) if found is not None else set()
            if found is None or not taken or (found[1], frozenset(taken)) in seen:
                continue
            seen.add((found[1], frozenset(taken)))
            waiting.append((found[0], found[1].body, taken, entry or node))
    return None


def _compares(node: ast.AST, batch: set[str]) -> bool:
    if isinstance(node, ast.Call) and call_name(node) == "einsum":
        return _pairs(node, batch)
    factors = _factors(node)
    return factors is not None and _root(factors[0]) in batch and _transposed(factors[1]) in batch


def _pairs(call: ast.Call, batch: set[str]) -> bool:
    """`einsum("nc,mc->nm", a, b)`: the first place of both is kept, apart from each other."""
    equation, *operands = given(call) or [ast.Constant("")]
    operands = [part for one in operands for part in elements(one)]
    taken, _, kept = str(literal(equation)).replace(" ", "").partition("->")
    places = taken.split(",")
    if len(places) != 2 or len(operands) != 2 or not all(places):
        return False
    first, second = places[0][0], places[1][0]
    both = _root(operands[0]) in batch and _root(operands[1]) in batch
    return both and first != second and first in kept and second in kept


def _factors(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The factors of a product of matrices."""
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return left, right
        case ast.Call(func=ast.Attribute(value=first, attr="mm" | "matmul"), args=[_, *_]):
            left, right = [first, *given(node)][-2:]
            return left, right
    return None


def _transposed(node: ast.expr) -> str:
    """The name behind `x.t()`, `x.T`, `x.transpose(0, 1)`; empty where nothing is transposed."""
    match node:
        case ast.Attribute(value=inner, attr="T"):
            return _root(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="t" | "transpose"), args=places):
            return "" if places and {literal(one) for one in places} != {0, 1} else _root(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME:
            return _transposed(inner)
    return ""


def _root(node: ast.expr) -> str:
    """`x` of `x`, `x[0]`, `x.contiguous()`; not of `model.weight`, which is no batch."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=inner):
            return _root(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME:
            return _root(inner)
    return ""


@rule("RK120", "warning", "samples of a batch mixed with each other")
def mixed(file: File, script: Script) -> Iterator[Hit]:
    """`torch.randperm` in a training step: mixup, permuted views.

    Each rank mixes the samples of its part of a batch: as random as on one GPU, but other pairs.

    ```diff
     for x, y in loader:
    -    mixed = 0.7 * x + 0.3 * x[torch.randperm(len(x))]
    +    mixed = 0.7 * x + 0.3 * x.flip(0)
         F.cross_entropy(model(mixed), y).backward()
    ```

    Says so in its report; nothing is to be done where any pairs do.
    """
    if not single(script):
        return
    training = training_in(script, file)
    steps = {
        call
        for loop in training.loops
        if loop.trains
        for call in training.script.inside(loop.node.body, ast.Call, deep=False)
    }
    reached = {training.script.called(call) for call in steps} - {None}
    for call in file.names.all(ast.Call):
        drawn = file.names.called(call) == "torch.randperm" and call.args
        if drawn and (call in steps or training.script.scope(call) in reached):
            yield Hit(
                call,
                "samples are mixed within a rank's part: as random as on one GPU, but other pairs",
                "do nothing where any pairs will do",
                comment=False,
            )


@rule("RK129", "warning", "a loss not seen to be a mean")
def no_mean(file: File, script: Script) -> Iterator[Hit]:
    """A loss that is not seen to be a mean, followed through the functions and models of the
    repository; a model that takes the samples of a batch together, by `x / x.max()` or
    `if x.mean() > 0:`, or that takes time first where the samples are; and what is kept of each
    batch for the next loss, or to choose the next epoch's samples: a mean, a list, a table, in
    whatever file.

    Ranks average gradients by samples. That is exact where the loss is a mean or a sum over
    samples, not for a ratio of sums, a maximum, the logarithm of a mean, or a mean over the nodes
    of graphs or other rows of which samples have different numbers.

    ```diff
     for x, y in loader:
    -    loss = torch.log((model(x) - y).pow(2).mean())
    +    loss = F.mse_loss(model(x), y)
         loss.backward()
    ```

    Leaves a remark at the loss.
    """
    if not single(script):
        return
    training, said = training_in(script, file), set[ast.AST]()
    for call in training.backwards:
        loss = differentiated(call)
        for place, message, todo in _not_seen(training, loss) if loss is not None else ():
            own = place.script is training.script
            node = place.node if own else _line_of(training, loss, call)
            statement = training.script.statement(node)
            if statement not in said:
                said.add(statement)
                line = place.script.file.short_place(place.node)
                yield Hit(node, message if own else f"{message} ({line})", todo)
        units = _units(training) if loss is not None and not said else ""
        if units:
            yield Hit(
                _line_of(training, loss, call),
                f"where this is a mean over the {units}, ranks average it by samples",
                "rankup.count(their number) before backward(), of which ranks have others",
            )
    for function in (one for one in training.script.functions if one.name == "forward"):
        for node in takes_together(training, training.script, function):
            statement = training.script.statement(node)
            if statement not in said and script.comes_to(file, node):
                said.add(statement)
                yield Hit(node, _TOGETHER, "each rank those of its part")
        if script.comes_to(file, function.body[0]):
            yield from _time_first(training, function)
    yield from kept(training, file)


def _time_first(training: Training, function: Function) -> Iterator[Hit]:
    """`nn.LSTM(4, 8)` given the batches of a loader, whose first dimension is the samples'."""
    script, flow = training.script, training.script.flow
    loaders, loops = script.understood.train_loaders, script.understood.train_loops
    plain = all(
        isinstance(one.node, ast.Call) and argument(one.node, "collate_fn") is None
        for one in loaders
    )
    moved = any(_MOVES & words_in(part) for loop in loops for part in loop.node.body)
    if not loaders or not plain or moved:
        return
    for call in script.inside(function.body, ast.Call):
        layers = [one for one in flow.origins(script.file, call.func) if one.node is not call.func]
        layers += [
            inner
            for one in layers
            if isinstance(one.node, ast.Call) and call_name(one.node).startswith("Transformer")
            for part in given(one.node)[:1]
            for inner in flow.origins(one.file, part)
        ]
        first = [
            one.node
            for one in layers
            if isinstance(one.node, ast.Call)
            and one.file.names.called(one.node).startswith("torch.nn.")
            and call_name(one.node) in _TIME_FIRST
            and literal(argument(one.node, "batch_first", 4) or ast.Constant(False)) is False
        ]
        if first and given(call) and _in_shape(script, function, given(call)[0], set()):
            yield Hit(
                call,
                f"{call_name(first[0])} without batch_first takes the first dimension for time; "
                "where that is the samples', it mixes those of a rank's part of the batch",
                "batch_first=True, or move the batch to the second dimension",
            )


def _in_shape(script: Source, function: Function, node: ast.expr, seen: set[str]) -> bool:
    """True of what is made of the parameters of a function without a move of dimensions."""
    if _MOVES & words_in(node):
        return False
    for name in sorted(mentioned(node) - seen):
        seen.add(name)
        made = [value for _, value in script.assigned(name, function)]
        if not all(_in_shape(script, function, one, seen) for one in made):
            return False
    return True


@lru_cache(maxsize=64)
def _units(training: Training) -> str:
    """The units of a batch of which samples have different numbers, and which nothing pools."""
    script = training.script
    names = {
        call_name(call).lower() for file in script.flow.files for call in file.names.all(ast.Call)
    }
    if any("pool" in one or one in _POOLS for one in names):
        return ""
    made = [script.name(call.func) for call in training.loader_calls]
    if any(one.startswith(("torch_geometric.", "dgl.")) for one in made):
        return "nodes of graphs"
    sources = [one for loop in training.loops if loop.trains for one in training.sources(loop)]
    for made_at in (one for source in sources for one in script.flow.origins(script.file, source)):
        collate = (
            argument(made_at.node, "collate_fn") if isinstance(made_at.node, ast.Call) else None
        )
        found = _function(script.flow, made_at.file, collate) if collate is not None else None
        joins = next(filter(_joins, walk(found[1])), None) if found is not None else None
        if found is not None and joins is not None:
            return f"rows that samples are joined of ({found[0].short_place(joins)})"
    return ""


def _function(flow: Flow, file: File, node: ast.expr) -> tuple[File, ast.AST] | None:
    """The function that an expression is: a name, a lambda, a method, an object with `__call__`."""
    if isinstance(node, ast.Lambda):
        return file, node
    found = flow.definition(file, node)
    if found is None and isinstance(node, ast.Attribute):
        found = flow.method(file, node.value, node.attr)
    if found is not None and not isinstance(found[1], ast.ClassDef):
        return found
    owner = flow.class_of(file, node)
    return flow.member(*owner, "__call__") if owner is not None else None


def _joins(node: ast.AST) -> bool:
    """`torch.cat(xs)`, `[row for sample in batch for row in sample]`; not `torch.cat([x, pad])`."""
    if isinstance(node, COMPREHENSIONS):
        return len(node.generators) > 1
    if not isinstance(node, ast.Call) or call_name(node) not in ("cat", "concat", "concatenate"):
        return False
    parts, along = argument(node, "tensors", 0), argument(node, "dim", 1)
    return not isinstance(parts, ast.List | ast.Tuple) and (along is None or literal(along) == 0)


def _not_seen(training: Training, loss: ast.expr) -> Iterator[tuple[NotSeen, str, str]]:
    try:
        check_mean(training, loss)
    except NotSeen as place:
        yield place, "not seen to be a mean over the samples", _AVERAGED


def _line_of(training: Training, loss: ast.expr | None, call: ast.Call) -> ast.AST:
    """The statement that gives a loss its value."""
    script = training.script
    made = [
        one
        for one, _ in script.assigned(script.dotted(loss), script.scope(call))
        if script.line(one) <= script.line(call)
    ]
    return max(made, key=script.line) if made else call
