"""The models that a script trains, and where a port wraps them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ...script import roles
from ...script.flow import given, is_none, method_calls
from ...script.models import given_later, part_of, with_parameters
from ...script.names import Function, elements, root_name
from ...script.roles import LoopNode
from ...script.source import File
from ...script.torch_names import RETURNS_SELF, words
from .script import Scope, Script

if TYPE_CHECKING:
    from .context import Context

_DEEPEST = 6  # names that are followed from one to the next
# They follow a forward, which the wrapper's own work would be a part of.
_TRACES = words("torch.jit.trace torch.export.export torch.onnx.export torch.onnx.dynamo_export")
_LAZY = "{0} has lazy layers, which rankup.wrap needs made: let a first forward run before it"
_EACH = {
    "list": "[{call} for one in {name}]",
    "tuple": "tuple({call} for one in {name})",
    "dict": "{{key: {call} for key, one in {name}.items()}}",
}
_READY = ("to", "cuda", "apply", "load_state_dict", "half", "float", "double", "requires_grad_")


@dataclass(frozen=True)
class Model:
    """Something whose parameters an optimizer trains.

    Attributes:
        script: the file in which it is made.
        name: how the script writes it there, `model` or `self.net`.
        scope: the function (or the module) that makes it.
        made: the assignments there; of one that is not seen to be made in a file that a port
            changes the statement that makes its optimizer, or the first one that uses it.
        given: of such a one the expression of which the optimizer has the parameters.
        each: "list", "tuple" or "dict", if it is one of models.
    """

    script: Script
    name: str
    scope: Scope
    made: tuple[ast.AST, ...]
    given: ast.expr | None = None
    each: str = ""


@dataclass
class Models:
    """The models of a script, in all files that a port changes.

    Attributes:
        trained: the expressions that make them.
        unresolved: optimizers of which the models cannot be seen.
    """

    models: list[Model] = field(default_factory=list)
    trained: set[ast.AST] = field(default_factory=set)
    unresolved: set[ast.Call] = field(default_factory=set)


def optimizers(script: roles.Script) -> list[tuple[File, ast.Call]]:
    """The calls that make an optimizer, in all files."""
    return [
        (one.file, one.node)
        for one in script.optimizers
        if isinstance(one.node, ast.Call) and given(one.node)
    ]


@lru_cache(maxsize=1)
def models_of(script: Script) -> Models:
    """The models that are trained, of the script itself."""
    understood, found = script.understood, Models()
    models: dict[tuple[str, ast.AST], Model] = {}
    later = given_later(script.flow)
    for file, call in (*optimizers(understood), *later):
        roots = [
            one for part in given(call)[:1] for one in with_parameters(script.flow, file, part)
        ]
        if not roots and (file, call) not in later:
            found.unresolved.add(call)
        for where, expression in roots:
            one = script.sibling(where)
            made = _made(one, expression, 0)
            if not made and where is file:
                made = _taken(one, expression, call)
            if not made and _of_an_object(one, expression):
                found.unresolved.add(call)
            models |= {(model.name, model.scope): model for model in reversed(made)} | models
    found.models = list(models.values())
    found.trained = {one.node for one in understood.models}
    return found


def _taken(script: Script, expression: ast.expr, optimizer: ast.Call) -> list[Model]:
    """The model of an optimizer that is given it in a way that is not seen.

    `self.model` of an instance, or a parameter of a function that calls it, or keeps it.
    """
    name, scope = script.dotted(expression), script.scope(optimizer)
    place = script.statement(optimizer)
    if name in script.parameters(scope) and isinstance(scope, Function):
        called = any(script.dotted(one.func) == name for one in script.inside(scope, ast.Call))
        kept = any(
            isinstance(part, ast.Name) and part.id == name
            for one in script.inside(scope, ast.Assign)
            for part in elements(one.value)
        )
        uses = script.uses(scope, name)
        if not (called or kept) or not uses:
            return []
        place = next(one for one in scope.body if script.file.names.inside(uses[0], one))
    elif (
        script.file not in script.understood.to_port[1:]
        or not name.startswith("self.")
        or name.count(".") > 1
    ):
        return []
    if not script.begins_line(place):
        return []
    return [Model(script, name, scope, (place,), expression)]


def _made(script: Script, expression: ast.AST, depth: int) -> list[Model]:
    """Where the model behind an expression is made, in a file that a port changes."""
    if isinstance(expression, ast.Call) or depth > _DEEPEST:
        return []
    scope = script.scope(expression)
    written = script.dotted(expression) or root_name(expression)
    if written == "self" and isinstance(scope, Function):
        # `model.configure_optimizers(…)`, a method of the model's own
        receivers = [
            (one, call.func.value)
            for one, call in script.callers(scope)
            if isinstance(call.func, ast.Attribute)
        ]
        return [model for where, one in receivers for model in _made(where, one, depth + 1)]
    wholes = _asked(script, written, scope)
    if wholes:
        return [model for where, one in wholes for model in _made(where, one, depth + 1)]
    several = _in_list(script, expression)
    if several is not None:
        return [several]
    while written and depth < _DEEPEST:
        root = written.split(".")[0]
        if root in script.parameters(scope) and root != "self" and isinstance(scope, Function):
            models = []
            for where, call in script.callers(scope):
                value = script.given(scope, root, call)
                if value is not None:
                    models += _made(where, value, depth + 1)
            return models  # the caller's is wrapped, whatever the function assigns to it
        for near in (scope, script.tree):
            made = script.assigned(written, near)
            whole = _called_instead(script, written, [value for _, value in made])
            if whole is not None:
                return _made(script, whole, depth + 1)
            if made and script.file in script.understood.to_port:
                values = [value for _, value in made]
                if any(_holds_models(script, value) for value in values):
                    return []
                forms = {_form(value) for value in values}
                each = forms.pop() if len(forms) == 1 else ""
                return [Model(script, written, near, tuple(node for node, _ in made), each=each)]
        inherited = [
            Model(one, written, method, tuple(node for node, _ in made))
            for one, method in _relatives(script, written, scope)
            if one.file in one.understood.to_port and (made := one.assigned(written, method))
        ]
        if inherited:
            return inherited
        if "." not in written:
            return []
        written = written.rpartition(".")[0]
        if written == "self":
            return []
    return []


def _form(value: ast.expr) -> str:
    """`list`, `tuple` or `dict` of what holds several models."""
    match value:
        case ast.List() | ast.ListComp():
            return "list"
        case ast.Tuple():
            return "tuple"
        case ast.Dict() | ast.DictComp() | ast.Call(func=ast.Name(id="dict")):
            return "dict"
    return ""


def _holds_models(script: Script, value: ast.expr) -> bool:
    """True of an object with models for attributes that is none itself."""
    if not isinstance(value, ast.Call):
        return False
    if script.name(value.func) in ("types.SimpleNamespace", "argparse.Namespace"):
        return True
    found = script.flow.class_of(script.file, value)
    return found is not None and not (
        found[1].bases or script.flow.member(*found, "forward") is not None
    )


def _of_an_object(script: Script, expression: ast.AST) -> bool:
    """True of `agent` and `agent.encoder` of such an object."""
    name = (script.dotted(expression) or root_name(expression)).split(".")[0]
    scopes = (script.scope(expression), script.tree)
    made = [value for scope in scopes for _, value in script.assigned(name, scope)] if name else []
    return any(_holds_models(script, value) for value in made)


def _relatives(script: Script, written: str, scope: Scope) -> Iterator[tuple[Script, Function]]:
    """A method of each class that inherits `self.model` from this one, or the other way round."""
    owner = script.owner(scope) if written.startswith("self.") else None
    if owner is None:
        return
    flow, above = script.flow, {one for _, one in script.flow.family(script.file, owner)}
    for file in flow.files:
        for one in file.names.all(ast.ClassDef):
            related = one in above or owner in {base for _, base in flow.family(file, one)}
            for method in one.body if related and one is not owner else ():
                if isinstance(method, Function):
                    yield script.sibling(file), method
                    break


def _asked(script: Script, written: str, scope: Scope) -> list[tuple[Script, ast.expr]]:
    """`net` of `net.groups()`, a method that gives the parameters of its parts, where it is called.

    Gradients are exchanged of the model that is called, and of no part beside it.
    """
    if not written.startswith("self.") or not isinstance(scope, Function):
        return []
    owner = script.owner(scope)
    if owner is None or script.flow.member(script.file, owner, "forward") is None:
        return []
    found = []
    for where, call in script.callers(scope):
        whole = call.func.value if isinstance(call.func, ast.Attribute) else None
        if whole is not None and where.dotted(whole) in where.called_names - {"", "self"}:
            found.append((where, whole))
    return found


def _in_list(script: Script, expression: ast.AST) -> Model | None:
    """`nets` of `for net in nets`, a list in which each model is made."""
    if not isinstance(expression, ast.Name) or script.file not in script.understood.to_port:
        return None
    _, bindings = script.file.names.bindings(expression.id, script.file.names.scope(expression))
    name = bindings[0].node if len(bindings) == 1 and bindings[0].kind == "item" else None
    if not isinstance(name, ast.Name):
        return None
    for scope in (script.scope(expression), script.tree):
        made = script.assigned(name.id, scope)
        grows = any(
            isinstance(up := script.parents[one], ast.Attribute) and up.attr in ("append", "extend")
            for one in script.uses(scope, name.id)
        )
        lists = [value for _, value in made if isinstance(value, ast.List | ast.ListComp)]
        if made and len(lists) == len(made) and not grows:
            return Model(script, name.id, scope, tuple(node for node, _ in made), each="list")
    return None


def _called_instead(script: Script, name: str, values: list[ast.expr]) -> ast.expr | None:
    """Return the model that is called, where a name holds a part of it that is not: `net.fc`.

    Gradients are exchanged of what is called through its wrapper, and of no part beside it.
    """
    called = script.called_names
    wholes = [part_of(value) for value in values]
    if len(wholes) != 1 or wholes[0] is None or name in called:
        return None
    return wholes[0] if script.dotted(wholes[0]) in called else None


def wrap_models(context: Context) -> None:
    """`model = rankup.wrap(model)` behind the last line that makes it what it is."""
    for model in (one for whole in context.training.models for one in _trained(context, whole)):
        place = _ready(context, model) if model.given is None else model.made[0]
        name, one = model.name, "one" if model.each else model.name
        calls = [f"rankup.wrap({one})"]
        if context.options.sync_bn:
            calls.insert(0, f"torch.nn.SyncBatchNorm.convert_sync_batchnorm({one})")
        if model.each:
            calls = [_EACH[model.each].format(call=call, name=name) for call in calls]
        lines = [f"{name} = {call}" for call in calls]
        if model.given is None:
            context.after(place, *lines)
        else:
            context.before(place, *lines)
        context.done(place, f"gradients of {name} are exchanged (rankup.wrap)")
        if any(
            file.names.called(call).startswith("torch.nn.Lazy")
            for file in context.script.flow.files
            for call in file.names.all(ast.Call)
        ):
            context.leave(place, _LAZY.format(name), comment=False)
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
