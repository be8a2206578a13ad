"""What is written and read: by one rank, whole or not at all, onto the right GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ...script.flow import argument, call_name, literal
from ...script.flow import given as arguments_of
from ...script.names import walk
from ...script.roles import Script, Site
from ...script.source import File
from ...script.torch_names import words
from .device import without_number
from .facts import calls, caught, ranked, starred, string, wrapped
from .guards import guard, rank0_first, runs
from .rule import Hit, Rule

if TYPE_CHECKING:
    from ..rewrite.context import Context

# Calls that fail on the second rank, since the first has done it.
_CHANGERS = words("os.remove os.unlink os.rename os.rmdir shutil.rmtree shutil.move os.replace")
_REMOVING = words("unlink rmdir")  # methods of a path
# Calls that give another value in each process, and those of which a text is made.
_CLOCKS = words("strftime ctime isoformat uuid1 uuid4 mkdtemp time_ns")
_NOW = words("now today utcnow time")
_FIXED = re.compile(r"cuda:\d+")
_ANYWHERE = 'map_location="cpu", or the rank\'s device'


def saved_by_all(file: File, script: Script) -> Iterator[Hit]:
    """RK141: all ranks write the same file."""
    if "fsdp" in {kind for one in script.models for kind in _around(script, one.node)}:
        return
    for site in script.saves:
        if site.file is not file or site.kind != "checkpoint":
            continue
        if guard(file, script, site.node) or _own_name(file, script, site.node):
            continue
        if rank0_first(file, script, site.node) or not runs(file, script, site.node):
            continue
        yield Hit(
            site.node,
            "every rank writes this file at the same time: it may end up in pieces",
            "rankup.save0(state, path) writes on rank 0 alone, the old file or the new one",
        )


def _around(script: Script, node: ast.AST) -> set[str]:
    return wrapped(script).get(node, set())


def _own_name(file: File, script: Script, call: ast.AST) -> bool:
    """A file name with the rank in it: each its own."""
    return isinstance(call, ast.Call) and any(
        ranked(script, file, arg) for arg in arguments_of(call)[1:2]
    )


def saved_by_local(file: File, script: Script) -> Iterator[Hit]:
    """RK142: the first rank of every node writes."""
    for site in script.saves:
        if site.file is file and guard(file, script, site.node) == "local":
            yield Hit(
                site.node,
                "local rank 0 exists on every node: each node's writes the same file",
                "let rank 0 of all write: rankup.is_root_process(), or save0",
            )


def module_pickled(file: File, script: Script) -> Iterator[Hit]:
    """RK143: the whole module in a pickle, with its wrapper."""
    models = {one.node for one in script.models}
    for call, dotted in calls(file, "save"):
        if dotted != "torch.save":
            continue
        given = argument(call, "obj", 0)
        if not isinstance(given, (ast.Name, ast.Attribute)):
            continue
        if models & {one.node for one in script.flow.origins(file, given)}:
            yield Hit(
                call,
                "pickles the whole module, its wrapper included: torch.load refuses it by default",
                "save model.state_dict()",
            )


def load_place(file: File, script: Script) -> Iterator[Hit]:
    """RK144: all ranks load onto the GPU that the file was saved from."""
    for site in script.loads:
        call = site.node
        if site.file is not file or not isinstance(call, ast.Call):
            continue
        given = argument(call, "map_location", 1)
        if given is None and not starred(call) and arguments_of(call):
            yield Hit(
                call,
                "without map_location every rank loads onto the GPU it was saved from",
                _ANYWHERE,
                partial(_loaded_here, call=call),
            )
        elif given is not None and _FIXED.fullmatch(string(given) or ""):
            fix = partial(without_number, text=given)
            yield Hit(given, f"every rank loads onto {string(given)}", _ANYWHERE, fix)


def _loaded_here(context: Context, call: ast.Call) -> str:
    context.edits.insert(
        context.script.span(arguments_of(call)[-1])[1], ", map_location=rankup.here"
    )
    return "loads onto this rank's own GPU (rankup.here)"


def file_race(file: File, script: Script) -> Iterator[Hit]:
    """RK145: the second rank fails at what the first has done."""
    for call in file.names.all(ast.Call):
        makes = makes_folder(file, call)
        if not makes and not changes_files(file, call):
            continue
        if guard(file, script, call) or rank0_first(file, script, call):
            continue
        if not runs(file, script, call):
            continue
        if any(ranked(script, file, arg) for arg in arguments_of(call)[:1]):
            continue
        yield Hit(
            call,
            f"{call_name(call)} on every rank: the second one fails, or takes away what is in use",
            "os.makedirs(path, exist_ok=True)" if makes else "rank 0 alone, then rankup.barrier()",
        )


def makes_folder(file: File, call: ast.Call) -> bool:
    """True of what fails where the folder is there, and does not catch that."""
    dotted = file.names.called(call)
    of_path = not dotted and isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
    if dotted not in ("os.mkdir", "os.makedirs") and not of_path:
        return False
    given = argument(call, "exist_ok", 2)
    return (given is None or literal(given) is False) and not caught(file, call)


def changes_files(file: File, call: ast.Call) -> bool:
    """True of what removes or renames files: caught or not, one rank may still need them."""
    dotted = file.names.called(call)
    removes = not dotted and isinstance(call.func, ast.Attribute) and call.func.attr in _REMOVING
    paths = "pathlib" in {name.partition(".")[0] for name in file.names.imported}
    return dotted in _CHANGERS or (removes and paths)


def _swallowed(script: Script, site: Site) -> bool:
    """True where the ranks but the first write to `path0(…)`, also as the argument of a caller."""
    return site.path is not None and any(
        isinstance(origin.node, ast.Call) and call_name(origin.node) == "path0"
        for origin in script.flow.origins(site.file, site.path)
    )


def written_by_all(file: File, script: Script) -> Iterator[Hit]:
    """RK146: a log, a table, a picture that every rank writes."""
    for site in script.saves:
        if site.file is not file or site.kind != "file":
            continue
        if guard(file, script, site.node) or _own_name(file, script, site.node):
            continue
        if site.path is not None and ranked(script, file, site.path):
            continue
        if _swallowed(script, site) or rank0_first(file, script, site.node):
            continue
        if not runs(file, script, site.node):
            continue
        yield Hit(
            site.node,
            f"{call_name(site.node)} writes the same file on every rank",  # type: ignore[arg-type]
            "`if rankup.is_root_process():`, or open(rankup.path0(path), …)",
        )


def name_of_its_own(file: File, script: Script) -> Iterator[Hit]:
    """RK147: a name made of the time: each rank's is another."""
    for node in clock_names(file):
        if guard(file, script, node) or rank0_first(file, script, node):
            continue
        if any(True for one in script.files for _ in calls(one, "broadcast_object_list")):
            continue
        yield Hit(
            node,
            f"{file.code(node.targets[0])} is made of the time: ranks would write to different "
            "places",
            "make it on rank 0: rankup.broadcast",
        )


