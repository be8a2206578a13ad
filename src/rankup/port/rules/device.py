"""Which GPU: each rank its own, by the local rank."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..roles import Loop, Roles
from ..roles.pieces import argument, around_model, call_name
from ..source import Source
from .facts import anywhere, by_hand, calls, calls_in, loops_in, ranked, string, wrapped
from .rule import Hit, Rule

_FIXED = re.compile(r"(?:cuda|xpu|hip):\d+")
_TODO = "use the local rank's: `device = world.device` of rankup.setup(), or plain 'cuda' after it"


def device_fixed(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK103: all ranks on GPU 0."""
    for literal in source.index.all(cst.SimpleString):
        if "cuda:" in literal.value and _FIXED.fullmatch(string(literal) or ""):
            call = source.index.enclosing(literal, cst.Call)
            if isinstance(call, cst.Call) and source.index.called(call) == "torch.load":
                continue  # RK144
            if by_hand(roles) or _used(source, literal):
                yield Hit(literal, f"every rank would use {literal.value}", _TODO)
    for given in (*_numbers_given(source), *_numbers_joined(source)):
        if isinstance(given, cst.Integer):
            yield Hit(given, f"every rank would use GPU {given.value}", _TODO)
        elif by_hand(roles) and not _known_device(roles, source, given):
            yield Hit(given, f"every rank would use GPU {source.code(given)}", _TODO)


def _numbers_given(source: Source) -> Iterator[cst.BaseExpression]:
    """`n` of `x.cuda(n)`, `torch.cuda.set_device(n)`, `torch.device("cuda", n)`, `x.to(0)`."""
    for call, dotted in calls(source, "cuda", "set_device", "device", "to"):
        name = call_name(call)
        if name in ("set_device", "device") and not dotted.startswith("torch."):
            continue
        given = argument(call, "index", 1) if name == "device" else argument(call, "device", 0)
        if given is None and name == "device":
            given = argument(call, "type", 0)
            given = given if isinstance(given, cst.Integer) else None
        if given is not None and (name != "to" or isinstance(given, cst.Integer)):
            yield given


def _numbers_joined(source: Source) -> Iterator[cst.BaseExpression]:
    """`n` of `f"cuda:{n}"`, `"cuda:" + str(n)` and `"cuda:%d" % n`."""
    for text in source.index.all(cst.FormattedString):
        match text.parts:
            case [cst.FormattedStringText(value="cuda:"), cst.FormattedStringExpression() as part]:
                yield part.expression
    for joined in source.index.all(cst.BinaryOperation):
        if (string(joined.left) or "").startswith("cuda:"):
            number = joined.right
            if isinstance(number, cst.Call) and call_name(number) == "str" and number.args:
                number = number.args[0].value
            yield number


def _used(source: Source, literal: cst.SimpleString) -> bool:
    """In a distributed script a literal may be a default that is never used: calls count."""
    call = source.index.enclosing(literal, cst.Call)
    return isinstance(call, cst.Call) and call_name(call) in ("device", "to", "cuda", "set_device")


def _known_device(roles: Roles, source: Source, given: cst.BaseExpression) -> bool:
    """A device that another rule looks at, or that is the local rank's."""
    return ranked(roles, source, given) or any(
        isinstance(one.node, (cst.Call, cst.IfExp, cst.SimpleString))
        for one in roles.flow.origins(source, given)
    )


def data_parallel(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK104: DataParallel inside of ranks."""
    for call, dotted in calls(source, "DataParallel"):
        if not dotted or dotted.startswith("torch"):
            yield Hit(
                call,
                "DataParallel drives all GPUs of a node from one process; ranks have one GPU each",
                "remove it; `model = rankup.wrap(model)` trains on all ranks",
            )


def visible_devices(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK105: a script that hides GPUs from itself."""
    for literal in source.index.all(cst.SimpleString):
        if "VISIBLE_DEVICES" not in literal.value:
            continue
        if string(literal) not in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            continue
        value = _set_to(source, literal)
        if value is not None and not ranked(roles, source, value):
            yield Hit(
                source.index.statement(literal),
                "sets CUDA_VISIBLE_DEVICES: all ranks of a node would share what is left visible",
                "remove it; the launcher and the local rank choose",
            )


def _set_to(source: Source, literal: cst.SimpleString) -> cst.BaseExpression | None:
    """What an environment variable is set to at this place; None where it is only read."""
    for up in source.index.up(literal):
        if isinstance(up, cst.Assign):
            target = up.targets[0].target
            return up.value if source.index.inside(literal, target) else None
        if isinstance(up, cst.Call):
            if call_name(up) in ("setdefault", "putenv"):
                return argument(up, "value", 1)
            return None
        if isinstance(up, cst.BaseStatement):
            return None
    return None


def not_wrapped(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK106: ranks that each train a model of their own."""
    if not roles.runtimes & {"torch", "rankup", "course"} or not roles.train_loops:
        return
    around = wrapped(roles)
    known = {model.node for model in roles.models}
    yield from _wrapped_too_late(source, roles)
    if anywhere(roles, "parallelize", "fully_shard", "parallelize_module", "replicate"):
        return
    if any(".grad" in one.text and "all_reduce" in one.text for one in roles.sources):
        return  # gradients put together by hand
    if around and not known & set(around):
        return  # wrapped in a way that cannot be followed
    for model in roles.models:
        if isinstance(source.index.parents.get(model.node), cst.Return):
            continue  # given back, and made elsewhere
        if model.source is source and model.node not in around and model.confidence >= 0.6:
            yield Hit(
                model.node,
                f"{model.name or 'this model'} is trained, but not wrapped: the ranks' models part "
                "from the first step on",
                "`model = rankup.wrap(model)` before the optimizer is made",
            )


def _wrapped_too_late(source: Source, roles: Roles) -> Iterator[Hit]:
    """Where a model is wrapped behind the loop that trains it, for the first time."""
    index = source.index
    wraps: dict[tuple[cst.CSTNode | None, str], list[cst.Call]] = {}
    for call in index.all(cst.Call):
        kind = around_model(source, call)
        first = argument(call, "module", 0) if kind and kind != "sync-bn" else None
        if isinstance(first, (cst.Name, cst.Attribute)):
            wraps.setdefault((index.function(call), source.code(first)), []).append(call)
    for (function, name), found in wraps.items():
        call = min(found, key=lambda one: source.line_of(one)[0])
        line = source.line_of(call)[0]
        for loop in loops_in(source, roles.train_loops):
            together = {up for up in index.up(call) if isinstance(up, (cst.For, cst.While))}
            if index.function(loop.node) is not function or together & set(index.up(loop.node)):
                continue
            if source.last_line_of(loop.node) < line and _calls(loop, name):
                yield Hit(
                    call,
                    f"{name} is wrapped behind the loop that trains it (line "
                    f"{source.line_of(loop.node)[0]}): no gradients are exchanged there",
                    f"`{name} = rankup.wrap({name})` before the optimizer is made",
                )
                break


def _calls(loop: Loop, name: str) -> bool:
    return any(loop.source.code(call.func) == name for call in calls_in(loop.body))


RULES = (
    Rule("RK103", "device-fixed", "error", device_fixed),
    Rule("RK104", "data-parallel", "error", data_parallel, frameworks=True),
    Rule("RK105", "visible-devices-set", "error", visible_devices, frameworks=True),
    Rule("RK106", "model-not-wrapped", "error", not_wrapped),
)
