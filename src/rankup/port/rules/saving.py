"""Checkpoints and files: saved by one rank, whole, loaded onto the right GPU, read when written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import partial

from ...script.effects import trains
from ...script.flow import argument, call_name, first_argument, given
from ...script.roles import Script, Site
from ...script.source import File
from ...script.torch_names import words
from ..match import Pattern, calls
from ..rewrite.context import Context
from .device import without_number
from .facts import (
    anywhere,
    by_every_rank,
    either_or,
    guard,
    is_reduction,
    string,
    wrapped,
)
from .helpers import ALONE, by_helpers, helpers_that_write
from .rule import Hit, rule
from .writing import unless_per_sample, written_by_root

_FIXED = re.compile(r"cuda:\d+")
_SAVE0 = "rankup.save0(state, path) writes on rank 0 alone, the old file or the new one"
_SAVES = Pattern("torch.save(obj=_saved)")
_LOADS = Pattern("torch.load(f=_, map_location=ABSENT)", "torch.load(f=_, map_location=_place)")
_STATES = Pattern("_model.state_dict()")
_GATHERED = (
    "gather the state on all ranks, and let rank 0 alone write it: rankup.save_full_model, or "
    "torch.distributed.checkpoint.save of all parts"
)
_ANYWHERE = 'map_location="cpu", or the rank\'s device'
_READERS = words(
    "torch.load numpy.load numpy.loadtxt numpy.genfromtxt pandas.read_csv pandas.read_json "
    "pandas.read_pickle pandas.read_parquet scipy.io.loadmat cv2.imread PIL.Image.open"
)


@rule("RK141", "error", "saved by every rank")
def saved_by_all(file: File, script: Script) -> Iterator[Hit]:
    """`torch.save`, `save_pretrained` and alike outside of a condition on the rank.

    All ranks write one file at once: it may end up in pieces, and a crash destroys the old one.

    ```diff
    -torch.save(model.state_dict(), "model.pt")
    +rankup.save0(model.state_dict(), "model.pt")
    ```

    Writes `rankup.save0`; what is saved by other means goes under `if rankup.is_root_process():`,
    also the call of a function in another file that saves.
    """
    around = wrapped(script)
    sharded = any("fsdp" in around.get(one.node, ()) for one in script.models)
    yield from helpers_that_write(file, script, checkpoint=True)
    elsewhere = {site.node for helper in by_helpers(script) for site in helper.sites}
    for site in script.saves:
        if site.file is not file or site.kind != "checkpoint" or site.node in elsewhere:
            continue
        if by_every_rank(script, site):
            torch = site.dotted == "torch.save"
            fix = _saved_by_root if torch else written_by_root
            yield Hit(
                site.node,
                "every rank writes this file at the same time: it may end up in pieces",
                _GATHERED if sharded else _SAVE0 if torch else ALONE,
                partial(unless_per_sample, fix=fix, site=site),
            )


def _saved_by_root(context: Context, site: Site) -> str:
    """`rankup.save0(…)` in place of `torch.save(…)`."""
    call = site.node
    context.replace(call.func, "rankup.save0")
    if not _loads_safely(context, given(call)[0]):
        context.edits.insert(context.script.span(given(call)[-1])[1], ", pickled=True")
    return "rank 0 alone saves, the old file or the new one (rankup.save0)"


def _loads_safely(context: Context, value: ast.expr, depth: int = 0) -> bool:
    """True where what is saved loads with `weights_only=True`, as far as can be seen."""
    script = context.script
    match value:
        case ast.Constant() | ast.Name(id="epoch" | "step" | "global_step" | "iteration"):
            return True
        case ast.Call(func=ast.Attribute(attr="state_dict")):
            return True
        case ast.Dict(keys=keys, values=parts):
            whole = all(keys)  # without `**others`
            return whole and all(_loads_safely(context, one, depth) for one in parts)
        case ast.BinOp(left=left, right=right):
            return all(_loads_safely(context, one, depth) for one in (left, right))
        case ast.Name(id=name):
            made = [one for _, one in script.assigned(name, script.scope(value))]
            plain = bool(made) and all(isinstance(one, ast.Dict | ast.Call) for one in made)
            deeper = depth < 3 and plain
            return deeper and all(_loads_safely(context, one, depth + 1) for one in made)
    return False


@rule("RK142", "error", "saved by local rank 0")
def saved_by_local(file: File, script: Script) -> Iterator[Hit]:
    """A file that is written under `if local_rank == 0:`.

    Every node has a local rank 0. On a shared file system they all write the same file.

    ```diff
     local_rank, rank, device, world_size = rankup.setup()
    -if local_rank == 0:
    +if rank == 0:
         torch.save(model.state_dict(), "model.pt")
    ```

    Nothing: it writes `rankup.save0`.
    """
    for site in script.saves:
        if site.file is file and guard(file, script, site.node) == "local":
            yield Hit(
                site.node,
                "local rank 0 exists on every node: each node's writes the same file",
                "let rank 0 of all write: rankup.is_root_process(), or save0",
            )


@rule("RK143", "warning", "a whole module pickled")
def module_pickled(file: File, script: Script) -> Iterator[Hit]:
    """`torch.save(model, …)`.

    The file holds the class by name, and the wrapper with it. `torch.load` refuses it by default
    since PyTorch 2.6, and it breaks when the code moves.

    ```diff
    -torch.save(model, "model.pt")
    +rankup.save0(model.state_dict(), "model.pt")
    ```

    Saves the module without its wrapper, and says where the file names a port of a module.
    """
    models = {one.node for one in script.models}
    for match in _SAVES.find(file):
        saved = match["saved"]
        if not isinstance(saved, ast.Name | ast.Attribute):
            continue
        if models & {one.node for one in script.flow.origins(file, saved)}:
            yield Hit(
                match.call,
                "pickles the whole module, its wrapper included: torch.load refuses it by default",
                "save model.state_dict()",
            )


@rule("RK144", "error", "loaded without map_location")
def load_place(file: File, script: Script) -> Iterator[Hit]:
    """`torch.load` without `map_location`, or onto a numbered GPU.

    Tensors go back to the GPU they were saved from: on every rank GPU 0, which runs out of memory.

    ```diff
    -state = torch.load("model.pt")
    +state = torch.load("model.pt", map_location=rankup.here)
    ```

    Adds `map_location=rankup.here`: this rank's own GPU.
    """
    for match in _LOADS.find(file):
        place = match.get("place")
        if place is None:
            yield Hit(
                match.call,
                "without map_location every rank loads onto the GPU it was saved from",
                _ANYWHERE,
                partial(_loaded_here, call=match.call),
            )
        elif _FIXED.fullmatch(string(place) or ""):
            fix = partial(without_number, text=place)
            yield Hit(place, f"every rank loads onto {string(place)}", _ANYWHERE, fix)


def _loaded_here(context: Context, call: ast.Call) -> str:
    context.edits.insert(context.script.span(given(call)[-1])[1], ", map_location=rankup.here")
    return "loads onto this rank's own GPU (rankup.here)"


@rule("RK148", "warning", "names that begin with module.")
def prefixed(file: File, script: Script) -> Iterator[Hit]:
    """The `state_dict()` of a model in DistributedDataParallel is saved.

    Every name in the file begins with `module.`, and the plain model does not load it.

    ```diff
     rank = rankup.setup().rank
     model = nn.parallel.DistributedDataParallel(Net())
    -rankup.save0(model.state_dict(), "model.pt")
    +rankup.save0(model.module.state_dict(), "model.pt")
    ```

    Nothing: `rankup.wrap` keeps the names.
    """
    if not script.distributed:
        return
    for match in _STATES.find(file):
        call, model = match.call, match["model"]
        saved = any(
            (isinstance(up, ast.Call) and "save" in call_name(up)) or isinstance(up, ast.Dict)
            for up in file.names.up(call)
        )
        if not saved or getattr(model, "attr", "") == "module":
            continue
        if any(one.wrappers() == {"ddp"} for one in script.flow.origins(file, model)):
            yield Hit(
                call,
                "the wrapped model's state, with names that begin with module.",
                "model.module.state_dict(); rankup.wrap keeps the names",
            )


@rule("RK149", "error", "read before it is written")
def read_before_written(file: File, script: Script) -> Iterator[Hit]:
    """A file that rank 0 alone writes, or will write once the script is ported, and that all ranks
    read further down, without a barrier or another collective in between.

    The other ranks find no file, an old one, or half of one: it works for weeks, and fails with the
    first slow file system.

    ```diff
     rankup.setup()
     rankup.save0(model.state_dict(), "best.pt")
    +rankup.barrier()
     model.load_state_dict(torch.load("best.pt", map_location=rankup.here))
    ```

    `rankup.barrier()` before a `torch.load` that comes after the training, and before a file is
    read that the same function has written.
    """
    meetings = [
        file.line(call)[0]
        for call in file.names.all(ast.Call)
        if (is_reduction(file, call) or call_name(call) in ("barrier", "backward"))
        and not guard(file, script, call)
    ]
    saved = dict(_loaded_behind_training(file, script, meetings))
    for call, path in (*saved.items(), *_read_behind_write(file, script, meetings)):
        if not guard(file, script, call):
            yield Hit(
                call,
                f"reads {path}, which rank 0 may still be writing",
                "rankup.barrier() before it",
                partial(_wait, call=call, word="saved" if call in saved else "written this"),
            )


def _wait(context: Context, call: ast.Call, word: str) -> str | None:
    place = context.script.statement(call) if word == "saved" else context.meeting(call)
    if context.goes_first(call):
        return ""
    if place is None or not context.script.begins_line(place):
        return None
    start = context.script.span(place)[0]
    put = context.edits.lines_at(start) + context.edits.inside((start, start + 1))
    if "rankup.barrier()" in put or "if rankup.is_root_process():" in put:
        return ""  # the others wait, or do not come there
    context.before(place, "rankup.barrier()")
    return f"waits until rank 0 has {word} (rankup.barrier)"


def _loaded_behind_training(
    file: File, script: Script, meetings: Sequence[int]
) -> Iterator[tuple[ast.Call, str]]:
    """`torch.load` behind a statement that trains, where the script saves with torch."""
    if not any(site.dotted == "torch.save" for site in script.saves) and not anywhere(
        script, "save0"
    ):
        return
    for site in script.loads:
        call = site.node
        if site.file is not file or not call.args:
            continue
        statement = file.names.statement(call)
        block = file.names.block(statement)
        before = block[: block.index(statement)] if statement in block else []
        training = [one for one in before if trains(file, script, one)]
        if training:
            last, line = file.last_line(training[-1]), file.line(call)[0]
            if not any(last < one <= line for one in meetings):
                yield call, file.code(call.args[0])


def _read_behind_write(
    file: File, script: Script, meetings: Sequence[int]
) -> Iterator[tuple[ast.Call, str]]:
    """Calls that read what one rank writes in the same function, with the code of the path."""
    written = list(_written_by_one(file, script))
    for call in file.names.all(ast.Call) if written else ():
        path = _read(file, call)
        if path is None:
            continue
        line, function = file.line(call)[0], file.names.function(call)
        for other, writer in written:
            same = other == file.code(path) and file.names.function(writer) is function
            if not same or writer is call or either_or(file, writer, call):
                continue
            last = _last_write(file, writer, line)
            if last < line and not any(last < one <= line for one in meetings):
                yield call, other
                break


def _written_by_one(file: File, script: Script) -> Iterator[tuple[str, ast.Call]]:
    """Paths that rank 0 alone writes to, and the calls; before a port all that is written."""
    for call, _ in calls(file, "save0", "path0"):
        path = argument(call, "path", 1 if call_name(call) == "save0" else 0)
        if path is not None:
            yield file.code(_named(path)), call
    for site in script.saves:
        if site.file is not file or site.path is None:
            continue
        if not script.distributed or guard(file, script, site.node) == "rank0":
            yield file.code(_named(site.path)), site.node


def _named(path: ast.expr) -> ast.expr:
    """`"a.txt"` of `Path("a.txt")`."""
    plain = isinstance(path, ast.Call) and call_name(path) == "Path" and len(path.args) == 1
    return path.args[0] if plain and isinstance(path, ast.Call) else path


def _read(file: File, call: ast.Call) -> ast.expr | None:
    """The path that a call reads from."""
    dotted = file.names.called(call)
    opens = dotted in ("h5py.File", "builtins.open") and _reading(argument(call, "mode", 1))
    if dotted in _READERS or opens:
        first = first_argument(call)
        return None if first is None else _named(first)
    if isinstance(call.func, ast.Attribute) and call_name(call) in ("read_text", "read_bytes"):
        return _named(call.func.value)
    return None


def _reading(mode: ast.expr | None) -> bool:
    return mode is None or (string(mode) or "w")[:1] == "r"


def _last_write(file: File, call: ast.Call, before: int) -> int:
    """The last line, before another, in which what a call has opened is written to."""
    around, statement = file.names.enclosing(call, ast.withitem), file.names.statement(call)
    if around is not None:
        return file.last_line(file.names.parents[around])
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        lines = [file.line(one)[0] for one in file.names.all(ast.Name) if one.id == name]
        return max(line for line in lines if line < before or line == file.line(statement)[0])
    return file.last_line(call)