def clock_names(file: File) -> Iterator[ast.Assign]:
    """Assignments of a text that is made of the time or of a random number, once in a run."""
    for node in file.names.all(ast.Assign):
        if isinstance(node.value, (ast.Tuple, ast.GeneratorExp, ast.Lambda)):
            continue
        if any(isinstance(up, (ast.For, ast.While, ast.Lambda)) for up in file.names.up(node)):
            continue
        made = [one for one in walk(node.value) if isinstance(one, ast.Call)]
        if any(call_name(one) in ("broadcast", "rank0_first") for one in made):
            continue
        if any(_tells_time(file, one) for one in made):
            yield node


def _tells_time(file: File, call: ast.Call) -> bool:
    """True of `strftime(…)` and alike, and of `now()` and `time.time()` in a text."""
    name, dotted = call_name(call), file.names.called(call)
    if name in _CLOCKS:
        return True
    if name not in _NOW or not dotted.startswith(("time.", "datetime.")):
        return False
    for up in file.names.up(call):
        if isinstance(up, ast.BinOp) and isinstance(up.op, ast.Sub):
            return False  # how long something took
        if isinstance(up, ast.JoinedStr):
            return True
        if isinstance(up, ast.Call) and call_name(up) in ("str", "format"):
            return True
        if isinstance(up, ast.stmt):
            return False
    return False


def prefixed(file: File, script: Script) -> Iterator[Hit]:
    """RK148: names in the file begin with `module.`."""
    if not script.distributed:
        return
    for call, dotted in calls(file, "state_dict"):
        if dotted or not isinstance(call.func, ast.Attribute):
            continue
        if not any(
            (isinstance(up, ast.Call) and "save" in call_name(up)) or isinstance(up, ast.Dict)
            for up in file.names.up(call)
        ):
            continue
        receiver = call.func.value
        if isinstance(receiver, ast.Attribute) and receiver.attr == "module":
            continue
        if any(one.wrappers() == {"ddp"} for one in script.flow.origins(file, receiver)):
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
