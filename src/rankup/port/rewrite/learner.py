"""fastai: its `Learner` trains on all ranks inside `distrib_ctx`, so two lines do it."""

from __future__ import annotations

import ast
from pathlib import Path

from ...base.errors import UserError
from ...script.flow import argument
from .context import Context
from .fixes.fetched import fetch

_TRAINING = {"fit", "fit_one_cycle", "fine_tune", "fit_flat_cos", "fit_sgdr"}
_CONTEXT = "with {learner}.distrib_ctx():"


def port_learner(context: Context, path: Path) -> Context:
    """`rank0_first(untar_data, …)`, and `with learn.distrib_ctx():` around what trains.

    Raises:
        UserError: no call of a learner that trains.
    """
    script = context.script
    if "rank0_first" not in context.options.without:
        context.fix = "rank0_first"
        fetch(context)
    found = [
        call
        for call in script.all(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING
    ]
    if not found:
        raise UserError(f"{path} imports fastai, but no learner is trained in it (learn.fit(…))")
    context.fix = "distrib_ctx"
    done: set[ast.AST] = set()
    for call in found:
        assert isinstance(call.func, ast.Attribute)
        statement = script.statement(call)
        if statement in done:
            continue
        done.add(statement)
        learner = script.code(call.func.value)
        context.indented(statement, _CONTEXT.format(learner=learner))
        context.done(call, f"{learner} trains on all ranks ({learner}.distrib_ctx)")
    _batch_size(context, found[0])
    for call in script.all(ast.Call):
        exports = isinstance(call.func, ast.Attribute) and call.func.attr == "export"
        if exports and context.only_root(call):
            context.done(call, "rank 0 alone writes this")
    return context


def _batch_size(context: Context, trains: ast.Call) -> None:
    """fastai deals whole samples, not parts of batches: its batch size is that of a GPU."""
    script = context.script
    given = [(call, arg) for call in script.all(ast.Call) if (arg := argument(call, "bs"))]
    same = "for the same run divide it by rankup.setup().world_size"
    if context.options.batch == "per-gpu":
        same = "fewer steps per epoch"
    for call, arg in given:
        size = script.code(arg)
        context.leave(
            call,
            f"fastai's bs is the batch of each GPU, {size} times their number in all: {same}",
            comment=False,
        )
    if not given:
        text = f"fastai gives each GPU batches of its own, 64 by default: {same}"
        context.leave(trains, text, comment=False)
