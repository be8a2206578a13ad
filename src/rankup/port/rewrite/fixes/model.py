"""The model: wrapped when it is ready, before it trains; and what its loss has to become."""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from ..context import Context
from ..models import Model

_READY = ("to", "cuda", "apply", "load_state_dict", "half", "float", "double", "requires_grad_")
_NORMS = re.compile(r"\bBatchNorm[123]d\b|\bresnet\d+\b|\bLazyBatchNorm")


def wrap_models(context: Context) -> None:
    """`model = rankup.wrap(model)` behind the last line that makes it what it is."""
    for model in (one for whole in context.training.models for one in _trained(context, whole)):
        place = ready(context, model)
        name = model.name
        lines = [f"{name} = rankup.wrap({name})"]
        if context.options.sync_bn:
            sync = f"torch.nn.SyncBatchNorm.convert_sync_batchnorm({name})"
            lines.insert(0, f"{name} = {sync}")
        context.after(place, *lines)
        context.done(place, f"gradients of {name} are exchanged (rankup.wrap)")


def _trained(context: Context, model: Model) -> list[Model]:
    """The models that a name holds one after another, each to be wrapped where it is made.

    After its training a script may make the model anew, to show how a file is loaded: nothing
    trains that one.
    """
    script, training = context.script, context.training
    steps = [
        call for call in script.inside(model.scope, cst.Call, deep=False) if training.trains(call)
    ]
    made = [one for one in model.made if not training.trains(one) and not _is_none(one)]
    made = [one for one in made if not _goes_on(context, one, model.name, steps)]
    made = [one for one in made if not _behind_all(context, one, steps)] or made
    if not made:
        return [model]
    whole = replace(model, made=tuple(made))
    groups: dict[tuple[cst.CSTNode, int], list[cst.CSTNode]] = {}
    for one in sorted(made, key=script.line):
        block = next(up for up in script.above(one) if _holds(up))
        before = [at for at in block.body if training.trains(at)]  # type: ignore[attr-defined]
        passed = sum(script.line(at) < script.line(one) for at in before)
        groups.setdefault((block, passed), []).append(one)
    alone = len({block for block, _ in groups}) == 1
    if alone or training.trains(ready(context, whole)):
        return [replace(model, made=tuple(group)) for group in groups.values()]
    return [whole]


def _is_none(made: cst.CSTNode) -> bool:
    value = getattr(made, "value", None)
    return isinstance(value, cst.Name) and value.value == "None"


def _goes_on(context: Context, made: cst.CSTNode, name: str, steps: list[cst.Call]) -> bool:
    """Whether what has trained by now is given back changed: `model = model.to("cpu")`."""
    script, value = context.script, getattr(made, "value", None)
    if value is None or not any(script.line(step) < script.line(made) for step in steps):
        return False
    read = [
        one
        for kind in (cst.Name, cst.Attribute)
        for one in script.inside(value, kind)
        if script.dotted(one) == name
    ]
    if not read:
        return False
    func = value.func if isinstance(value, cst.Call) else None
    if not (isinstance(func, cst.Attribute) and script.dotted(func.value) == name):
        context.leave(
            made,
            f"made of a {name} that is wrapped: give it rankup.unwrap({name}), and wrap what "
            "trains from here on",
        )
    return True


def _behind_all(context: Context, made: cst.CSTNode, steps: list[cst.Call]) -> bool:
    """Whether nothing trains behind a line, in no further round of a loop either."""
    script = context.script
    loops = {up for up in script.above(made) if isinstance(up, cst.For | cst.While)}
    return bool(steps) and all(
        script.line(step) < script.line(made) and not loops & set(script.above(step))
        for step in steps
    )


def ready(context: Context, model: Model) -> cst.CSTNode:
    """The statement after which the model is ready."""
    script = context.script
    # `model = fit(model, …)` gives back what it was given, and is too late.
    making = [one for one in model.made if not context.training.trains(one)] or model.made
    chains = [[made, *script.above(made)] for made in making]
    blocks = [node for node in chains[0] if _holds(node)]
    common = next(block for block in blocks if all(block in chain for chain in chains[1:]))
    body = list(common.body)  # type: ignore[attr-defined]
    tops = [next(node for node in chain if node in body) for chain in chains]
    last = max(body.index(top) for top in tops)
    place = body[last]
    if context.training.trains(place):
        return place
    for statement in body[last + 1 :]:
        if context.training.trains(statement) or isinstance(statement, cst.Return):
            break
        if _prepares(context, statement, model.name):
            place = statement
    return place


def _holds(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.IndentedBlock | cst.Module)


