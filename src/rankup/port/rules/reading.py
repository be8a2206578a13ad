"""Files that one rank writes and all ranks read: a race, unless they meet in between."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from ...script.effects import trains
from ...script.flow import argument, call_name, first_argument
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import words
from ..rewrite.context import Context
from .facts import anywhere, calls, is_reduction, string
from .guards import guard
from .rule import Hit, rule

_READERS = words(
    "torch.load numpy.load numpy.loadtxt numpy.genfromtxt pandas.read_csv pandas.read_json "
    "pandas.read_pickle pandas.read_parquet scipy.io.loadmat cv2.imread PIL.Image.open"
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
    if place is None or not context.script.first_on_line(context.script.span(place)[0]):
        return None
    put = context.edits.lines_at(context.script.span(place)[0])
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
            if not same or writer is call or _either_or(file, writer, call):
                continue
            last = _last_write(file, writer, line)
            if last < line and not any(last < one <= line for one in meetings):
                yield call, other
                break


def _either_or(file: File, one: ast.AST, other: ast.AST) -> bool:
    """True where two places stand in different branches of one `if`."""
    around = {other, *file.names.up(other)}
    chain = pairwise([one, *file.names.up(one)])
    below, up = next((pair for pair in chain if pair[1] in around), (one, None))
    return isinstance(up, ast.If) and below not in around


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
