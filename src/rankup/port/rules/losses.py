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
    walk,
)
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import words
from ..match import calls
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.terms import Term, is_sum, terms
from ..rewrite.training import Training, training_in
from .facts import anywhere, parameters_of, single
from .rule import Hit, rule

_VALID = "a mean over valid targets only: ranks have different numbers of them"
_NUMBER = "int((targets != ignored).sum())"
# These pool the rows of a sample.
_POOLS = words("embeddingbag set2set readout scatter_mean scatter_add scatter sum_nodes mean_nodes")
_MOST = 60  # functions that a loop leads to
_SAME = ("contiguous", "detach", "float", "half")
_NO_LOSS = re.compile(r"net|model|encoder|transform|data|view", re.IGNORECASE)
_CONTRASTIVE = re.compile(
    r"nt_?xent|info_?nce|contrastive|simclr|sup_?con|clip_?loss|barlow|vicreg|batch_?hard|ge2e",
    re.IGNORECASE,
)
_MESSAGE = (
    "a contrastive loss compares the samples of a batch, of which each rank would only see its own"
)
_TODO = "gather the features with gradients: torch.distributed.nn.functional.all_gather"


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
    +    rankup.backward(loss, summed=True)
    ```

    Writes `summed=True`. A loss that is a sum in one part and a mean in another is refused: no
    weight of a rank is right for both.
    """
    if _weighs_by_hand(script):
        return
    training = training_in(script, file)
    for call in training.backwards:
        loss = differentiated(call)
        if argument(call, "summed") is None and loss is not None and is_sum(training, loss):
            yield Hit(
                call,
                "a loss summed over the batch: ranks average gradients, which makes it smaller",
                "`rankup.backward(loss, summed=True)`, or multiply the loss by the world size",
            )


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
        masked = [one for one in terms(training, loss) if one.kind is Kind.MASKED]
        others = [one for one in terms(training, loss) if one.kind in (Kind.MEAN, Kind.SUM)]
        if not masked:
            continue
        first = masked[0]
        alike = len({one.units for one in masked}) == 1 and not others
        alone = alike and _can_be_counted(training, first, call, loop)
        yield Hit(
            first.node if alone else call,
            _VALID,
            f"rankup.count({first.units or _NUMBER}) before backward()",
            partial(_count, first=first) if alone else None,
            "the loss divides by what counts in a batch, of which ranks have different numbers: "
            "call rankup.count(number of these targets, or sum of their weights) before this",
        )


def _can_be_counted(
    training: Training, first: Term, backward: ast.Call, loop: ast.AST | None
) -> bool:
    """True where `rankup.count` can stand behind the statement with the loss."""
    script = training.script
    if first.script is not script or not first.units:
        return False
    statement = script.statement(first.node)
    return (
        script.scope(statement) is script.scope(backward)
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


def _count(context: Context, first: Term) -> str:
    context.after(context.script.statement(first.node), f"rankup.count({first.units})")
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


@rule("RK129", "warning", "a mean over rows of which samples have different numbers")
def uneven_rows(file: File, script: Script) -> Iterator[Hit]:
    """Samples that are joined row by row, by `torch.cat` in a collate function or as the nodes of
    graphs, where nothing pools the rows of a sample.

    A loss that is a mean over the rows is none over the samples, by which ranks average it.

    ```diff
    -loader = DataLoader(dataset, collate_fn=lambda batch: torch.cat(batch))
    +loader = DataLoader(dataset, collate_fn=lambda batch: torch.stack(batch))
     for x in loader:
         model(x).pow(2).mean().backward()
    ```

    Leaves a remark at the loss.
    """
    if not single(script):
        return
    training = training_in(script, file)
    for call in training.backwards:
        units = _units(training)
        if units:
            yield Hit(
                call,
                f"where this is a mean over the {units}, ranks average it by samples",
                "rankup.count(their number) before the backward, of which ranks have others",
            )


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
