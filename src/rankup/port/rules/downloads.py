"""Downloads, and data made of raw files: rank 0 goes first, and not in the job at best."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

from ...script.effects import (
    Helper,
    Reached,
    asks_files,
    callee,
    fetched,
    leads_to,
    trains,
    written,
)
from ...script.flow import call_name, given
from ...script.names import Function, calls_in, walk, words_in
from ...script.roles import LoopNode, Script
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.context import Context
from .facts import rank0_first, runs
from .rule import Hit, rule
from .writing import changes_files

_MAKERS = words(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output os.system "
    "shutil.unpack_archive"
)
# Data sets of these libraries process their raw files when they are constructed.
_PROCESSING = words("InMemoryDataset DGLDataset")
_LOGIN = {"on_login_node", "local_rank"}
_FETCHED = "rank 0 fetches first, then the others (rankup.rank0_first)"
_FIRST = "let rank 0 go first: `with rankup.rank0_first():`"
_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Yield)


@rule("RK177", "warning", "a download in the job", frameworks=True)
def downloads(file: File, script: Script) -> Iterator[Hit]:
    """`download=True`, `from_pretrained("name")`, `urlretrieve` and alike; data sets that write
    files as they are constructed; files that are made where they are missing. Also in other files.

    Compute nodes have no network; where they have, all ranks fetch the same file at once.

    ```diff
    -dataset = torchvision.datasets.MNIST("data", download=True)
    +with rankup.rank0_first():
    +    dataset = torchvision.datasets.MNIST("data", download=True)
    ```

    Puts `rankup.rank0_first` around it; `rankup fetch SCRIPT` fetches it on the login node.
    """
    made: set[ast.AST] = set()
    if file is script.file:
        hits = [*_constructed(script), *_prepared(script)]
        made = {hit.at for hit in hits}
        yield from hits
    at_calls, inside = _by_helpers(script)
    for call in file.names.all(ast.Call):
        helper, found = at_calls.get(call), fetched(file, call)
        if call in made or call in inside or (found is None and helper is None):
            continue
        if found is not None and not found.certain and file is not script.file:
            continue
        own = callee(script.flow, file, call) if helper is None else None
        if own is not None and any(_fetching(leads_to(script.flow, *own))):
            continue  # found where the script's own function fetches
        if runs(file, script, call) and not _ahead(file, script, call):
            what = found.what if found is not None else f"{file.code(call.func)} downloads"
            if helper is not None:
                where, first = next(_fetching(helper.reached))
                what += f" ({where.short_place(first)})"
            yield Hit(
                call,
                f"{what} in the job: compute nodes have no network, and ranks would race",
                "`rankup fetch SCRIPT` on the login node; rankup.rank0_first(…) for the rest",
                partial(_fetched_first, call=call),
            )


@lru_cache(maxsize=1)
def _by_helpers(script: Script) -> tuple[dict[ast.AST, Helper], set[ast.AST]]:
    """The script's calls of functions in other files that fetch, and what fetches there."""
    at_calls: dict[ast.AST, Helper] = {}
    inside: set[ast.AST] = set()
    for one in script.helpers:
        fetching = [call for _, call in _fetching(one.reached)]
        if fetching and not trains(one.caller, script, one.call):
            at_calls[one.call] = one
            inside |= set(fetching)
    return at_calls, inside


def _fetching(functions: Iterable[Reached]) -> Iterator[tuple[File, ast.Call]]:
    """The calls in functions that fetch."""
    for file, function in functions:
        for call in calls_in(*function.body):
            if fetched(file, call) is not None:
                yield file, call


def _ahead(file: File, script: Script, call: ast.Call) -> bool:
    """True where rank 0 goes first, or only a login node comes here."""
    tests = [up.test for up in file.names.up(call) if isinstance(up, ast.If)]
    return bool(words_in(tests) & _LOGIN) or rank0_first(file, script, call)


def _fetched_first(context: Context, call: ast.Call) -> str | None:
    """`rankup.rank0_first(f, x)` for `f(x)`, or `with rankup.rank0_first():` around its `if`."""
    script = context.script
    if context.goes_first(call):
        return ""
    if isinstance(script.scope(call), ast.Lambda):
        return None
    if script.per_sample(call):
        context.leave(
            call,
            "each rank fetches its own samples, and nodes have no network: fetch all of them first",
        )
        return ""
    ups = (up for up in script.above(call) if isinstance(up, ast.If))
    asks = next((up for up in ups if context.asks_files(up.test)), None)
    if asks is None or _in_else(context, call, asks):
        if not _alone_first(context, call):
            return None
        _goes_first(context, call)
    elif not _all_first(context, asks):
        context.leave(
            call, "all ranks may fetch this at once: put it in `with rankup.rank0_first():`"
        )
        return ""
    return _FETCHED


def _goes_first(context: Context, call: ast.Call) -> None:
    script = context.script
    (start, end), whole = script.span(call.func), script.span(call)
    opening = script.text.index("(", end, whole[1])
    context.edits.insert(start, "rankup.rank0_first(")
    comma = "," if script.text[opening + 1] in "\r\n" else ", "
    context.edits.replace((opening, opening + 1), comma if given(call) else "")


def _all_first(context: Context, asks: ast.If) -> bool:
    """Let rank 0 do all of an `if` first; False where it does not end where it began, or trains."""
    script = context.script
    leaves = any(True for _ in script.inside(asks, *_LEAVING, deep=False))
    saves = any(script.name(one.func) == "torch.save" for one in script.inside(asks, ast.Call))
    if leaves or saves or context.training.trains(asks):
        return False
    if not script.first_on_line(script.span(asks)[0]) or not _alone_first(context, asks):
        return False
    context.indented(asks, "with rankup.rank0_first():")
    context.missing |= {asks, *_led_to(context, asks)}
    return True


