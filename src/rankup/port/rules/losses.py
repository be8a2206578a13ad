"""The loss that is differentiated: a sum over the batch, or a mean over some of its targets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from ...script import roles
from ...script.flow import argument
from ...script.names import Function
from ...script.source import File
from ..rewrite.context import Context
from ..rewrite.losses import Kind, differentiated
from ..rewrite.masked import MaskedMean
from ..rewrite.means import declared, masked_means
from ..rewrite.training import Training, training_in
from .facts import calls
from .rule import Hit, refuse, rule

_VALID = "a mean over valid targets only: ranks have different numbers of them"
_NUMBER = "int((targets != ignored).sum())"
_MIXED = (
    "this loss adds up over the samples in one part and not in another, and ranks would weigh them "
    "differently"
)
_ONE_WAY = "Divide the sums by the number of samples, or take reduction='mean' throughout"


@rule("RK123", "warning", "a loss that is a sum")
def sum_reduced(file: File, script: roles.Script) -> Iterator[Hit]:
    """The value that a backward starts from, followed to where it is made: `reduction="sum"`,
    `size_average=False`, `.sum()`, in a helper or another file, too. A sum that is divided by
    the number of samples is none.

    Ranks average their gradients. A mean over ranks of sums over their parts is 1/N of the sum over
    the whole batch: the learning rate is off by N.

    ```diff
     rankup.setup()
     for x, y in rankup.shard(loader):
         loss = F.mse_loss(model(x), y, reduction="sum")
    -    loss.backward()
    +    rankup.summed(loss).backward()
    ```

    Writes `rankup.summed(loss)`, whose gradient is that of the whole sum. A loss that is a sum in
    one part and a mean in another is refused: no weight of a rank is right for both.
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
                "a loss summed over the batch: ranks average their gradients, which makes it "
                "smaller",
                "`rankup.summed(loss).backward()`, or multiply the loss by the world size",
                partial(_sum, loss=loss),
            )
        else:
            yield Hit(
                call, _MIXED, _ONE_WAY, partial(refuse, node=call, reason=f"{_MIXED}. {_ONE_WAY}")
            )


def _sum(context: Context, loss: ast.expr) -> str:
    context.around(loss, "rankup.summed(")
    return "a loss summed over the batch is summed over the ranks too"


def _weighs_by_hand(script: roles.Script) -> bool:
    """True where a script that joins ranks itself multiplies by their number in a training loop."""
    return script.distributed and any(
        "world_size" in loop.file.code(loop.node) for loop in script.train_loops
    )


@rule("RK125", "warning", "a mean over masked units without count")
def masked_mean(file: File, script: roles.Script) -> Iterator[Hit]:
    """A loss with `ignore_index`, or with `weight=` for each class, or divided by the sum of a
    mask, or that a language model of transformers computes of its `labels`, and no
    `rankup.count`.

    Ranks have different numbers of valid targets. Without them each rank weighs alike, and the
    gradient is not that of the whole batch.

    ```diff
     for x, y in rankup.shard(loader):
         loss = F.cross_entropy(model(x), y, ignore_index=-100)
    +    rankup.count(int((y != -100).sum()))
         loss.backward()
    ```

    Writes `rankup.count((targets != ignored).sum())` behind the loss, where it is cross-entropy
    with `ignore_index`, or of `labels` in transformers, and
    `rankup.count(criterion.weight[targets].sum())` with `weight=`. Others it leaves to a person:
    only you know which units the mean is over.
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
        loop = next((up for up in above if isinstance(up, roles.LoopNode)), None)
        found = {one.call: one for one in masked_means(training, loss)}
        if not found:
            continue
        first = next(iter(found.values()))
        alone = len(found) == 1 and _can_be_counted(training, first, call, loop)
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
        and script.first_on_line(script.span(statement)[0])
        and (loop is None or loop in script.above(statement))
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
