"""Which GPU: each rank its own, by the local rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...script.flow import argument, call_name, first_argument, model_wrapper
from ...script.roles import Loop, Script
from ...script.source import File
from ...script.torch_names import words
from .facts import (
    anywhere,
    by_hand,
    calls,
    calls_in,
    integer,
    loops_in,
    ranked,
    string,
    strings,
    wrapped,
)
from .rule import Hit, Rule

_FIXED = re.compile(r"(?:cuda|xpu|hip):\d+")
_BEGUN = re.compile(r"(?:cuda|xpu|hip):(?:%d|%s|\{\})?")
_TODO = "use the local rank's: `device = world.device` of rankup.setup(), or plain 'cuda' after it"
_DEVICE_NAMES = words("device gpu gpu_id dev cuda_device device_id")


def device_fixed(file: File, script: Script) -> Iterator[Hit]:
    """RK103: all ranks on GPU 0."""
    given = [number for _, number in numbers_given(file)]
    for text, number in numbered_texts(file):
        call = file.names.enclosing(text, ast.Call)
        if number is not None:
            given.append(number)
        elif isinstance(call, ast.Call) and file.names.called(call) == "torch.load":
            continue  # RK144
        elif by_hand(script) or _used(file, text):
            yield Hit(text, f"every rank would use {file.code(text)}", _TODO)
    given += [one.value for one in numbered_names(file) if by_hand(script)]
    for number in given:
        if integer(number) or (by_hand(script) and not _known_device(script, file, number)):
            yield Hit(number, f"every rank would use GPU {file.code(number)}", _TODO)


def numbered_texts(file: File) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Texts that name a GPU by its number, and the expression of it; None in a literal.

    `"cuda:0"`, `f"cuda:{n}"`, `"cuda:" + str(n)`, `"cuda:%d" % n`, `"cuda:{}".format(n)`.
    """
    for literal in strings(file):
        if _FIXED.fullmatch(string(literal) or ""):
            yield literal, None
    for text in file.names.all(ast.JoinedStr):
        match text.values:
            case [ast.Constant(value=str(begun)), ast.FormattedValue() as part]:
                if _BEGUN.fullmatch(begun):
                    yield text, part.value
    for joined in file.names.all(ast.BinOp):
        if _BEGUN.fullmatch(string(joined.left) or ""):
            number = joined.right
            if isinstance(number, ast.Call) and call_name(number) == "str":
                number = first_argument(number) or number
            yield joined, number
    for call, _ in calls(file, "format"):
        begun_by = call.func.value if isinstance(call.func, ast.Attribute) else None
        if _BEGUN.fullmatch(string(begun_by) or "") and call.args:
            yield call, call.args[0]


def numbers_given(file: File) -> Iterator[tuple[ast.Call, ast.expr]]:
    """`n` of `x.cuda(n)`, `torch.cuda.set_device(n)`, `torch.device("cuda", n)`, `x.to(0)`."""
    for call, dotted in calls(file, "cuda", "set_device", "device", "to"):
        name = call_name(call)
        if name in ("set_device", "device") and not dotted.startswith("torch."):
            continue
        if not isinstance(call.func, ast.Attribute) and not dotted.startswith("torch."):
            continue  # `cuda(x, use_cuda)` of the script's own
        given = argument(call, "index", 1) if name == "device" else argument(call, "device", 0)
        if given is None and name == "device":
            given = argument(call, "type", 0)
            given = given if integer(given) else None
        if given is not None and (name != "to" or integer(given)):
            yield call, given


