"""Whether a rewrite can split a script's model over the ranks (`--strategy fsdp`), and if not, why.

A split model is cut before it trains, each rank has a part of every parameter, and each forward is
a collective. So what a script does with its model has to be known, use by use: what is not on the
lists here is a reason to leave the script alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ...script.flow import argument, given
from ...script.names import Function
from ..rules.facts import string
from .context import Context
from .fixes.data import drawn_batches, without_gradients
from .fixes.kinds import conditional, increments
from .fixes.model import ready
from .models import Model, parameter_roots
from .script import ForNode, Script

# Calls of the model's own methods that a split model answers as the whole one does.
_METHODS = {
    "train", "eval", "zero_grad", "state_dict", "load_state_dict", "children", "modules",
    "named_modules", "named_children",
}  # fmt: skip
_BEFORE = {
    *_METHODS, "apply", "parameters", "named_parameters", "half", "float", "double", "add_module",
    "to", "cuda", "requires_grad_",
}  # fmt: skip
_ASKING = {"print", "isinstance", "type", "id", "str", "repr", "hasattr", "callable"}
_VALUES = {"weight", "bias", "data", "grad"}
_BY_HAND = "by hand: rankup.save_full_model(model, path, optimizer) and rankup.load_full_model"
_TAKEN = ("model", "optimizer", "path", "copies")  # parameters of save_full_model


@dataclass(frozen=True)
class Split:
    """A model that can be split.

    Attributes:
        optimizer: the call that makes its optimizer, in whose place `parallelize` goes.
        aliases: where the model is meant.
        methods: methods of the model's class that the script calls beside `model(…)`.
    """

    model: Model
    optimizer: ast.Call
    aliases: Aliases
    methods: tuple[str, ...] = ()

    def before(self, context: Context, node: ast.AST) -> bool:
        """Whether something stands before the line that splits the model, in its function."""
        script = context.script
        own = script.scope(node) is self.model.scope
        return own and script.line(node) < script.line(self.optimizer)


def plan(context: Context) -> Split:
    """How the model of a script is split.

    Raises:
        Unsplit: a rewrite cannot do it safely; names the place and the reason.
    """
    model, optimizer = _pair(context)
    _stands_well(context, model, optimizer)
    split = Split(model, optimizer, Aliases(context.script, model))
    methods = {name for node in split.aliases.all() for name in _use(context, split, node)}
    _optimizer_alone(context, optimizer)
    _loops(context)
    return Split(model, optimizer, split.aliases, tuple(sorted(methods)))


def _pair(context: Context) -> tuple[Model, ast.Call]:
    training = context.training
    model, optimizer = training.models[0], training.optimizers[0]
    if len(training.models) > 1:
        names = ", ".join(one.name for one in training.models)
        raise Unsplit(optimizer, f"several models train here ({names}), and may share the data")
    if len(training.optimizers) > 1:
        raise Unsplit(training.optimizers[1], "the model has a second optimizer")
    return model, optimizer


def _stands_well(context: Context, model: Model, optimizer: ast.Call) -> None:
    """`optimizer = torch.optim.X(model.parameters(), …)` behind all that changes the model."""
    script = context.script
    if not script.name(optimizer.func).startswith("torch.optim."):
        raise Unsplit(optimizer, "whether an optimizer that is not torch's works is not known")
    assign = script.parents.get(optimizer)
    one = isinstance(assign, ast.Assign) and len(assign.targets) == 1
    if not one or not script.dotted(assign.targets[0]):  # type: ignore[union-attr]
        raise Unsplit(optimizer, "the optimizer is not made by a line of its own, `optimizer = …`")
    roots = parameter_roots(script, given(optimizer)[0], script.tree, depth=3)
    own = tuple(f"{model.name}{mark}" for mark in ".[")
    if not roots or any(not f"{script.code(root)}.".startswith(own) for root in roots):
        raise Unsplit(
            optimizer,
            f"the optimizer is not made of {model.name}.parameters() itself, and a list made "
            "before holds the parameters of the whole model",
        )
    statement, place = script.statement(optimizer), ready(context, model)
    block = script.block(statement)
    if place not in block:
        raise Unsplit(optimizer, "model and optimizer are not made in one block")
    if block.index(place) >= block.index(statement):
        raise Unsplit(place, "the model is changed behind its optimizer, where it is split already")


def _optimizer_alone(context: Context, optimizer: ast.Call) -> None:
    """Its state is not saved, and nothing scales the gradients."""
    script = context.script
    assign = script.parents[optimizer]
    assert isinstance(assign, ast.Assign)
    name = script.dotted(assign.targets[0])
    for call in script.all(ast.Call):
        if script.code(call.func) in (f"{name}.state_dict", f"{name}.load_state_dict"):
            raise Unsplit(call, f"each rank has a part of the optimizer's state; {_BY_HAND}")
        if script.name(call.func).split(".")[-1] == "GradScaler":
            raise Unsplit(call, "a GradScaler sees one rank's part of the gradients alone")


def _loops(context: Context) -> None:
    """All ranks go round a loop together, and add up what a collective can put together."""
    training = context.training
    if drawn := drawn_batches(context):
        raise Unsplit(drawn[0], "batches are drawn without a DataLoader")
    for loop in training.loops:
        if not loop.trains and not without_gradients(context, loop.node):
            raise Unsplit(loop.node, "this evaluation does not say torch.no_grad()")
        for one in () if loop.trains else increments(context, loop):
            if one.kind in ("", "rows") or conditional(context, loop, one.node):
                raise Unsplit(
                    one.node,
                    f"each forward needs all ranks, and what {one.target} takes from this "
                    "evaluation cannot be put together batch by batch",
                )


def _use(context: Context, split: Split, node: ast.AST) -> list[str]:
    """The methods that a use of the model asks for.

    Raises:
        Unsplit: a split model does not serve it.
    """
    script = context.script
    chain, rest = whole_chain(script, node)
    if split.optimizer in script.above(node):
        return []
    parent, before = script.parents.get(chain), split.before(context, node)
    last = rest.split(".")[-1]
    if isinstance(parent, ast.Call) and parent.func is chain:
        if rest in ("state_dict", "load_state_dict"):
            _state(context, parent, rest, before)
        elif rest in ("parameters", "named_parameters"):
            _parameters(context, split, parent)
        elif rest and rest not in _METHODS and not (before and last in _BEFORE):
            return [] if before else _method(context, split, parent, rest)
        return []
    call = script.parents.get(parent) if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Call):
        own = script.called(call) is not None or script.dotted(call.func) in _ASKING
        if not rest and not own and not _gives_the_model(context, split, call):
            function = script.code(call.func)
            if script.name(call.func) == "torch.save":
                raise Unsplit(
                    call,
                    f"{function}(…) is given the model itself, and each rank has a part of it; "
                    f"save {split.model.name}.state_dict()",
                )
            raise Unsplit(call, f"{function}(…) is given the model, and may call parts of it")
    elif before:
        return []
    elif isinstance(parent, ast.Subscript):
        raise Unsplit(parent, "a part of the model is taken by itself")
    elif not rest and isinstance(parent, ast.Assign):
        raise Unsplit(parent, "the model gets a second name")
    if last in _VALUES and not before:
        raise Unsplit(chain, "a parameter is used by itself, and each rank has a part of it")
    return []


def _gives_the_model(context: Context, split: Split, call: ast.Call) -> bool:
    """`model = changed(model)` before it is split; not compiled, which is to happen behind."""
    script = context.script
    assign = script.parents.get(call)
    return script.name(call.func).endswith(".DataParallel") or (
        isinstance(assign, ast.Assign)
        and script.dotted(assign.targets[0]) == split.model.name
        and split.before(context, call)
        and script.name(call.func) != "torch.compile"
    )


def _parameters(context: Context, split: Split, call: ast.Call) -> None:
    """Parameters are for the optimizer, for clipping, to be counted, and to be frozen before."""
    script = context.script
    for up in script.above(call):
        if isinstance(up, ast.Call):
            if script.name(up.func).split(".")[-1] == "clip_grad_norm_":
                clipped_norm(script, up)
                return
            if "numel()" in script.code(up):
                return
        if isinstance(up, ForNode) and split.before(context, call):
            return
    raise Unsplit(call, "parameters are gone through one by one, and each rank has a part of each")


def _method(context: Context, split: Split, call: ast.Call, rest: str) -> list[str]:
    """A method of the script's own class can be routed; other calls of a model cannot."""
    script = context.script
    made = {
        script.code(one.func) for node in split.model.made for one in script.inside(node, ast.Call)
    }
    for class_ in script.all(ast.ClassDef):
        for function in script.functions:
            if script.owner(function) is class_ and function.name == rest and class_.name in made:
                inner = script.inside(function, ast.Call)
                return [] if any(script.code(one.func) == "self" for one in inner) else [rest]
    function_text = script.code(call.func)
    raise Unsplit(call, f"{function_text}(…) goes past the forward that puts its parts together")


