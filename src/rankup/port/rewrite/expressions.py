"""Small questions about expressions."""

from __future__ import annotations

import ast

import libcst as cst

from ...script.flow import call_name
from ...script.names import walk
from .script import Script

_UNPACKED = {"enumerate", "tqdm", "trange", "iter", "islice", "cycle", "track", "progress_bar"}


def unpacked(script: Script, expression: cst.BaseExpression) -> cst.BaseExpression:
    """What `enumerate(tqdm(loader))` goes over."""
    while isinstance(expression, cst.Call) and expression.args:
        if script.dotted(expression.func).split(".")[-1] not in _UNPACKED:
            break
        expression = expression.args[0].value
    return expression


def sized(script: Script, expression: cst.CSTNode) -> bool:
    """Whether an expression is a number of samples or a value, no longer a batch."""
    code = script.code(expression)
    ends = (".item()", ".size(0)", ".shape[0]", ".numel()")
    return code.endswith(ends) or code.startswith(("len(", "float(", "int("))


def root_name(expression: cst.CSTNode) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(expression, cst.Attribute | cst.Subscript):
        expression = expression.value
    return expression.value if isinstance(expression, cst.Name) else None


def attribute(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else ""


def targets_of(target: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(target, cst.Tuple | cst.List):
        return [one for element in target.elements for one in targets_of(element.value)]
    return [target]


def loader_like(code: str) -> bool:
    last = code.split(".")[-1].lower()
    return "loader" in last or last in ("get_data", "get_dls", "build_dl", "get_dl")


def loss_names(script: Script, call: cst.Call) -> set[str]:
    """`loss` of `loss.backward()`, `scaler.scale(loss / n).backward()` and the like."""
    start = call.func.value if isinstance(call.func, cst.Attribute) else call
    if call.args and isinstance(start, cst.Name) and start.value in ("torch", "manager"):
        start = call
    names = set()
    for name in script.inside(start, cst.Name):
        parent = script.parents.get(name)
        if isinstance(parent, cst.Attribute) and parent.attr is name:
            continue
        if isinstance(parent, cst.Call) and parent.func is name:
            continue
        names.add(name.value)
    return names - {"scaler", "self", "torch", "amp"}


def trains_elsewhere(script: Script, call: cst.Call) -> bool:
    """Whether a call runs a function of another file in the folder that calls backward."""
    path = script.beside(call)
    if path is None:
        return False
    if ".backward(" not in script.file(path).text:
        return False
    name = script.dotted(call.func).split(".")[-1]
    return any(
        isinstance(one, ast.Call) and call_name(one) == "backward"
        for function in script.functions_in(path, name)
        for one in walk(function)
    )


def heads_of(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """What a `with` enters, or what decorates a function."""
    if isinstance(node, cst.With):
        return [item.item for item in node.items]
    return [one.decorator for one in node.decorators] if isinstance(node, cst.FunctionDef) else []


def turns_gradients_off(script: Script, node: cst.CSTNode) -> bool:
    """Whether what stands in a `with`, or a function, may run without gradients."""
    heads = heads_of(node)
    names = {one.value for one in heads if isinstance(one, cst.Name)}
    heads += [  # `context = torch.no_grad() if … else …`
        one.value
        for one in script.all(cst.Assign)
        if names and script.code(one.targets[0].target) in names
    ]
    texts = [script.code(head) for head in heads]
    return any(
        word in text and text != "torch.set_grad_enabled(True)"
        for text in texts
        for word in ("no_grad", "inference_mode", "set_grad_enabled")
    )


def read(script: Script, node: cst.CSTNode) -> set[str]:
    """The names that an expression reads, not those of attributes: `outputs` of `outputs.loss`."""
    return {
        one.value
        for one in script.inside(node, cst.Name)
        if not (isinstance(up := script.parents.get(one), cst.Attribute) and up.attr is one)
    }