def numbered_names(file: File) -> Iterator[ast.Assign]:
    """`device = 0`, `self.gpu_id = 1`."""
    for assign in file.names.all(ast.Assign):
        target = assign.targets[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name in _DEVICE_NAMES and integer(assign.value):
            yield assign


def _used(file: File, literal: ast.expr) -> bool:
    """In a distributed script a literal may be a default that is never used: calls count."""
    call = file.names.enclosing(literal, ast.Call)
    return isinstance(call, ast.Call) and call_name(call) in ("device", "to", "cuda", "set_device")


def _known_device(script: Script, file: File, given: ast.expr) -> bool:
    """A device that another rule looks at, or that is the local rank's."""
    return ranked(script, file, given) or any(
        isinstance(one.node, (ast.Call, ast.IfExp)) or string(one.node) is not None
        for one in script.flow.origins(file, given)
    )


def data_parallel(file: File, script: Script) -> Iterator[Hit]:
    """RK104: DataParallel inside of ranks."""
    for call in data_parallels(file):
        yield Hit(
            call,
            "DataParallel drives all GPUs of a node from one process; ranks have one GPU each",
            "remove it; `model = rankup.wrap(model)` trains on all ranks",
        )


def data_parallels(file: File) -> Iterator[ast.Call]:
    """The calls of `torch.nn.DataParallel`."""
    for call, dotted in calls(file, "DataParallel"):
        if (not dotted or dotted.startswith("torch")) and first_argument(call) is not None:
            yield call


def visible_devices(file: File, script: Script) -> Iterator[Hit]:
    """RK105: a script that hides GPUs from itself."""
    for statement, value in chosen_by_environment(file):
        if not ranked(script, file, value):
            yield Hit(
                statement,
                "sets CUDA_VISIBLE_DEVICES: all ranks of a node would share what is left visible",
                "remove it; the launcher and the local rank choose",
            )


def chosen_by_environment(file: File) -> Iterator[tuple[ast.AST, ast.expr]]:
    """The statements that set the variable by which GPUs are visible, and the values."""
    for literal in strings(file):
        if string(literal) in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            value = _set_to(file, literal)
            if value is not None:
                yield file.names.statement(literal), value


def _set_to(file: File, literal: ast.Constant) -> ast.expr | None:
    """What an environment variable is set to at this place; None where it is only read."""
    for up in file.names.up(literal):
        if isinstance(up, ast.Assign):
            target = up.targets[0]
            return up.value if file.names.inside(literal, target) else None
        if isinstance(up, ast.Call):
            if call_name(up) in ("setdefault", "putenv"):
                return argument(up, "value", 1)
            return None
        if isinstance(up, ast.stmt):
            return None
    return None


def not_wrapped(file: File, script: Script) -> Iterator[Hit]:
    """RK106: ranks that each train a model of their own."""
    if not script.runtimes & {"torch", "rankup", "course"} or not script.train_loops:
        return
    around = wrapped(script)
    known = {model.node for model in script.models}
    yield from _wrapped_too_late(file, script)
    if anywhere(script, "parallelize", "fully_shard", "parallelize_module", "replicate"):
        return
    if any(".grad" in one.text and "all_reduce" in one.text for one in script.files):
        return  # gradients put together by hand
    if around and not known & set(around):
        return  # wrapped in a way that cannot be followed
    for model in script.models:
        if isinstance(file.names.parents.get(model.node), ast.Return):
            continue  # given back, and made elsewhere
        if model.file is file and model.node not in around and model.confidence >= 0.6:
            yield Hit(
                model.node,
                f"{model.name or 'this model'} is trained, but not wrapped: the ranks' models part "
                "from the first step on",
                "`model = rankup.wrap(model)` before the optimizer is made",
            )


def _wrapped_too_late(file: File, script: Script) -> Iterator[Hit]:
    """Where a model is wrapped behind the loop that trains it, for the first time."""
    index = file.names
    wraps: dict[tuple[ast.AST | None, str], list[ast.Call]] = {}
    for call in index.all(ast.Call):
        kind = model_wrapper(file, call)
        first = argument(call, "module", 0) if kind and kind != "sync-bn" else None
        if isinstance(first, (ast.Name, ast.Attribute)):
            wraps.setdefault((index.function(call), file.code(first)), []).append(call)
    for (function, name), found in wraps.items():
        call = min(found, key=lambda one: file.line(one)[0])
        line = file.line(call)[0]
        for loop in loops_in(file, script.train_loops):
            together = {up for up in index.up(call) if isinstance(up, (ast.For, ast.While))}
            if index.function(loop.node) is not function or together & set(index.up(loop.node)):
                continue
            if file.last_line(loop.node) < line and _calls(loop, name):
                yield Hit(
                    call,
                    f"{name} is wrapped behind the loop that trains it (line "
                    f"{file.line(loop.node)[0]}): no gradients are exchanged there",
                    f"`{name} = rankup.wrap({name})` before the optimizer is made",
                )
                break


def _calls(loop: Loop, name: str) -> bool:
    return any(loop.file.code(call.func) == name for call in calls_in(*loop.body))


RULES = (
    Rule("RK103", "device-fixed", "error", device_fixed),
    Rule("RK104", "data-parallel", "error", data_parallel, frameworks=True),
    Rule("RK105", "visible-devices-set", "error", visible_devices, frameworks=True),
    Rule("RK106", "model-not-wrapped", "error", not_wrapped),
)