def _prepares(context: Context, statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement moves, loads, freezes or changes the model."""
    script = context.script
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    for call in script.inside(statement, cst.Call, deep=False):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _READY:
            target = script.dotted(call.func.value)
            if target == name or target.startswith(name + "."):
                return True
    for assign in script.inside(statement, cst.Assign, deep=False):
        target = script.code(assign.targets[0].target)
        if target.startswith((f"{name}.", f"{name}[")):
            return True
        if target.endswith(".requires_grad") and re.search(
            rf"\b{re.escape(name)}[.\[]", script.code(statement)
        ):
            return True
    return False


def summed_losses(context: Context) -> None:
    """`rankup.summed(loss).backward()` where the loss is a sum over the batch."""
    script = context.script
    for call in context.training.backwards:
        loop = next((one for one in context.training.loops if one.node in script.above(call)), None)
        scope = script.scope(call)
        names = loop.losses if loop is not None else set()
        if not names and isinstance(call.func, cst.Attribute):
            names = {n.value for n in script.inside(call.func.value, cst.Name)}
        if not sums(context, scope, names, call):
            continue
        receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(receiver, cst.Call) and script.code(receiver.func).endswith(".scale"):
            receiver = receiver.args[0].value
        if receiver is not None:
            context.around(receiver, "rankup.summed(")
            context.done(call, "a loss summed over the batch is summed over the ranks too")


def sums(context: Context, scope: cst.CSTNode, names: set[str], call: cst.BaseExpression) -> bool:
    """Whether the loss behind these names adds up over the samples of a batch."""
    script = context.script
    func = call.func if isinstance(call, cst.Call) else None
    receiver = script.code(func.value) if isinstance(func, cst.Attribute) else ""
    if receiver.endswith(".sum()"):
        return True
    values = [
        value
        for name in names
        for _, value in context.training.assigned(name, scope)  # type: ignore[arg-type]
    ]
    return any(adds_up(context, value, 0) for value in values)


def adds_up(context: Context, value: cst.CSTNode, depth: int) -> bool:
    """Whether an expression is a sum-reduced loss, through the script's own functions."""
    script = context.script
    code = script.code(value)
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
        return _constant(context, value.right) and adds_up(context, value.left, depth)
    if _is_sum(code):
        return True
    for call in script.inside(value, cst.Call):
        function = script.called(call)
        if function is not None and depth < 3:
            inside = script.code(function.body)
            if _is_sum_loss(inside):
                return True
        name = script.dotted(call.func)
        if not name:
            continue
        for _, made in context.training.assigned(name, script.scope(call)) or (
            context.training.assigned(name, script.module)
        ):
            if isinstance(made, cst.Call) and _is_sum(script.code(made)):
                return True
    return False


def _constant(context: Context, value: cst.BaseExpression) -> bool:
    """Whether a divisor is the same for every batch and on every rank: `batch_size`, 32."""
    script, name = context.script, context.script.dotted(value)
    if not name:
        return isinstance(value, cst.Integer | cst.Float)
    if isinstance(value, cst.Attribute):
        return not re.search(r"shape|size\b|num", name) or "batch_size" in name
    scope = script.scope(value)
    made = [
        *context.training.assigned(name, scope),
        *context.training.assigned(name, script.module),
    ]
    return bool(made) and all(
        isinstance(one, cst.Integer | cst.Float) or "args." in script.code(one) for _, one in made
    )


def _is_sum(code: str) -> bool:
    return bool(
        re.search(r"""reduction\s*=\s*["']sum["']|size_average\s*=\s*False""", code)
    ) or code.endswith(".sum()")


def _is_sum_loss(code: str) -> bool:
    return bool(re.search(r"""reduction\s*=\s*["']sum["']|size_average\s*=\s*False""", code))


def batch_norm(context: Context) -> None:
    """Batch norm sees a rank's part of the batch: that is said, and how to change it."""
    if context.options.sync_bn:
        return
    for node in (*context.script.all(cst.Attribute), *context.script.all(cst.Name)):
        if _NORMS.fullmatch(context.script.code(node).split(".")[-1]):
            context.leave(
                node,
                "batch norm takes its statistics over this rank's part of a batch; "
                "`rankup port --sync-bn` makes it take them over the whole batch",
                comment=False,
            )
            return


def round_trips(context: Context) -> None:
    """`model.cpu()` inside a loop takes the parameters away from what exchanges gradients."""
    script = context.script
    names = {model.name for model in context.training.models} | context.training.parameter_names
    for call in script.all(cst.Call):
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("cpu", "to"):
            continue
        target = script.dotted(call.func.value) or script.code(call.func.value).split(".eval()")[0]
        away = call.func.attr.value == "cpu" or (call.args and '"cpu"' in script.code(call.args[0]))
        if away and target in names and _inside_training(context, call):
            context.leave(
                call,
                "moving the model to the CPU and back ends the exchange of its gradients; "
                "save its state_dict() without moving it",
            )


def _inside_training(context: Context, node: cst.CSTNode) -> bool:
    above = set(context.script.above(node))
    return any(
        isinstance(one, cst.For | cst.While) and context.training.trains(one) for one in above
    )
