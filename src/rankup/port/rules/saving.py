"""What is written and read: by one rank, whole or not at all, onto the right GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..naming import words
from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from ..tree import walk
from .facts import calls, ranked, string, true
from .guards import guard
from .rule import Hit, Rule

_RACY = words(
    "os.mkdir os.makedirs os.remove os.unlink os.rename os.rmdir shutil.rmtree shutil.move "
    "os.replace"
)
_CLOCK = re.compile(r"strftime\(|\.now\(\)|uuid\d?\(|time\.time\(\)|\bctime\(|isoformat\(")
_FIXED = re.compile(r"cuda(?::\d+)?")


def saved_by_all(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK141: all ranks write the same file."""
    if "fsdp" in {kind for one in roles.models for kind in _around(roles, one.node)}:
        return
    for site in roles.saves:
        if site.source is not source or site.kind != "checkpoint":
            continue
        if guard(source, roles, site.node) or _own_name(source, roles, site.node):
            continue
        yield Hit(
            site.node,
            "every rank writes this file at the same time: it may end up in pieces",
            "rankup.save0(state, path) writes on rank 0 alone, the old file or the new one",
        )


def _around(roles: Roles, node: cst.CSTNode) -> set[str]:
    from .facts import wrapped

    return wrapped(roles).get(node, set())


def _own_name(source: Source, roles: Roles, call: cst.CSTNode) -> bool:
    """A file name with the rank in it: each its own."""
    return isinstance(call, cst.Call) and any(
        ranked(roles, source, arg.value) for arg in call.args[1:2]
    )


