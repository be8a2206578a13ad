"""Questions of several rules: is a loader sharded, a model wrapped, for what ranks is a place?"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

from ...script.effects import Reached, callee, leads_to
from ...script.flow import Origin, argument, call_name, given, literal, model_wrapper
from ...script.loops import taken_from
from ...script.names import Binding, Function, calls_in, mentioned, parameters, walk
from ...script.roles import Loop, Role, Script, Site
from ...script.source import File
from ...script.torch_names import EXITS, OUR_COLLECTIVES, words
from ..match import calls, starred

# Names that tell the rank or the number of ranks: `local_rank`, `get_world_size`, `shard_id`; not
# `lora_rank`, nor rankup itself, nor `rank0_first`, whose value is the same on all ranks.
RANK_WORDS = (
    r"(?:_|get|my|is|this|self|args|global|local|node|group|process|proc|data|parallel|dist|ddp|dp"
    r"|hvd|comm|mpi|ompi|slurm|cur|current|first|main|num)*"
)
_RANKED = re.compile(
    rf"{RANK_WORDS}rank(?:s|_?id|_?zero|_?0)?|{RANK_WORDS}world(?:_?size)?"
    r"|\w*shard\w*|split_\w*by_(?:node|worker)|num_replicas|distributed\w*",
    re.IGNORECASE,
)
_REDUCES = re.compile(r"all_?reduce|all_?gather|^gather|^reduce|synchroni[sz]e|_reduce$|^sync_")
_OURS = OUR_COLLECTIVES - words("barrier rank0_first save_full_model save_sharded_model")
_RANK_VARIABLE = re.compile(r"(?:[A-Z]+_)*(?:RANK|WORLD_SIZE|PROCID|LOCALID|NTASKS)")
Guard = Literal["", "rank0", "local", "others"]
_LOCAL = re.compile(r"local_?rank|LOCAL_RANK|SLURM_LOCALID", re.I)
_GPU = re.compile(r"\b(?:gpu|device_id)\s*==\s*0", re.I)
_RANK = re.compile(
    rf"\b{RANK_WORDS}rank(?:s|_?id|_?zero|_?0)?\b"
    r"|\bis_\w*(?:main|root|master|primary|chief)\w*|\bmain_process\b|\bmaster\w*\b"
    r"|\bis_(?:main|root|master)\b|process_index|SLURM_PROCID",
    re.IGNORECASE,
)
_NOT_ZERO = re.compile(
    r"!=\s*0|\bnot\s+in\b|>\s*0|^\s*\(?not\s+(?!torch|dist)\w*\.?\w*(?:is_|main|root|master|rank0)",
    re.IGNORECASE,
)
_DECORATOR = re.compile(r"rank_?(?:zero|0)|main_(?:process|rank)|master", re.IGNORECASE)
_NO_RANK = re.compile(r"(?:==|<|is)\s*None|is_initialized|is_available|world_?size")
_FIRST = ("rank0_first", "main_process_first", "rank_zero_first")
_DEPTH = 3


def anywhere(script: Script, *names: str) -> bool:
    """True where something of that name is called in any of the files."""
    return any(True for file in script.files for _ in calls(file, *names))


def ported(script: Script) -> bool:
    """True where it uses rankup, or its copy beside the script."""
    return "rankup" in script.runtimes


@lru_cache(maxsize=1)
def single(script: Script) -> bool:
    """True of a script for one GPU: it joins no ranks, and calls nothing of rankup."""
    return not script.distributed and not any(
        file.names.called(call).startswith("rankup.")
        for file in script.files
        for call in file.names.all(ast.Call)
    )


def by_hand(script: Script) -> bool:
    """True where a device or a loader is to be judged as in a script for one GPU.

    In one that joins ranks by torch.distributed itself much is a default that it never uses; with
    rankup there is nothing left to choose.
    """
    return not script.distributed or ported(script)


def ranked(script: Script, file: File, node: ast.AST) -> bool:
    """True where a value is made of the rank or of the number of ranks."""
    return any(names_rank(one) for _, one in with_origins(script, file, node))


def with_origins(script: Script, file: File, node: ast.AST) -> list[tuple[File, ast.AST]]:
    """An expression, and what its value is made by."""
    made = [(one.file, one.node) for one in script.flow.origins(file, node)]
    return [(file, node), *(one for one in made if one[1] is not node)]


def names_rank(node: ast.AST) -> bool:
    """True where a name in a piece of code, or an environment variable, tells the rank."""
    for one in walk(node):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found = _RANKED.fullmatch(name)
            case ast.keyword(arg=str(name)) | ast.alias(name=name):
                found = _RANKED.fullmatch(name)
            case ast.Constant(value=str(text)):
                found = _RANK_VARIABLE.fullmatch(text)
            case _:
                found = None
        if found:
            return True
    return False


def samplers(script: Script, loader: Role | Origin) -> list[tuple[File, ast.AST]]:
    """The samplers that a loader was given, followed to where they are made."""
    if not isinstance(loader.node, ast.Call):
        return []
    found = []
    for name in ("sampler", "batch_sampler"):
        made = argument(loader.node, name)
        if made is not None:
            found += [(one.file, one.node) for one in script.flow.origins(loader.file, made)]
    return found


def distributed_sampler(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ("Distributed" in call_name(node) or names_rank(node))


def sharded_loader(script: Script, loader: Role | Origin) -> bool:
    """True where a loader is made so that each rank gets its own part."""
    flow, made = script.flow, list[tuple[File, ast.AST]]()
    for file, node in samplers(script, loader):
        inner = given(node) if isinstance(node, ast.Call) else []
        inside = [one.node for arg in inner for one in flow.origins(file, arg)]
        if any(map(distributed_sampler, [node, *inside])):
            return True
        made.append((file, node))
    if isinstance(loader.node, ast.Call):
        spread = [one.value for one in loader.node.keywords if one.arg is None]
        first = given(loader.node)[:1]
        if any(ranked(script, loader.file, one) for one in (*first, *spread)):
            return True
        made += [(one.file, one.node) for arg in first for one in flow.origins(loader.file, arg)]
    owners = [flow.class_of(*one) for one in made]
    ours = any(owner is not None and names_rank(owner[1]) for owner in owners)
    return ours or (isinstance(loader.node, ast.Call) and call_name(loader.node) == "prepare")


def in_parts(script: Script, file: File, source: ast.expr) -> bool:
    """True where each rank has a part of what an expression at the head of a loop gives."""
    around = itertools.takewhile(lambda up: not isinstance(up, ast.stmt), file.names.up(source))
    calls_there = [*calls_in(source), *(up for up in around if isinstance(up, ast.Call))]
    return any(call_name(call).endswith("shard") for call in calls_there) or any(
        any(call_name(call) == "shard" for _, call in origin.through)
        or sharded_loader(script, origin)
        for origin in script.flow.origins(file, source)
    )


def loop_sharded(script: Script, loop: Loop) -> bool:
    """True where each rank has other batches in a loop."""
    if any(in_parts(script, loop.file, one) for one in taken_from(loop.file, loop.node)):
        return True
    return not loop.loaders and anywhere(script, "deal")


@lru_cache(maxsize=1)
def wrapped(script: Script) -> dict[ast.AST, set[str]]:
    """The wrappers around each wrapped model, by the expression that makes it."""
    found: dict[ast.AST, set[str]] = {}
    for file in script.files:
        for call in file.names.all(ast.Call):
            kind = model_wrapper(file, call)
            first = argument(call, "module", 0) if kind else None
            if first is None or kind == "sync-bn":
                continue
            for origin in script.flow.origins(file, first):
                found.setdefault(origin.node, set()).add(kind)
    return found


def bindings(file: File, node: ast.AST | None) -> list[Binding]:
    """The ways in which a name, or an attribute of `self`, gets its value in its file."""
    names = file.names
    if isinstance(node, ast.Name):
        return names.bindings(node.id, names.scope(node))[1]
    if not isinstance(node, ast.Attribute) or file.code(node.value) != "self":
        return []
    owner = names.enclosing(node, ast.ClassDef)
    return names.attributes(owner).get(node.attr, []) if owner is not None else []


def string(node: ast.AST | None) -> str | None:
    """The value of a literal string."""
    value = literal(node)
    return value if isinstance(value, str) else None


def integer(node: ast.AST | None) -> bool:
    """True for a literal whole number."""
    return type(literal(node)) is int


def strings(file: File) -> Iterator[ast.Constant]:
    """The literal strings of a file, without the parts of f-strings."""
    for one in file.names.all(ast.Constant):
        if isinstance(one.value, str) and not isinstance(file.names.parents[one], ast.JoinedStr):
            yield one


def true(node: ast.AST | None) -> bool:
    return literal(node) is True


def parameters_of(call: ast.Call, function: Function, names: set[str]) -> set[str]:
    """The parameters of a function that a call gives something made of these names."""
    every = [one.arg for one in parameters(function.args)]
    own = 1 if every[:1] in (["self"], ["cls"]) else 0
    if starred(call):
        return set(every[own:]) if any(mentioned(one) & names for one in given(call)) else set()
    passed = {name: argument(call, name, position) for position, name in enumerate(every[own:])}
    return {name for name, one in passed.items() if one is not None and mentioned(one) & names}


def caught(file: File, node: ast.AST) -> bool:
    """True where a place stands in a `try` of its own function that has handlers."""
    for up in file.names.up(node):
        if isinstance(up, Function):
            return False
        if isinstance(up, ast.Try):
            return bool(up.handlers)
    return False


def either_or(file: File, one: ast.AST, other: ast.AST) -> bool:
    """True where two places stand in different branches of one `if`, or `a if test else b`."""
    around = {other, *file.names.up(other)}
    chain = itertools.pairwise([one, *file.names.up(one)])
    below, up = next((pair for pair in chain if pair[1] in around), (one, None))
    return isinstance(up, ast.If | ast.IfExp) and below not in around


def ends(*nodes: ast.AST) -> bool:
    """True where some statements raise, or end the process."""
    return any(
        isinstance(one, ast.Raise) or (isinstance(one, ast.Call) and call_name(one) in EXITS)
        for one in walk(*nodes)
    )


def loops_in(file: File, loops: Iterable[Loop]) -> list[Loop]:
    return [loop for loop in loops if loop.file is file]


def is_reduction(file: File, call: ast.Call) -> bool:
    """A collective that puts values together, or a helper of that name."""
    dotted = file.names.called(call)
    if dotted.startswith("rankup."):
        return dotted.removeprefix("rankup.") in _OURS
    if dotted.startswith(("functools", "builtins", "torch.cuda")) or dotted == "torch.gather":
        return False
    return _REDUCES.search(call_name(call)) is not None


def shares(file: File, call: ast.Call) -> bool:
    """A collective behind which all ranks have the same value: a reduction, or a broadcast."""
    return is_reduction(file, call) or call_name(call) in ("broadcast", "broadcast_object_list")


def guard(file: File, script: Script, node: ast.AST) -> Guard:
    """For whom a place runs: everybody (""), rank 0, rank 0 of each node, all but rank 0.

    Everybody, too, where the calls of its function do not agree (`guards`).
    """
    kinds = guards(file, script, node)
    return next(iter(kinds)) if len(kinds) == 1 else ""


def guards(file: File, script: Script, node: ast.AST, depth: int = _DEPTH) -> frozenset[Guard]:
    """For whom a place runs, on each way that calls of its function have."""
    child = node
    function: Function | None = None
    for up in file.names.up(node):
        kind = _left_before(file, script, child)
        if kind:
            return frozenset({kind})
        if isinstance(up, (ast.If, ast.IfExp)):
            kind = _of_test(file, script, up.test)
            if kind and child is not up.test:
                otherwise = up.orelse if isinstance(up.orelse, list) else [up.orelse]
                return frozenset({_turned(kind) if child in otherwise else kind})
        elif isinstance(up, ast.BoolOp) and isinstance(up.op, ast.And):
            for value in up.values:
                if value is child:
                    break
                if kind := _of_test(file, script, value):
                    return frozenset({kind})
        elif isinstance(up, Function):
            function = up
            if any(
                _DECORATOR.search(file.code(one.func if isinstance(one, ast.Call) else one))
                for one in up.decorator_list
            ):
                return frozenset({"rank0"})
            break
        child = up
    calls = script.flow.callers.get(function, ()) if function is not None and depth else ()
    ways = (guards(where, script, call, depth - 1) for where, call in calls)
    return frozenset().union(*ways) or frozenset({""})


def by_every_rank(script: Script, site: Site) -> bool:
    """True of a call that all ranks make, and that writes to one place for all of them."""
    file = site.file
    if guard(file, script, site.node) or rank0_first(file, script, site.node):
        return False
    own = site.path is not None and ranked(script, file, site.path)
    return not own and runs(file, script, site.node)


def runs(file: File, script: Script, node: ast.AST) -> bool:
    """False of what stands in a module, and the script does not come to."""
    if file is script.file:
        return True
    for up in file.names.up(node):
        if file.guards(up):
            return False
        if isinstance(up, Function) and isinstance(file.names.parents[up], ast.Module):
            return any(
                any(one.id == up.name for one in where.names.all(ast.Name))
                or any(one.attr == up.name for one in where.names.all(ast.Attribute))
                for where in script.files
            )
    return True


def rank0_first(file: File, script: Script, node: ast.AST) -> bool:
    """True of what rank 0 does before the others: `with rank0_first():`, `rank0_first(f, …)`."""
    around = [node, *file.names.up(node)]
    if any(isinstance(one, (ast.With, ast.Call)) and _goes_first(one) for one in around):
        return True
    return any(one in _going_first(script) for one in around)


@lru_cache(maxsize=1)
def _going_first(script: Script) -> frozenset[Function]:
    """The functions that rank 0 runs before the others."""
    flow, first = script.flow, list[Reached | None]()
    for where in script.files:
        for call in where.names.all(ast.Call):
            if _goes_first(call) and call.args:
                named = flow.definition(where, call.args[0])
                first += [flow.body(*named)] if named is not None else []
        for block in filter(_goes_first, where.names.all(ast.With)):
            first += [callee(flow, where, call) for call in calls_in(*block.body)]
    reached = (leads_to(flow, *one) for one in first if one is not None)
    return frozenset(function for several in reached for _, function in several)


def _goes_first(node: ast.With | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return call_name(node) in _FIRST
    heads = [one.context_expr for one in node.items]
    return any(isinstance(one, ast.Call) and call_name(one) in _FIRST for one in heads)


def _left_before(file: File, script: Script, child: ast.AST) -> Guard:
    """`if rank != 0: return` further up in the same block."""
    for statement in file.names.block(child):
        if statement is child:
            return ""
        if (
            isinstance(statement, ast.If)
            and not statement.orelse
            and isinstance(statement.body[-1], ast.Return | ast.Continue)
        ):
            kind = _of_test(file, script, statement.test)
            if kind:
                return _turned(kind)
    return ""


def _of_test(file: File, script: Script, test: ast.expr) -> Guard:
    """The ranks that a condition lets through."""
    texts = [file.code(test)]
    for name in _names(test):
        texts += [
            origin.file.code(origin.node)
            for origin in script.flow.origins(file, name)
            if isinstance(origin.node, (ast.Compare, ast.UnaryOp))
            or (isinstance(origin.node, ast.Call) and call_name(origin.node).startswith("is_"))
        ]
    by_gpu = not _one_number(file, script, test)
    for text in texts:
        if _NO_RANK.search(text) and not re.search(r"==\s*0|is_(?:main|root|master)", text):
            continue
        local = bool(_LOCAL.search(text) or (by_gpu and _GPU.search(text)))
        if not local and not _RANK.search(text):
            continue
        everything = re.sub(r"\w*local_?rank\w*", "", text, flags=re.IGNORECASE)
        local = local and not _RANK.search(everything)
        plain = isinstance(test, ast.Name) and test.id.lower().endswith("rank")
        if _NOT_ZERO.search(text) or plain:
            return "others"
        return "local" if local else "rank0"
    return ""


def _one_number(file: File, script: Script, test: ast.expr) -> bool:
    """True where the GPU that a test names is the same on all ranks: `train(0, args)`."""
    named = [one for one in walk(test) if isinstance(one, ast.Name) and _GPU.match(f"{one.id}==0")]
    made = [one.node for name in named for one in script.flow.origins(file, name)]
    numbers = bool(made) and all(isinstance(one, ast.Constant) for one in made)
    return numbers or single(script)


def _names(test: ast.expr) -> list[ast.expr]:
    found: list[ast.expr] = []
    stack: list[ast.expr] = [test]
    while stack:
        at = stack.pop()
        match at:
            case ast.Name() | ast.Attribute():
                found.append(at)
            case ast.BoolOp():
                stack += at.values
            case ast.UnaryOp():
                stack.append(at.operand)
    return found


def _turned(kind: Guard) -> Guard:
    return {"rank0": "others", "local": "others", "others": "rank0", "": ""}[kind]  # type: ignore[return-value]
