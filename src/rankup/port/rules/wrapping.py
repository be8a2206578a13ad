"""Where a port wraps the models that are trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...script.flow import is_none, method_calls
from ...script.models import part_of
from ...script.names import Function
from ...script.roles import LoopNode
from ...script.torch_names import RETURNS_SELF, words
from ..rewrite.context import Context
from ..rewrite.models import Model
from ..rewrite.script import Script

# They follow a forward, which the wrapper's own work would be a part of.
_TRACES = words("torch.jit.trace torch.export.export torch.onnx.export torch.onnx.dynamo_export")
_READY = ("to", "cuda", "apply", "load_state_dict", "half", "float", "double", "requires_grad_")


def wrap_models(context: Context) -> None:
    """`model = rankup.wrap(model)` behind the last line that makes it what it is."""
    for model in (one for whole in context.training.models for one in _trained(context, whole)):
        place = _ready(context, model) if model.given is None else model.made[0]
        name, one = model.name, "one" if model.each else model.name
        calls = [f"rankup.wrap({one})"]
        if context.options.sync_bn:
            calls.insert(0, f"torch.nn.SyncBatchNorm.convert_sync_batchnorm({one})")
        if model.each:
            calls = [f"[{call} for one in {name}]" for call in calls]
        lines = [f"{name} = {call}" for call in calls]
        if model.given is None:
            context.after(place, *lines)
        else:
            context.before(place, *lines)
        context.done(place, f"gradients of {name} are exchanged (rankup.wrap)")
    _trace_what_is_inside(context)


def _trace_what_is_inside(context: Context) -> None:
    """`torch.onnx.export(getattr(model, "module", model), …)`."""
    script, trained = context.script, context.training.trained
    for call in script.all(ast.Call):
        if script.name(call.func) not in _TRACES or not call.args:
            continue
        model = call.args[0]
        name = script.dotted(model)
        if name and trained & {one.node for one in script.flow.origins(script.file, model)}:
            context.replace(model, f'getattr({name}, "module", {name})')
            context.done(call, f"{name} is traced without its wrapper")


def _trained(context: Context, model: Model) -> list[Model]:
    """The models that a name holds one after another, each to be wrapped where it is made.

    After its training a script may make the model anew, to show how a file is loaded: nothing
    trains that one.
    """
    script, training = context.script, context.training
    if model.given is not None:
        return [model]
    steps = [
        call for call in script.inside(model.scope, ast.Call, deep=False) if training.trains(call)
    ]
    made = [one for one in model.made if not training.trains(one) and not _is_none(one)]
    made = [one for one in made if not _gives_itself(script, one, model.name)] or made
    made = [one for one in made if not _goes_on(context, one, model.name, steps)]
    made = [one for one in made if not _behind_all(context, one, steps)] or made
    if not made:
        return [model]
    common, _ = _common(script, made)
    parts = _between_trainings(context, made, lambda _: common)
    return [one for part in parts for one in _by_block(context, replace(model, made=part))]


def _by_block(context: Context, whole: Model) -> list[Model]:
    """A model that is made in several blocks, each of which may train it by itself."""
    parts = _between_trainings(context, whole.made, lambda one: _blocks(context.script, one)[0])
    blocks = {id(_blocks(context.script, part[0])[0]) for part in parts}
    if len(blocks) == 1 or context.training.trains(_ready(context, whole)):
        return [replace(whole, made=part) for part in parts]
    return [whole]


def _between_trainings(
    context: Context, made: Sequence[ast.AST], block_of: Callable[[ast.AST], list[ast.stmt]]
) -> list[tuple[ast.AST, ...]]:
    """Return what is made in the same block, with no training in between."""
    script, groups = context.script, dict[tuple[int, int], list[ast.AST]]()
    for one in sorted(made, key=script.line):
        block = block_of(one)
        before = [at for at in block if context.training.trains(at)]
        passed = sum(script.line(at) < script.line(one) for at in before)
        groups.setdefault((id(block), passed), []).append(one)
    return [tuple(group) for group in groups.values()]


def _common(script: Script, made: Sequence[ast.AST]) -> tuple[list[ast.stmt], int]:
    """The innermost block around all of them, and the last of its statements with one."""
    blocks = [_blocks(script, one) for one in made]
    body = next(
        block for block in blocks[0] if all(any(one is block for one in b) for b in blocks[1:])
    )
    last = max(
        body.index(next(up for up in (one, *script.above(one)) if up in body))  # type: ignore[arg-type]
        for one in made
    )
    return body, last


def _gives_itself(script: Script, made: ast.AST, name: str) -> bool:
    """True of `model = model.train()`, which is the same model."""
    value = getattr(made, "value", None)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in RETURNS_SELF - {"compile"}
        and script.dotted(value.func.value) == name
    )


def _is_none(made: ast.AST) -> bool:
    value = getattr(made, "value", None)
    return value is not None and is_none(value)


def _goes_on(context: Context, made: ast.AST, name: str, steps: list[ast.Call]) -> bool:
    """True where what has trained by now is given back changed: `model = model.to("cpu")`."""
    script, value = context.script, getattr(made, "value", None)
    if value is None or not any(script.line(step) < script.line(made) for step in steps):
        return False
    read = [
        one for one in script.inside(value, ast.Name, ast.Attribute) if script.dotted(one) == name
    ]
    if not read:
        return False
    func = value.func if isinstance(value, ast.Call) else None
    if not (isinstance(func, ast.Attribute) and script.dotted(func.value) == name):
        context.leave(
            made,
            f"made of a {name} that is wrapped: give it what is inside, "
            f'`getattr({name}, "module", {name})`, and wrap what trains from here on',
        )
    return True


def _behind_all(context: Context, made: ast.AST, steps: list[ast.Call]) -> bool:
    """True where nothing trains behind a line, in no further round of a loop either."""
    script = context.script
    loops = {up for up in script.above(made) if isinstance(up, LoopNode)}
    return bool(steps) and all(
        script.line(step) < script.line(made) and not loops & set(script.above(step))
        for step in steps
    )


def _ready(context: Context, model: Model) -> ast.AST:
    """The statement after which the model is ready."""
    script = context.script
    # `model = fit(model, …)` gives back what it was given, and is too late.
    making = [one for one in model.made if not context.training.trains(one)] or model.made
    body, last = _common(script, making)
    place: ast.AST = body[last]
    names = (model.name, *_parts(script, model.name))
    if context.training.trains(place):
        return place
    for statement in body[last + 1 :]:
        if context.training.trains(statement) or isinstance(statement, ast.Return):
            break
        if any(_prepares(context, statement, name) for name in names):
            place = statement
    return place


def _blocks(script: Script, node: ast.AST) -> list[list[ast.stmt]]:
    """The blocks that a node stands in, the innermost first; none on the row of its head."""
    blocks = [script.file.names.block(up) for up in (node, *script.above(node))]
    return [one for one in blocks if one and script.first_on_line(script.span(one[0])[0])]


def _parts(script: Script, name: str) -> list[str]:
    """Return the names of a model's parts: `head` of `head = net.fc`."""
    return [
        script.dotted(assign.targets[0])
        for assign in script.all(ast.Assign)
        if (whole := part_of(assign.value)) is not None
        and script.dotted(whole) == name
        and script.dotted(assign.targets[0])
    ]


def _prepares(context: Context, statement: ast.AST, name: str) -> bool:
    """True where a statement moves, loads, freezes or changes the model."""
    script = context.script
    if isinstance(statement, Function | ast.ClassDef):
        return False
    for _, owner in method_calls(script.inside(statement, ast.Call, deep=False), *_READY):
        if f"{script.dotted(owner)}.".startswith(f"{name}."):
            return True
    for assign in script.inside(statement, ast.Assign, deep=False):
        target = script.code(assign.targets[0])
        if target.startswith((f"{name}.", f"{name}[")):
            return True
        if target.endswith(".requires_grad") and re.search(
            rf"\b{re.escape(name)}[.\[]", script.code(statement)
        ):
            return True
    return False