def saved_by_local(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK142: the first rank of every node writes."""
    for site in roles.saves:
        if site.source is source and guard(source, roles, site.node) == "local":
            yield Hit(
                site.node,
                "local rank 0 exists on every node: each node's writes the same file",
                "let rank 0 of all write: rankup.is_root_process(), or save0",
            )


def module_pickled(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK143: the whole module in a pickle, with its wrapper."""
    models = {one.node for one in roles.models}
    for call, dotted in calls(source, "save"):
        if dotted != "torch.save":
            continue
        given = argument(call, "obj", 0)
        if not isinstance(given, (cst.Name, cst.Attribute)):
            continue
        if models & {one.node for one in roles.flow.origins(source, given)}:
            yield Hit(
                call,
                "pickles the whole module, its wrapper included: torch.load refuses it by default",
                "save model.state_dict()",
            )


def load_place(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK144: all ranks load onto the GPU that the file was saved from."""
    for site in roles.loads:
        call = site.node
        if site.source is not source or not isinstance(call, cst.Call):
            continue
        given = argument(call, "map_location", 1)
        if given is None:
            if not any(arg.star for arg in call.args):
                yield Hit(
                    call,
                    "without map_location every rank loads onto the GPU it was saved from",
                    'map_location="cpu", or the rank\'s device',
                )
        elif _FIXED.fullmatch(string(given) or "") and string(given) != "cuda":
            yield Hit(
                given,
                f"every rank loads onto {string(given)}",
                'map_location="cpu", or the rank\'s device',
            )


def file_race(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK145: the second rank fails at what the first has done."""
    for call in source.index.all(cst.Call):
        dotted = source.index.called(call)
        makes = dotted in ("os.mkdir", "os.makedirs")
        if not dotted and call_name(call) == "mkdir" and isinstance(call.func, cst.Attribute):
            makes = True
        if dotted not in _RACY and not makes:
            continue
        if makes and (true(argument(call, "exist_ok")) or true(argument(call, "exist_ok", 2))):
            continue
        if guard(source, roles, call) or _caught(source, call) or _first(source, call):
            continue
        if any(ranked(roles, source, arg.value) for arg in call.args[:1]):
            continue
        yield Hit(
            call,
            f"{call_name(call)} on every rank: the second one fails, or takes away what is in use",
            "os.makedirs(path, exist_ok=True)" if makes else "rank 0 alone, then rankup.barrier()",
        )
    yield from _tokenizers(source, roles)


def _tokenizers(source: Source, roles: Roles) -> Iterator[Hit]:
    """One rank reads the tokenizer that another is about to write."""
    for call, dotted in calls(source, "save"):
        if dotted.startswith("torch") or not isinstance(call.func, cst.Attribute):
            continue
        origins = roles.flow.origins(source, call.func.value)
        made = [
            one.source.index.called(one.node) for one in origins if isinstance(one.node, cst.Call)
        ]
        if not any(one.startswith("tokenizers.") for one in made):
            continue
        if guard(source, roles, call) or _first(source, call):
            continue
        yield Hit(
            call,
            "save on every rank: one may read the file while another writes it",
            "`with rankup.rank0_first():` around what looks for it and makes it",
        )


def _caught(source: Source, call: cst.Call) -> bool:
    up = source.index.enclosing(call, cst.Try, cst.FunctionDef)
    return isinstance(up, cst.Try)


def _first(source: Source, call: cst.Call) -> bool:
    """In `with rank0_first():`."""
    return any(
        isinstance(up, cst.With) and "rank0_first" in "".join(source.code(i) for i in up.items)
        for up in source.index.up(call)
    )


def written_by_all(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK146: a log, a table, a picture that every rank writes."""
    for site in roles.saves:
        if site.source is not source or site.kind != "file":
            continue
        if guard(source, roles, site.node) or _own_name(source, roles, site.node):
            continue
        if "path0(" in source.code(site.node):
            continue
        if isinstance(site.node, cst.Call) and any(
            ranked(roles, source, arg.value) for arg in site.node.args[:1]
        ):
            continue
        yield Hit(
            site.node,
            f"{call_name(site.node)} writes the same file on every rank",  # type: ignore[arg-type]
            "`if rankup.is_root_process():`, or open(rankup.path0(path), …)",
        )


def name_of_its_own(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK147: a name made of the time: each rank's is another."""
    for node in source.index.all(cst.Assign):
        name = source.code(node.targets[0].target)
        if not re.search(r"(?:run|exp|log|out|save|ckpt|time_?str|stamp)", name, re.IGNORECASE):
            continue
        if not _CLOCK.search(source.code(node.value)) or not _texts(node.value):
            continue
        if guard(source, roles, node) or "broadcast" in source.code(node):
            continue
        if any("broadcast" in one.text for one in roles.sources) or _same(source, node):
            continue
        yield Hit(
            node,
            f"{name} is made of the time: ranks would write to different places",
            "make it on rank 0: rankup.broadcast",
        )


def _same(source: Source, node: cst.Assign) -> bool:
    """`rankup.rank0_first`, `same_…`: made on one rank for all."""
    return re.search(r"rank0|same_", source.code(node.value)) is not None


def _texts(node: cst.BaseExpression) -> bool:
    """Whether a text is made: a time that is only subtracted from another is no name."""
    return any(
        isinstance(one, (cst.SimpleString, cst.FormattedString))
        or (isinstance(one, cst.Call) and call_name(one) in ("str", "isoformat", "ctime", "uuid4"))
        for one in walk(node)
    )


def prefixed(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK148: names in the file begin with `module.`."""
    if not roles.distributed:
        return
    for call, dotted in calls(source, "state_dict"):
        if dotted or not isinstance(call.func, cst.Attribute):
            continue
        if not any(
            (isinstance(up, cst.Call) and "save" in call_name(up)) or isinstance(up, cst.Dict)
            for up in source.index.up(call)
        ):
            continue
        receiver = call.func.value
        if isinstance(receiver, cst.Attribute) and receiver.attr.value == "module":
            continue
        if any(one.wrapped() == {"ddp"} for one in roles.flow.origins(source, receiver)):
            yield Hit(
                call,
                "the wrapped model's state: its names begin with module., and the plain model "
                "does not load it",
                "model.module.state_dict(); rankup.wrap keeps the names",
            )


RULES = (
    Rule("RK141", "saved-by-all", "error", saved_by_all),
    Rule("RK142", "saved-by-local-rank", "error", saved_by_local),
    Rule("RK143", "module-pickled", "warning", module_pickled),
    Rule("RK144", "load-without-map-location", "error", load_place),
    Rule("RK145", "file-race", "error", file_race, frameworks=True),
    Rule("RK146", "written-by-all", "warning", written_by_all),
    Rule("RK147", "name-per-rank", "error", name_of_its_own),
    Rule("RK148", "module-prefix", "warning", prefixed),
)
