"""Files: one rank writes, and all read to their own GPU."""

from __future__ import annotations

import ast
import re

from ....script.flow import argument, given
from ....script.roles import LoopNode
from ...rules.facts import string
from ...rules.saving import CHANGERS
from ..context import Context
from ..expressions import words
from .beside import saved_elsewhere, written_elsewhere

_WRITERS = {
    "torchvision.utils.save_image", "matplotlib.pyplot.savefig", "matplotlib.pyplot.imsave",
    "numpy.save", "numpy.savez", "numpy.savetxt", "numpy.savez_compressed", "json.dump",
    "pickle.dump", "yaml.dump", "shutil.copyfile", "shutil.copy", "imageio.imwrite", "cv2.imwrite",
    "joblib.dump", "safetensors.torch.save_file", "shutil.copy2", "imageio.mimsave",
}  # fmt: skip
_WRITING_METHODS = {
    "savefig", "to_csv", "to_json", "to_parquet", "write_image", "save_pretrained", "add_graph",
    "write_text", "write_bytes",
}  # fmt: skip
# The functions that open a file, and what they call its path.
_OPENERS = {
    "open": "file", "io.open": "file", "gzip.open": "filename", "codecs.open": "filename",
}  # fmt: skip
_BY_ALL = "every rank writes this file: let rank 0 alone, `if rankup.is_root_process():`"
_OWN_SAMPLES = (
    "each rank writes what its own samples need, maybe two of them the same file: make all of it "
    "before the job"
)


def save(context: Context) -> None:
    """`rankup.save0(…)` in place of `torch.save(…)`."""
    script = context.script
    for call in script.all(ast.Call):
        if script.name(call.func) != "torch.save" or not given(call):
            continue
        context.replace(call.func, "rankup.save0")
        value = given(call)[0]
        if not _loads_safely(context, value):
            end = script.span(given(call)[-1])[1]
            context.edits.insert(end, ", pickled=True")
        context.done(call, "rank 0 alone saves, the old file or the new one (rankup.save0)")


def _loads_safely(context: Context, value: ast.expr, depth: int = 0) -> bool:
    """Whether what is saved loads with `weights_only=True`, as far as can be seen."""
    script = context.script
    if isinstance(value, ast.Dict):
        whole = all(value.keys)  # without `**others`
        return whole and all(_loads_safely(context, one, depth) for one in value.values)
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Attribute) and value.func.attr == "state_dict"
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.BinOp):
        return all(_loads_safely(context, one, depth) for one in (value.left, value.right))
    if isinstance(value, ast.Name):
        if value.id in ("epoch", "step", "global_step", "iteration"):
            return True
        made = context.training.assigned(value.id, script.scope(value))
        return (
            bool(made)
            and depth < 3
            and all(
                isinstance(one, ast.Dict | ast.Call) and _loads_safely(context, one, depth + 1)
                for _, one in made
            )
        )
    return False


def load(context: Context) -> None:
    """`torch.load(path, map_location=rankup.here)`: not all ranks onto the first GPU."""
    script = context.script
    for call in script.all(ast.Call):
        if script.name(call.func) != "torch.load" or not given(call):
            continue
        if argument(call, "map_location", 1) is None:
            context.edits.insert(script.span(given(call)[-1])[1], ", map_location=rankup.here")
            context.done(call, "loads onto this rank's own GPU (rankup.here)")


def wait_for_saved(context: Context) -> None:
    """`rankup.barrier()` before a load, after the training, of what rank 0 has saved in it."""
    script = context.script
    saves = any(script.name(call.func) == "torch.save" for call in script.all(ast.Call))
    if not saves and not saved_elsewhere(context):
        return
    for call in script.all(ast.Call):
        if script.name(call.func) != "torch.load":
            continue
        statement = script.statement(call)
        block = script.block(statement)
        before = block[: block.index(statement)] if statement in block else []
        trained = any(context.training.trains(one) for one in before)
        if trained and script.first_on_line(script.span(statement)[0]):
            context.before(call, "rankup.barrier()")
            context.done(call, "waits until rank 0 has saved (rankup.barrier)")


