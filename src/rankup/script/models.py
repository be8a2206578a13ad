"""Models, optimizers, schedulers, loaders: what is trained, by what, with what."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .flow import Flow, Origin, call_name, first_argument, method_calls, receiver
from .names import calls_in, walk, written
from .roles import Role, RoleKind, unique
from .source import File
from .torch_names import LOADERS, OPTIMIZERS, SCHEDULES, last, words

_DEEPEST = 3  # names that are followed from one to the next
_PARAMETERS = frozenset({"parameters", "named_parameters", "trainable_parameters"})
_GIVE_PARTS = words("children modules get_submodule")
_GIVE_LOADERS = words("splits iters get_data get_dls build_dl get_dl")
_NOT_LOADERS = words("builtins.range builtins.open builtins.dict os.listdir")


def role(kind: RoleKind, origin: Origin, confidence: float) -> Role:
    """The role of what a value is made by."""
    return Role(origin.file, origin.node, kind, confidence)


def makes_optimizer(flow: Flow, file: File, call: ast.Call) -> bool:
    """True of a call that makes an optimizer, of torch or of another that is given parameters."""
    dotted, name = file.names.called(call), call_name(call)
    if dotted.startswith("torch.optim.") and not (
        "lr_scheduler" in dotted or "swa_utils" in dotted
    ):
        return last(dotted) not in SCHEDULES and last(dotted)[:1].isupper()
    first = first_argument(call)
    if first is None or name in OPTIMIZERS:
        return name in OPTIMIZERS
    if isinstance(call.func, ast.Call) and call_name(call.func) == "getattr":
        chosen = first_argument(call.func)  # `getattr(torch.optim, name)(…)`
        return chosen is not None and file.names.dotted(chosen) == "torch.optim"
    if name[:1].isupper() and ".parameters()" in file.code(first):
        return True
    chosen_by_name = "optim" in name.lower() and flow.callee(file, call) is None
    return chosen_by_name and bool(with_parameters(flow, file, first))


def find_optimizers(flow: Flow) -> tuple[Role, ...]:
    """Calls that make an optimizer."""
    return tuple(
        role("optimizer", Origin(file, call), 1.0)
        for file in flow.files
        for call in file.names.all(ast.Call)
        if makes_optimizer(flow, file, call)
    )


def find_models(flow: Flow, optimizers: Iterable[Role]) -> tuple[Role, ...]:
    """The models whose parameters an optimizer was given, or what its list is made from."""
    given = [(one.file, first_argument(one.node)) for one in optimizers]  # type: ignore[arg-type]
    given += [(file, first_argument(call)) for file, call in given_later(flow)]
    return unique(
        role("model", origin, 1.0 if isinstance(origin.node, ast.Call) else 0.6)
        for file, parameters in given
        if parameters is not None
        for where, model in with_parameters(flow, file, parameters)
        for part in flow.origins(where, _whole(model))
        for whole in _whole_of(flow, part)
        for origin in _instances(flow, whole)
    )


def given_later(flow: Flow) -> list[tuple[File, ast.Call]]:
    """The calls by which an optimizer is given more parameters."""
    return [
        (file, call)
        for file in flow.files
        for call in file.names.all(ast.Call)
        if call_name(call) == "add_param_group"
    ]


def with_parameters(
    flow: Flow, file: File, node: ast.AST, depth: int = 0
) -> list[tuple[File, ast.expr]]:
    """`model` of each `model.parameters()` in an expression, or in what it is made from."""
    found = [(file, one) for one in _parameter_calls(node)]
    found = found or [(file, one) for one in _asked(flow, file, node)]
    if depth == _DEEPEST:
        return found
    seen = {part for owner in _parameter_calls(node) for part in walk(owner)}
    seen |= {part for value in _settings(node) for part in walk(value)}
    for part in walk(node):
        if not isinstance(part, ast.Name | ast.Attribute | ast.Call) or part in seen:
            continue
        if found and isinstance(part, ast.Call):
            continue
        for origin in flow.origins(file, part):
            if origin.node is not part and isinstance(origin.node, ast.expr):
                found += with_parameters(flow, origin.file, origin.node, depth + 1)
        for head in _filled_over(file, part) if isinstance(part, ast.Name) else ():
            found += with_parameters(flow, file, head, depth + 1)
    return list(dict.fromkeys(found))


def _settings(node: ast.AST) -> list[ast.expr]:
    """The rates and decays of groups of parameters, and not these."""
    return [
        value
        for group in walk(node)
        if isinstance(group, ast.Dict)
        for key, value in zip(group.keys, group.values, strict=True)
        if isinstance(key, ast.Constant) and key.value != "params"
    ]


def _filled_over(file: File, name: ast.Name) -> list[ast.expr]:
    """The iterables of loops that fill a list: `for p in net.parameters(): found.append(p)`."""

    def scope(one: ast.Name) -> ast.AST:
        return file.names.bindings(one.id, file.names.scope(one))[0]

    filling = [
        call
        for call, grown in method_calls(file.names.all(ast.Call), "append", "extend")
        if isinstance(grown, ast.Name) and grown.id == name.id and scope(grown) is scope(name)
    ]
    loops = [up for call in filling for up in file.names.up(call) if isinstance(up, ast.For)]
    return list(dict.fromkeys(loop.iter for loop in loops))


def _parameter_calls(node: ast.AST) -> list[ast.expr]:
    return [owner for _, owner in method_calls(walk(node), *_PARAMETERS)]


def _asked(flow: Flow, file: File, node: ast.AST) -> list[ast.expr]:
    """`net` of `net.groups(0.1)`, a method of a model that gives its parameters in groups."""
    found = list[ast.expr]()
    for call in calls_in(node):
        owner = receiver(call)
        if not isinstance(owner, ast.Name | ast.Attribute) or file.names.dotted(owner):
            continue
        made = flow.class_of(file, owner)
        if made is not None:
            whole = flow.member(*made, "forward") is not None
        else:  # of a library: a model is what is called itself
            whole = any(written(one.func) == written(owner) for one in file.names.all(ast.Call))
        if whole and written(owner) not in ("", "self"):
            found.append(owner)
    return found


def _whole(node: ast.expr) -> ast.expr:
    """The model of which `model.encoder.fc` is a part; `self.model` of `self.model.fc`."""
    chain = [node]
    while isinstance(chain[-1], ast.Attribute):
        chain.append(chain[-1].value)
    if isinstance(chain[-1], ast.Name) and chain[-1].id == "self" and len(chain) > 1:
        return chain[-2]
    return chain[-1] if isinstance(chain[-1], ast.Name) else node


def part_of(node: ast.AST) -> ast.expr | None:
    """Return the model of which an expression names a part: `net` of `list(net.children())[-1]`."""
    at = node
    while True:
        match at:
            case ast.Attribute(value=ast.Name(id="self")) | ast.Name():
                return at if at is not node else None
            case ast.Attribute() | ast.Subscript():
                at = at.value
            case ast.Call(func=ast.Attribute(attr=name)) if name in _GIVE_PARTS:
                assert isinstance(at.func, ast.Attribute)
                at = at.func.value
            case ast.Call(func=ast.Name(id="list" | "next" | "iter"), args=[inner]):
                at = inner
            case _:
                return None


def _whole_of(flow: Flow, origin: Origin) -> list[Origin]:
    """Return what makes the model of which something is a part, else where that is from."""
    whole = part_of(origin.node)
    made = flow.origins(origin.file, whole) if whole is not None else ()
    return [one for one in made if isinstance(one.node, ast.Call)] or [origin]


def _instances(flow: Flow, origin: Origin) -> list[Origin]:
    """Return what makes a model: of `self` in a method of its own what that is called on."""
    if not isinstance(origin.node, ast.arg) or origin.node.arg != "self":
        return [origin]
    function = origin.file.names.function(origin.node)
    calls = flow.callers.get(function, ()) if function is not None else ()
    owners = [(file, owner) for file, call in calls if (owner := receiver(call)) is not None]
    return [made for owner in owners for made in flow.origins(*owner)]


def is_loader(flow: Flow, origin: Origin) -> float:
    """Confidence that a value is a loader of batches, 0 to 1."""
    if isinstance(origin.node, ast.arg):
        return _by_name(origin.node.arg)
    if not isinstance(origin.node, ast.Call):
        short = isinstance(origin.node, ast.Name | ast.Attribute | ast.Subscript)
        return _by_name(origin.file.code(origin.node)) if short else 0.0
    call = origin.node
    dotted = origin.file.names.called(call)
    if call_name(call) in LOADERS:
        return 1.0
    if dotted in _NOT_LOADERS:
        return 0.0
    owner = flow.class_of(origin.file, call)
    if owner is not None and any(last(base) in LOADERS for base in flow.bases(*owner)):
        return 0.95
    if call_name(call) == "WebLoader":
        return 0.9
    name = call_name(call).lower()
    sure = 0.6 if owner is None else 0.5  # of a class of its own, which is no DataLoader
    # `self.loader(path)` gives a sample, as in torchvision's data sets.
    return sure if ("loader" in name and name != "loader") or name in _GIVE_LOADERS else 0.0


def _by_name(name: str) -> float:
    name = name.lower()
    known = ("loader", "_dl", "dl_", "train_iter", "test_iter", "val_iter", "valid_iter")
    return 0.6 if any(word in name for word in known) or name == "dl" else 0.0


def find_schedulers(flow: Flow) -> tuple[Role, ...]:
    return unique(
        role("scheduler", Origin(file, call), 1.0)
        for file in flow.files
        for call in file.names.all(ast.Call)
        if call_name(call) in SCHEDULES or "lr_scheduler." in file.names.called(call)
    )
