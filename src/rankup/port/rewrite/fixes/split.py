"""`--strategy fsdp`: the model is split over the ranks where its optimizer is made."""

from __future__ import annotations

import ast

from ....script.flow import given
from ..context import Context
from ..split import Split, clipped_norm, loaded, saved

_TYPES = ("torch.float", "torch.bfloat", "torch.half", "torch.double")


def split_model(context: Context, split: Split) -> None:
    """`model, optimizer = rankup.parallelize(…)[:2]`, and what goes with a split model."""
    script, name = context.script, split.model.name
    _stay_in_host_memory(context, split)
    assign = script.parents[split.optimizer]
    assert isinstance(assign, ast.Assign)
    inner = name.rpartition(".")[2]
    for node in script.inside(split.optimizer, ast.Attribute):
        if script.dotted(node) == name:
            context.replace(node, inner)
    methods = "".join(f'"{one}", ' for one in split.methods)
    methods = f", methods=({methods.strip()})" if methods else ""
    context.edits.insert(script.span(assign.targets[0])[0], f"{name}, ")
    context.around(
        split.optimizer,
        f"rankup.parallelize(lambda: {name}, lambda {inner}: ",
        f', "fsdp", seed=None{methods})[:2]',
    )
    context.done(split.optimizer, f"each rank keeps a part of {name} (rankup.parallelize)")
    for call in script.all(ast.Call):
        if script.name(call.func).split(".")[-1] == "clip_grad_norm_" and given(call):
            _clip(context, split, call)
        elif isinstance(call.func, ast.Attribute) and split.aliases.is_model(call.func.value):
            if call.func.attr == "state_dict":
                _save(context, call)
            elif call.func.attr == "load_state_dict" and not split.before(context, call):
                _load(context, call)


def _stay_in_host_memory(context: Context, split: Split) -> None:
    """A model that fits on no GPU must not be put on one before it is split."""
    script = context.script
    for call in script.all(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "cuda"):
            continue
        statement = script.statement(call)
        beside = statement in script.block(script.statement(split.optimizer))
        if not split.before(context, call) or not beside:
            continue
        if len(given(call)) > 1 or any(script.code(a).startswith(_TYPES) for a in given(call)):
            continue
        receiver, span = call.func.value, script.span(call)
        if context.edits.taken(span) or script.row(statement) != [statement]:
            continue
        only = statement
        assigned = isinstance(only, ast.Assign) and only.value is call
        target = script.dotted(only.targets[0]) if isinstance(only, ast.Assign) else ""
        if split.aliases.is_model(receiver) and (
            (assigned and target == split.model.name)
            or (isinstance(only, ast.Expr) and only.value is call)
        ):
            context.remove(statement)
        elif assigned and target == split.model.name:
            context.edits.replace((script.span(receiver)[1], span[1]), "")
        else:
            continue
        context.done(call, f"{split.model.name} stays in host memory until it is split")


def _clip(context: Context, split: Split, call: ast.Call) -> None:
    script = context.script
    for parameters in script.inside(given(call)[0], ast.Call):
        func = parameters.func
        if isinstance(func, ast.Attribute) and split.aliases.is_model(func.value):
            name = script.code(func.value)
            context.replace(call, f"{name}.clip_grad_norm_({clipped_norm(script, call)})")
            context.done(call, "gradients are clipped by their norm over all ranks")


def _save(context: Context, call: ast.Call) -> None:
    found = saved(context.script, call)
    if found is None:
        return
    whole, extra = found
    assert isinstance(call.func, ast.Attribute)
    name, path = context.script.code(call.func.value), context.script.code(given(whole)[1])
    context.replace(whole, f"rankup.save_full_model({name}, {path}{extra})")
    context.done(whole, "the whole model is put together and saved (rankup.save_full_model)")


def _load(context: Context, call: ast.Call) -> None:
    path = loaded(context.script, call)
    assert path is not None
    assert isinstance(call.func, ast.Attribute)
    name = context.script.code(call.func.value)
    context.replace(call, f"rankup.load_full_model({name}, {path})")
    context.done(call, "each rank reads its part of the model (rankup.load_full_model)")
