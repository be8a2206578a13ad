"""Questions of several rules: is a loader sharded, a model wrapped, a function called?"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ...script.flow import Origin, argument, call_name, given, literal, model_wrapper
from ...script.loops import taken_from
from ...script.names import Function, calls_in, walk
from ...script.roles import Loop, Role, Script
from ...script.source import File
from ...script.torch_names import EXITS, OUR_COLLECTIVES, words

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


def calls(file: File, *names: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls by the last word of what is called, with the dotted name."""
    for call in file.names.all(ast.Call):
        if call_name(call) in names:
            yield call, file.names.called(call)


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


def starred(call: ast.Call) -> bool:
    """True where arguments are passed on by `*` or `**`."""
    return any(isinstance(one, ast.Starred) for one in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )


def caught(file: File, node: ast.AST) -> bool:
    """True where a place stands in a `try` of its own function that has handlers."""
    for up in file.names.up(node):
        if isinstance(up, Function):
            return False
        if isinstance(up, ast.Try):
            return bool(up.handlers)
    return False


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