def _state(context: Context, call: ast.Call, rest: str, before: bool) -> None:
    """A state dict is saved by itself, or loaded straight from a file."""
    if rest == "state_dict" and saved(context.script, call) is None:
        raise Unsplit(
            call, f'a state dict that is not saved alone, or as "model" of plain values; {_BY_HAND}'
        )
    if rest == "load_state_dict" and not before and loaded(context.script, call) is None:
        raise Unsplit(call, f"a split model is loaded straight from a file; {_BY_HAND}")


class Unsplit(Exception):  # noqa: N818 - a reason, not an error of the program
    """Why a model is not split.

    Attributes:
        node: where the reason stands.
    """

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node


def clipped_norm(script: Script, call: ast.Call) -> str:
    """The text of the norm that gradients are clipped to.

    Raises:
        Unsplit: it is another norm than the usual one.
    """
    kind = argument(call, "norm_type", 2)
    norm = argument(call, "max_norm", 1)
    usual = kind is None or script.code(kind) in ("2", "2.0")
    if norm is None or not usual or len(given(call)) > 3:
        raise Unsplit(call, "model.clip_grad_norm_(max_norm) of a split model knows one norm alone")
    return script.code(norm)


def saved(script: Script, state: ast.Call) -> tuple[ast.Call, str] | None:
    """The `torch.save` around `model.state_dict()`, and what is saved beside it as arguments.

    It is saved alone, or as "model" of a dictionary of plain values: the same file comes of it.
    """
    holder = script.parents.get(state)
    extra = ""
    whole: ast.AST = state
    if isinstance(holder, ast.Dict):
        whole = holder
        for name, item in zip(holder.keys, holder.values, strict=True):
            key, value = string(name), script.code(item)
            if key is None:
                return None
            if item is state:
                if key != "model":
                    return None
            elif key.isidentifier() and key not in _TAKEN and "state_dict" not in value:
                extra += f", {key}={value}"
            else:
                return None
    call = script.parents[whole]
    if not isinstance(call, ast.Call) or script.name(call.func) != "torch.save":
        return None
    if len(given(call)) != 2 or given(call)[0] is not whole or _opened(script, given(call)[1]):
        return None
    return call, extra


