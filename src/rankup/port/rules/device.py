"""The GPU of each rank. After `rankup.setup()` plain "cuda" is this rank's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ...script.flow import (
    argument,
    call_name,
    first_argument,
    given,
    method_calls,
    model_wrapper,
)
from ...script.names import calls_in
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import words
from ..match import Pattern
from ..rewrite.context import Context
from .facts import (
    anywhere,
    by_hand,
    integer,
    loops_in,
    ranked,
    string,
    strings,
    wrapped,
)
from .rule import Hit, rule

_FIXED = re.compile(r"(?:cuda|xpu|hip):\d+")
_BEGUN = re.compile(r"(?:cuda|xpu|hip):(?:%d|%s|\{\})?")
_PARALLEL = Pattern(
    "torch.nn.DataParallel(module=_)",
    "torch.nn.parallel.DataParallel(module=_)",
    "torch.nn.parallel.data_parallel.DataParallel(module=_)",
)
# `x.cuda(0)`, `torch.device("cuda", 0)` and alike, with the number.
_GIVEN = Pattern(
    "_.cuda(device=_number)",
    "_.to(device=_number)",
    "torch.cuda.set_device(device=_number)",
    "torch.cuda.device(device=_number)",
    "torch.device(type=_, index=_number)",
    "torch.device(type=_number)",
)
_TODO = "use the local rank's: `device = world.device` of rankup.setup(), or plain 'cuda' after it"
_DONE = "this rank's own GPU instead of a numbered one"
_TAKE_DEVICES = ("device", "to", "cuda", "set_device")
_DEVICE_NAMES = words("device gpu gpu_id dev cuda_device device_id")


@rule("RK103", "error", "a GPU by its number")
def device_fixed(file: File, script: Script) -> Iterator[Hit]:
    """`"cuda:0"`, `.cuda(0)`, `set_device(0)`, or a number from the command line.

    All ranks of a node would use this one GPU, and the others are paid for and idle.

    ```diff
    -device = torch.device("cuda:0")
    +device = rankup.setup().device
     model = Net().to(device)
    ```

    Writes `cuda`, which after `rankup.setup()` is this rank's GPU; takes `set_device` out.
    """
    judged = by_hand(script)
    for text, number in _numbered_texts(file):
        if number is None:
            call = file.names.enclosing(text, ast.Call)
            if isinstance(call, ast.Call) and file.names.called(call) == "torch.load":
                continue  # RK144
            # In a script that joins ranks a literal may be a default that is never used.
            used = isinstance(call, ast.Call) and call_name(call) in _TAKE_DEVICES
            named, wrong = file.code(text), judged or used
        else:
            named = f"GPU {file.code(number)}"
            wrong = integer(number) or (judged and not ranked(script, file, number))
        if wrong:
            place = number or text
            fix = partial(without_number, text=text)
            yield Hit(place, f"every rank would use {named}", _TODO, fix)
    for call, number in _numbers_given(file):
        single = call_name(call) == "set_device" and not script.distributed
        known = ranked(script, file, number) or (not single and _known_device(script, file, number))
        if integer(number) or (judged and not known):
            yield Hit(
                number,
                f"every rank would use GPU {file.code(number)}",
                _TODO,
                partial(_own_gpu, call=call, number=number),
            )
    for assign in file.names.all(ast.Assign) if judged else ():  # `device = 0`, `self.gpu_id = 1`
        target, value = assign.targets[0], assign.value
        if getattr(target, "attr", getattr(target, "id", "")) in _DEVICE_NAMES and integer(value):
            fix = partial(_own_index, value=value)
            yield Hit(value, f"every rank would use GPU {file.code(value)}", _TODO, fix)


def without_number(context: Context, text: ast.expr) -> str:
    """`"cuda"` for `"cuda:0"`."""
    code = context.script.code(text)
    device = (string(text) or "cuda").partition(":")[0]
    quote = "'" if isinstance(text, ast.Constant) and code[0] == "'" else '"'
    context.replace(text, quote + device + quote)
    return _DONE


def _own_gpu(context: Context, call: ast.Call, number: ast.expr) -> str | None:
    """`x.cuda()` for `x.cuda(0)`, `torch.device("cuda")` for `torch.device(0)`."""
    script = context.script
    match call_name(call):
        case "cuda":
            place = (script.span(call.func)[1], script.span(call)[1])
            if context.edits.taken(place):
                return ""
            kept = [one for one in call.keywords if one.arg == "non_blocking"]
            context.edits.replace(place, f"({', '.join(script.code(arg) for arg in kept)})")
        case "device" if integer(given(call)[0]) or string(given(call)[0]) == "cuda":
            context.replace(call, script.code(call.func) + '("cuda")')
        case "to":
            context.replace(number, "rankup.setup().device")
        case "set_device" if _has_a_row(context, statement := script.file.names.statement(call)):
            context.remove(statement)
            return "rankup.setup() has chosen the GPU: line removed"
        case _:
            return None
    return _DONE


def _own_index(context: Context, value: ast.expr) -> str:
    """A number, since it may be printed or compared with one."""
    context.replace(value, "rankup.setup().device.index or 0")
    return _DONE


def _has_a_row(context: Context, statement: ast.AST) -> bool:
    return context.script.row(statement) == [statement] and isinstance(statement, ast.Expr)


def _numbered_texts(file: File) -> Iterator[tuple[ast.expr, ast.expr | None]]:
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
    for call, begun_by in method_calls(file.names.all(ast.Call), "format"):
        if _BEGUN.fullmatch(string(begun_by) or "") and call.args:
            yield call, call.args[0]


def _numbers_given(file: File) -> Iterator[tuple[ast.Call, ast.expr]]:
    """`n` of `x.cuda(n)`, `torch.cuda.set_device(n)`, `torch.device("cuda", n)`, `x.to(0)`."""
    for match in _GIVEN.find(file):
        number, name = match["number"], call_name(match.call)
        plain = name == "to" or (name == "device" and argument(match.call, "index", 1) is None)
        if integer(number) or not plain:
            yield match.call, number


def _known_device(script: Script, file: File, device: ast.expr) -> bool:
    """A device that is looked at where it is made."""
    made = [one.node for one in script.flow.origins(file, device)]
    return any(
        string(one) is not None
        or isinstance(one, ast.IfExp)
        or (isinstance(one, ast.Call) and call_name(one) != "int")
        for one in made
    )


@rule("RK104", "error", "DataParallel", frameworks=True)
def data_parallel(file: File, script: Script) -> Iterator[Hit]:
    """`nn.DataParallel` around a model.

    It drives all GPUs of a node from one process; every rank would reach for all of them.

    ```diff
    -model = nn.DataParallel(Net().cuda())
    +model = rankup.wrap(Net().to(rankup.setup().device))
    ```

    Removes it, and wraps the model with `rankup.wrap`.
    """
    for match in _PARALLEL.find(file):
        yield Hit(
            match.call,
            "DataParallel drives all GPUs of a node from one process; ranks have one GPU each",
            "remove it; `model = rankup.wrap(model)` trains on all ranks",
            partial(_bare, call=match.call),
        )


def _bare(context: Context, call: ast.Call) -> str:
    """The model that `nn.DataParallel` is given: `rankup.wrap` replaces it."""
    script = context.script
    assign = script.parents[call]
    inner = script.code(given(call)[0])
    same = isinstance(assign, ast.Assign) and script.code(assign.targets[0]) == inner
    if same and script.row(assign) == [assign]:
        context.remove(assign)
    else:
        context.replace(call, inner)
    if any(script.name(one.func) in ("torch.save", "torch.load") for one in script.all(ast.Call)):
        context.leave(
            call,
            "names in saved files begin with `module.` no longer: take it off those of older files",
            comment=False,
        )
    return "DataParallel taken out: each rank has one GPU"


@rule("RK105", "error", "CUDA_VISIBLE_DEVICES set by the script", frameworks=True)
def visible_devices(file: File, script: Script) -> Iterator[Hit]:
    """An assignment to `os.environ["CUDA_VISIBLE_DEVICES"]` that does not depend on the rank.

    The launcher has chosen the GPUs; all ranks would share what is left visible, or find none.

    ```diff
    -os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    +device = rankup.setup().device
    ```

    Removes the line.
    """
    for literal in strings(file):
        if string(literal) not in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            continue
        value = _set_to(file, literal)
        if value is not None and not ranked(script, file, value):
            statement = file.names.statement(literal)
            yield Hit(
                statement,
                "sets CUDA_VISIBLE_DEVICES: all ranks of a node would share what is left visible",
                "remove it; the launcher and the local rank choose",
                partial(_removed, statement=statement),
            )


def _removed(context: Context, statement: ast.AST) -> str | None:
    if not isinstance(statement, ast.Assign) and not _has_a_row(context, statement):
        return None
    context.remove(statement)
    return "the launcher says which GPUs are visible: line removed"


def _set_to(file: File, name: ast.Constant) -> ast.expr | None:
    """The value of an environment variable that is set here; None where it is only read."""
    statement, call = file.names.statement(name), file.names.enclosing(name, ast.Call)
    if isinstance(statement, ast.Assign) and file.names.inside(name, statement.targets[0]):
        return statement.value
    sets = isinstance(call, ast.Call) and call_name(call) in ("setdefault", "putenv")
    return argument(call, "value", 1) if sets else None  # type: ignore[arg-type]


@rule("RK106", "error", "model not wrapped")
def not_wrapped(file: File, script: Script) -> Iterator[Hit]:
    """A script that joins a process group and trains a model that nothing wraps, or that is wrapped
    behind the loop that trains it.

    Nothing exchanges the gradients: the ranks' models part from the first step on, silently.

    ```diff
     device = rankup.setup().device
    -model = Net().to(device)
    +model = rankup.wrap(Net().to(device))
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ```

    Wraps each model that an optimizer has parameters of.

    ## When to ignore it

    Gradients are put together by hand in a way that `check` does not see.
    """
    if not script.runtimes & {"torch", "rankup", "course"} or not script.train_loops:
        return
    if any("torch.distributed.rpc" in one.names.imported for one in script.files):
        return  # gradients go another way
    around = dict.fromkeys(wrapped(script))
    for node in [one for one in around if isinstance(one, ast.Subscript)]:  # `state["model"]`
        around |= dict.fromkeys(one.node for one in script.flow.origins(file, node.value))
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
            made = file.names.statement(model.node)
            name = file.code(made.targets[0]) if isinstance(made, ast.Assign) else "this model"
            yield Hit(
                model.node,
                f"{name} is trained, but not wrapped: the ranks' models part at the first step",
                "`model = rankup.wrap(model)` before the optimizer is made",
            )


def _wrapped_too_late(file: File, script: Script) -> Iterator[Hit]:
    """Where a model is wrapped behind the loop that trains it, for the first time."""
    index, wraps = file.names, dict[tuple[ast.AST | None, str], ast.Call]()
    for call in index.all(ast.Call):
        first = argument(call, "module", 0)
        if model_wrapper(file, call) in ("", "sync-bn") or first is None:
            continue
        if isinstance(first, ast.Name | ast.Attribute):
            wraps.setdefault((index.function(call), file.code(first)), call)
    for (function, name), call in wraps.items():
        for loop in loops_in(file, script.train_loops):
            line = file.line(loop.node)[0]
            together = {up for up in index.up(call) if isinstance(up, LoopNode)}
            if index.function(loop.node) is not function or together & set(index.up(loop.node)):
                continue
            trained = any(file.code(one.func) == name for one in calls_in(*loop.body))
            if trained and file.last_line(loop.node) < file.line(call)[0]:
                yield Hit(
                    call,
                    f"{name} is wrapped behind the loop that trains it, line {line}: too late",
                    f"`{name} = rankup.wrap({name})` before the optimizer is made",
                )
                break