def root_writes(context: Context) -> None:
    """Plots, images and tables are written by rank 0 alone."""
    script = context.script
    loops = [one for one in context.training.loops if one.trains]
    parts = {name for loop in loops for name in context.training.derived(loop)}
    for call in script.all(ast.Call):
        name = script.name(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name in _WRITERS or method in _WRITING_METHODS:
            if script.per_sample(call):
                context.leave(call, _OWN_SAMPLES)
            elif context.only_root(call):
                context.done(call, "rank 0 alone writes this")
                names = words(call)
                if names & parts:
                    context.leave(
                        call, "what is written here is of rank 0's part of a batch", comment=False
                    )
            elif not name.endswith(".dump"):  # into a file that is opened elsewhere
                context.leave(call, _BY_ALL)
        elif name in CHANGERS and context.only_root(call):
            context.after(script.statement(call), "rankup.barrier()")
            context.done(call, "rank 0 alone changes files; the others wait")
    written_elsewhere(context, _WRITERS | {"torch.save"}, _WRITING_METHODS)


def opened(context: Context) -> None:
    """`open(rankup.path0(path), "w")`: the other ranks write to nowhere."""
    script = context.script
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if name in _OPENERS:
            path = argument(call, _OPENERS[name], 0)
            mode = argument(call, "mode", 1)
            text = string(mode)
            if text is not None and text[:1] in "wax":
                if path is None or script.per_sample(call):
                    context.leave(call, _OWN_SAMPLES if path else _BY_ALL)
                    continue
                context.around(path, "rankup.path0(")
                context.done(call, "rank 0 alone writes this file (rankup.path0)")
        elif name == "logging.FileHandler" and given(call):
            context.around(given(call)[0], "rankup.path0(")
            context.done(call, "rank 0 alone writes this log (rankup.path0)")


def folders(context: Context) -> None:
    """A folder that another rank has just made is no error."""
    script = context.script
    for call in script.all(ast.Call):
        name = script.name(call.func)
        if name in ("os.mkdir", "os.makedirs") and given(call):
            if argument(call, "exist_ok", 2) is not None:
                continue
            if name == "os.mkdir":
                context.replace(
                    call.func,
                    "os.makedirs" if "os" in script.file.names.members(script.tree) else "makedirs",
                )
            context.edits.insert(script.span(given(call)[-1])[1], ", exist_ok=True")
            context.done(call, "a folder may be there already: another rank made it")
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir":
            if name.startswith("os.") or argument(call, "exist_ok", 2) is not None:
                continue
            if script.modules & {"pathlib"}:
                passed = given(call)
                text = ", exist_ok=True" if passed else "exist_ok=True"
                place = script.span(passed[-1])[1] if passed else script.span(call)[1] - 1
                context.edits.insert(place, text)
                context.done(call, "a folder may be there already: another rank made it")


def same_names(context: Context) -> None:
    """A name with the time in it is rank 0's on all ranks."""
    script = context.script
    for node in script.all(ast.Assign):
        names = {script.name(call.func) for call in script.inside(node.value, ast.Call)}
        timed = re.search(r"strftime\(|\bctime\(|isoformat\(", script.code(node.value))
        drawn = names & {"uuid.uuid4", "tempfile.mkdtemp", "time.time_ns"}
        if (timed or drawn) and not isinstance(script.scope(node), ast.Lambda):
            if isinstance(node.value, ast.Tuple | ast.GeneratorExp):
                continue
            if any(isinstance(p, LoopNode) for p in script.above(node)):
                continue
            context.around(node.value, "rankup.broadcast(")
            context.done(
                node, "a name made of the time is rank 0's on all ranks (rankup.broadcast)"
            )