def _opened(script: Script, value: ast.expr) -> bool:
    """Whether it is what `with open(…) as f` has opened: a file, where a path is asked for."""
    return isinstance(value, ast.Name) and any(
        item.optional_vars is not None and script.code(item.optional_vars) == value.id
        for one in script.above(value)
        if isinstance(one, ast.With | ast.AsyncWith)
        for item in one.items
    )


def loaded(script: Script, call: ast.Call) -> str | None:
    """The text of PATH in `model.load_state_dict(torch.load(PATH, …))`."""
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Call):
        return None
    load = call.args[0]
    if script.name(load.func) != "torch.load" or not load.args:
        return None
    return script.code(load.args[0])


class Aliases:
    """Where an expression is the model: under its own name, or as what a function was given.

    Followed through calls of the script's own functions, not into other files.
    """

    def __init__(self, script: Script, model: Model) -> None:
        self._script, self._model = script, model
        self._given: set[tuple[Function, str]] = set()
        while found := set(self._parameters()) - self._given:
            self._given |= found

    def is_model(self, node: ast.AST) -> bool:
        """Whether an expression is the model itself."""
        script, model = self._script, self._model
        written = script.dotted(node)
        if not written:
            return False
        if "." in model.name and written.endswith(f".{model.name.partition('.')[2]}"):
            return True  # of whatever object: rather one too many than one not seen
        scope = script.scope(node)
        if isinstance(scope, Function) and (scope, written) in self._given:
            return True
        if written != model.name:
            return False
        if scope is model.scope:
            return True
        hidden = script.parameters(scope)
        return model.scope is script.tree and written not in hidden

    def all(self) -> Iterator[ast.Name | ast.Attribute]:
        """Every place where the model is named, but for those that give the name a value."""
        script = self._script
        found: tuple[ast.Name | ast.Attribute, ...] = (
            *script.all(ast.Name),
            *script.all(ast.Attribute),
        )
        for node in found:
            parent = script.parents.get(node)
            if isinstance(parent, ast.Assign) and node in parent.targets:
                continue
            if self.is_model(node):
                yield node

    def _parameters(self) -> Iterator[tuple[Function, str]]:
        script = self._script
        for function, calls in script.calls_of.items():
            for call in calls:
                for name in script.parameters(function):
                    value = script.given(function, name, call)
                    if value is not None and self.is_model(value):
                        yield function, name


def whole_chain(script: Script, node: ast.AST) -> tuple[ast.AST, str]:
    """`model.body.encode` around `model`, and `body.encode`."""
    names: list[str] = []
    while isinstance(parent := script.parents.get(node), ast.Attribute) and parent.value is node:
        names.append(parent.attr)
        node = parent
    return node, ".".join(names)
