"""Whether a rewrite can split a script's model over the ranks (`--strategy fsdp`), and if not, why.

A split model is cut before it trains, each rank has a part of every parameter, and each forward is
a collective. So what a script does with its model has to be known, use by use: what is not on the
lists here is a reason to leave the script alone.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...script.flow import given
from .aliases import Aliases, whole_chain
from .context import Context
from .fixes.data import drawn_batches, without_gradients
from .fixes.kinds import conditional, increments
from .fixes.model import ready
from .models import Model, parameter_roots
from .script import ForNode
from .states import Unsplit, clipped_norm, loaded, saved

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
        for function in script.functions_all:
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