def _alone_first(context: Context, node: ast.AST) -> bool:
    """Note that rank 0 comes first to a node and what it leads to; False where a rank waits there.

    One would in a function that is called elsewhere as well, and fetches or changes files.
    """
    script = context.script
    alone = _led_to(context, node)
    waits = any(
        fetched(script.file, call) is not None or changes_files(script.file, call)
        for function in _reached(context, node) - alone
        for call in script.inside(function, ast.Call)
    )
    if not waits:
        context.first |= {node, *alone}
    return not waits


def _led_to(context: Context, node: ast.AST) -> set[Function]:
    """The script's own functions that only a node leads to."""
    flow, found = context.script.flow, _reached(context, node)
    while True:
        others = {
            one
            for one in found
            for where, call in flow.callers.get(one, ())
            if not any(up is node or up in found for up in where.names.up(call))
        }
        if not others:
            return found
        found -= others


def _reached(context: Context, node: ast.AST) -> set[Function]:
    """The script's own functions that a node leads to."""
    script, found = context.script, set[Function]()
    for call in script.inside(node, ast.Call):
        first = callee(script.flow, script.file, call)
        if first is not None:
            reached = leads_to(script.flow, *first)
            found |= {one for file, one in reached if file is script.file}
    return found


def _in_else(context: Context, node: ast.AST, asks: ast.If) -> bool:
    """True where a place within `asks` lies in an `else:`, its own or that of a statement in it."""
    script, below = context.script, node
    for up in script.above(node):
        other = getattr(up, "orelse", None)
        chained = isinstance(below, ast.If) and script.code(below).startswith("elif")
        if isinstance(other, list) and below in other and not chained:
            return True
        if up is asks:
            break
        below = up
    return False


def _constructed(script: Script) -> Iterator[Hit]:
    """Data sets whose constructor writes files, in this file or another one."""
    flow, file = script.flow, script.file
    for call in file.names.all(ast.Call):
        made = flow.definition(file, call.func)
        if made is None or not isinstance(made[1], ast.ClassDef):
            continue
        where, owner = made[0], made[1]
        bases = {base.rpartition(".")[2] for base in flow.bases(where, owner)}
        holds = flow.member(where, owner, "__getitem__") is not None
        if not holds and not any(base.endswith("Dataset") for base in bases):
            continue
        init = flow.member(where, owner, "__init__")
        reached = leads_to(flow, *init) if init is not None else []
        writes = any(
            written(flow, at, node) is not None or changes_files(at, node)
            for at, one in reached
            for node in calls_in(*one.body)
        )
        if (writes or bases & _PROCESSING) and not rank0_first(file, script, call):
            inside: set[ast.AST] = {one for at, one in reached if at is file}
            elsewhere = any(
                up.func is not call.func and not any(above in inside for above in at.names.up(up))
                for one in inside
                for at, up in flow.callers.get(one, ())
                if one is not (init and init[1])
            )
            yield Hit(
                call,
                "every rank makes the same files as it constructs this data set",
                _FIRST,
                partial(_constructed_first, call=call, inside=inside, elsewhere=elsewhere),
            )


def _constructed_first(
    context: Context, call: ast.Call, inside: set[ast.AST], elsewhere: bool
) -> str | None:
    script = context.script
    if context.goes_first(call):
        return ""
    if elsewhere or script.per_sample(call) or isinstance(script.scope(call), ast.Lambda):
        return None
    _goes_first(context, call)
    context.first |= {call, *inside}
    return "rank 0 constructs this data set, which writes files, first (rankup.rank0_first)"


def _prepared(script: Script) -> Iterator[Hit]:
    """`if not exists(data): make(data)`."""
    file = script.file
    for one in file.names.all(ast.If):
        if not asks_files(script.flow, file, one.test):
            continue
        signs = [node for node in walk(one.test) if isinstance(node, ast.UnaryOp)]
        negated = any(isinstance(node.op, ast.Not) for node in signs)
        repeated = any(isinstance(up, LoopNode) for up in file.names.up(one))
        maker = next((call for call in calls_in(one) if _makes(script, call)), None)
        if not negated or repeated or maker is None or _ahead(file, script, maker):
            continue
        if not trains(file, script, one):
            yield Hit(
                maker,
                "every rank makes this where it finds it missing, or looks while another makes it",
                _FIRST,
                partial(_made_first, asks=one),
            )


def _made_first(context: Context, asks: ast.If) -> str:
    if context.goes_first(asks) or context.script.per_sample(asks):
        return ""
    if not _all_first(context, asks):
        return ""  # what it writes has fixes of its own
    return "rank 0 makes this first, then the others look (rankup.rank0_first)"


def _makes(script: Script, call: ast.Call) -> bool:
    """True of a call that makes files, also in a function of the repository."""
    found = callee(script.flow, script.file, call)
    reached = leads_to(script.flow, *found) if found is not None else []
    inner = [(file, one) for file, function in reached for one in calls_in(*function.body)]
    for file, one in [(script.file, call), *inner]:
        site = written(script.flow, file, one)
        unpacks = file.names.called(one) in _MAKERS or call_name(one) == "extractall"
        if site.dotted != "torch.save" if site is not None else unpacks:
            return True
    return False
