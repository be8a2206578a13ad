"""Small questions about expressions."""

from __future__ import annotations

import ast

from ...script.flow import given, literal
from ...script.names import Function, walk
from ...script.torch_names import LOADER_WRAPPERS
from .script import Script, Where

# `zip` and `chain` have several.
_UNPACKED = LOADER_WRAPPERS - {"zip", "chain", "shard"}


def unpacked(script: Script, expression: ast.expr) -> ast.expr:
    """The iterable behind `enumerate(tqdm(loader))`."""
    while isinstance(expression, ast.Call) and given(expression):
        if script.dotted(expression.func).split(".")[-1] not in _UNPACKED:
            break
        expression = given(expression)[0]
    return expression


def sized(script: Script, expression: ast.AST) -> bool:
    """True where an expression is a number of samples or a value, no longer a batch."""
    code = script.code(expression)
    ends = (".item()", ".size(0)", ".shape[0]", ".numel()")
    return code.endswith(ends) or code.startswith(("len(", "float(", "int("))


def root_name(expression: ast.AST) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def targets_of(target: ast.AST) -> list[ast.AST]:
    if isinstance(target, ast.Tuple | ast.List):
        return [one for element in target.elts for one in targets_of(element)]
    return [target]


def loss_names(script: Script, call: ast.Call) -> set[str]:
    """`loss` of `loss.backward()`, `scaler.scale(loss / n).backward()` and the like."""
    start = call.func.value if isinstance(call.func, ast.Attribute) else call
    if given(call) and isinstance(start, ast.Name) and start.id in ("torch", "manager"):
        start = call
    names = set()
    for name in script.inside(start, ast.Name):
        parent = script.parents.get(name)
        if not (isinstance(parent, ast.Call) and parent.func is name):
            names.add(name.id)
    return names - {"scaler", "self", "torch", "amp"}


def heads_of(node: ast.AST) -> list[ast.expr]:
    """The expressions that a `with` enters, or that decorate a function."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.context_expr for item in node.items]
    return node.decorator_list if isinstance(node, Function) else []


def turns_gradients_off(script: Script, node: ast.AST) -> bool:
    """True where what stands in a `with`, or a function, may run without gradients."""
    heads = heads_of(node)
    names = {one.id for one in heads if isinstance(one, ast.Name)}
    heads += [  # `context = torch.no_grad() if … else …`
        one.value
        for one in script.all(ast.Assign)
        if names and script.code(one.targets[0]) in names
    ]
    texts = [script.code(head) for head in heads]
    return any(
        word in text and text != "torch.set_grad_enabled(True)"
        for text in texts
        for word in ("no_grad", "inference_mode", "set_grad_enabled")
    )


def mentioned(*nodes: ast.AST) -> set[str]:
    """The names that expressions read: `state`, `self.total`; `state["step"]`, `model.seen` too."""
    found = set()
    for one in walk(*nodes):
        match one:
            case ast.Name(id=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                found.add(f"{name}.{attr}")
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                found.add(f"{name}[{key!r}]")
    return found - {"self"}


def stored(*targets: ast.AST) -> set[str]:
    """The names that an assignment gives values: of `state["step"]` that entry alone."""
    found = set()
    for one in (part for target in targets for part in targets_of(target)):
        match one:
            case ast.Starred(value=ast.Name(id=name)) | ast.Name(id=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                found.add(f"{name}.{attr}")
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                found.add(f"{name}[{key!r}]")
            case _:
                found |= mentioned(one)
    return found


def words(where: Where) -> set[str]:
    """All names in a node or a block, those of attributes and of keywords, too."""
    found = set()
    for one in walk(*([where] if isinstance(where, ast.AST) else where)):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
    return found


def number(node: ast.AST | None) -> bool:
    return type(literal(node)) in (int, float)
