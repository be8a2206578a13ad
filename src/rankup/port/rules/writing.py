"""One voice: files are written by one rank, and what is printed, drawn and logged is rank 0's.

Folders may be there already, and all ranks agree on names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from ...script.effects import callee, leads_to
from ...script.flow import argument, call_name, given, literal
from ...script.names import bound_in, calls_in, walk
from ...script.roles import Loop, Script, Site
from ...script.source import File
from ...script.torch_names import root, words
from ..match import calls
from ..rewrite.context import Context
from .facts import (
    anywhere,
    by_every_rank,
    caught,
    ends,
    guard,
    ported,
    rank0_first,
    ranked,
    runs,
)
from .helpers import ALONE, by_helpers, harmless, helpers_that_write, keeps_state, made_in
from .rule import Hit, rule

# Calls that fail on the second rank, since the first has done it.
_CHANGERS = words("os.remove os.unlink os.rename os.rmdir shutil.rmtree shutil.move os.replace")
_REMOVING = words("unlink rmdir")  # methods of a path
# Calls that give another value in each process, and those of which a text is made.
_CLOCKS = words("strftime ctime isoformat uuid1 uuid4 mkdtemp time_ns")
_NOW = words("now today utcnow time")

_OWN_SAMPLES = (
    "each rank writes what its own samples need, maybe the same file: make all of it before the job"
)
_NEEDS_ALL = (
    "every rank writes this file, and what is written needs all of them: give it a name before, "
    "and let rank 0 alone write it, `if rankup.is_root_process():`"
)
_UNKNOWN_TURN = "rank 0 alone changes files here: call rankup.barrier() where all ranks come by"
_LOGGERS = {
    "SummaryWriter": "TensorBoard",
    "TensorboardLogger": "TensorBoard",
    "start_run": "MLflow",
    "Experiment": "comet",
}
_BARS = ("tqdm", "trange", "track", "Bar")
_DIALOGS = {
    "builtins.input": "input() waits for an answer",
    "builtins.breakpoint": "breakpoint() waits for an answer",
    "pdb.set_trace": "the debugger waits for an answer",
    "ipdb.set_trace": "the debugger waits for an answer",
    "matplotlib.pyplot.show": "show() opens a window",
    "cv2.imshow": "imshow() opens a window",
    "cv2.waitKey": "waitKey() waits for a key",
    "os.get_terminal_size": "get_terminal_size() fails",
}


@rule("RK146", "warning", "a file that every rank writes")
def written_by_all(file: File, script: Script) -> Iterator[Hit]:
    """Calls that write a file on every rank: `open(…, "w")`, `write_text`, NumPy, pandas, PIL,
    Matplotlib, OpenCV, `json.dump`, `h5py.File(…, "w")`, logs and alike, also in the script's own
    files and packages.

    Lines get mixed up, and pictures are overwritten while others read them.

    ```diff
    -log = open("log.txt", "w")
    +log = open(rankup.path0("log.txt"), "w")
    ```

    Writes `rankup.path0(path)`, or lets rank 0 alone make the call or run the block. A data set
    whose constructor writes files is constructed by `rankup.rank0_first`. What gives back something
    that is used, or draws random numbers, is left as it is and named.
    """
    yield from helpers_that_write(file, script, checkpoint=False)
    elsewhere = {site.node for helper in by_helpers(script) for site in helper.sites}
    for site in script.saves:
        if site.file is not file or site.kind != "file" or site.node in elsewhere:
            continue
        if by_every_rank(script, site) and not _swallowed(script, site):
            fix = {"call": written_by_root, "path": _opened, "object": _object}[site.form]
            message = "every rank writes this file"
            yield Hit(site.node, message, ALONE, partial(unless_per_sample, fix=fix, site=site))


def _swallowed(script: Script, site: Site) -> bool:
    """True where the ranks but the first write to `path0(…)`, also as the argument of a caller."""
    return site.path is not None and any(
        isinstance(origin.node, ast.Call) and call_name(origin.node) == "path0"
        for origin in script.flow.origins(site.file, site.path)
    )


def unless_per_sample(
    context: Context, fix: Callable[[Context, Site], str | None], site: Site
) -> str | None:
    """Fix what writes a file; what writes one for each sample is left and named."""
    if context.script.per_sample(site.node):
        context.leave(site.node, _OWN_SAMPLES)
        return ""
    return fix(context, site)


def written_by_root(context: Context, site: Site) -> str | None:
    """Let rank 0 alone make a call that writes."""
    script, call = context.script, site.node
    if _where_missing(context, call):
        return ""  # the other ranks find it there
    if context.needs_all(call):
        context.leave(call, _NEEDS_ALL)
        return ""
    if not context.only_root(call, result=site.result):
        return None
    named = {one.id for one in walk(call) if isinstance(one, ast.Name)}
    for loop in context.training.loops:
        here = loop.trains and script.scope(loop.node) is script.scope(call)
        if here and (context.training.derived(loop) & named or _last_made(context, loop, call)):
            context.leave(
                call, "what is written here is of rank 0's part of a batch", comment=False
            )
            break
    return "rank 0 alone writes this"


def _last_made(context: Context, loop: Loop, node: ast.AST, depth: int = 4) -> bool:
    """True behind a loop of what is made of its last batch: `picture = to_image(out.cpu())`."""
    script = context.script
    regions = [one.local for one in context.regions if one.where is loop.node]
    local = set().union(*regions) - loop.losses
    for name in script.inside(node, ast.Name) if depth else ():
        uses = script.uses(script.scope(loop.node), name.id)
        before = [
            one
            for one in uses
            if isinstance(one.ctx, ast.Store) and script.span(one) < script.span(node)
        ]
        last = max(before, key=script.span, default=None)
        if last is None or isinstance(name.ctx, ast.Store):
            continue
        if loop.node in script.above(last):
            if name.id in local:
                return True
            continue
        made = script.statement(last)
        if script.span(made) < script.span(loop.node) or not isinstance(made, ast.Assign):
            continue
        if _last_made(context, loop, made.value, depth - 1):
            return True
    return False


def _where_missing(context: Context, call: ast.Call) -> bool:
    """True where rank 0 makes a file before the others look, which then find it."""
    above = list(context.script.above(call))
    return any(up in context.missing for up in above) or (
        context.goes_first(call)
        and any(isinstance(up, ast.If) and context.asks_files(up.test) for up in above)
    )


def _object(context: Context, site: Site) -> str | None:
    """`with h5py.File(path, "w") as file:` is rank 0's, where nothing else is changed in it."""
    script, call = context.script, site.node
    item = script.parents[call]
    block = script.parents.get(item) if isinstance(item, ast.withitem) else None
    if not isinstance(block, ast.With) or not _self_contained(context, block):
        return None
    place = context.meeting(block)
    context.indented(block, "if rankup.is_root_process():")
    if place is not None and not context.goes_first(block):
        context.after(place, "rankup.barrier()")
    return "rank 0 alone writes this file"


def _self_contained(context: Context, block: ast.With) -> bool:
    """True where the ranks that leave a block out stay as those that run it."""
    script, training = context.script, context.training
    if not script.first_on_line(script.span(block)[0]) or context.needs_all(block):
        return False
    leaving = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.Await, ast.Global, ast.Nonlocal)
    if any(True for _ in script.inside(block, *leaving)) or training.trains(block):
        return False
    if any(script.file.names.inside(loop.node, block) for loop in training.loops):
        return False
    if not keeps_state(script.file, [block], made_in([block])) or _used_behind(context, block):
        return False
    models = {model.name for model in training.models}
    for call in script.inside(block, ast.Call):
        if script.dotted(call.func) in models or call_name(call) in ("train", "eval"):
            return False
        found = callee(script.flow, script.file, call)
        if found is not None and not harmless(leads_to(script.flow, *found)):
            return False
    return True


def _used_behind(context: Context, block: ast.With) -> bool:
    """True where a name that a block gives a value is read elsewhere, with that value."""
    script = context.script
    stored = bound_in(walk(block))
    for name in script.inside(script.scope(block), ast.Name):
        if name.id not in stored or not isinstance(name.ctx, ast.Load):
            continue
        around = [name, *script.above(name)]
        if block not in around and not any(_binds(one, name.id) for one in around):
            return True
    return False


def _binds(node: ast.AST, name: str) -> bool:
    """True where a `with` or `for` gives a name its value for the statements in it."""
    targets = [node.target] if isinstance(node, ast.For) else []
    for item in node.items if isinstance(node, ast.With) else ():
        targets += [item.optional_vars] if item.optional_vars is not None else []
    return name in bound_in(walk(*targets))


def _opened(context: Context, site: Site) -> str | None:
    """`open(rankup.path0(path), "w")`: the other ranks write to nowhere."""
    if site.path is None:
        return None
    context.around(site.path, "rankup.path0(")
    what = "log" if site.dotted.startswith("logging.") else "file"
    return f"rank 0 alone writes this {what} (rankup.path0)"


@rule("RK145", "error", "ranks race for a folder", frameworks=True)
def file_race(file: File, script: Script) -> Iterator[Hit]:
    """`os.mkdir`, `makedirs` without `exist_ok`, and what removes or renames, on every rank.

    The second rank fails, or takes away what the first has just written.

    ```diff
    -os.makedirs("out")
    +os.makedirs("out", exist_ok=True)
    ```

    Adds `exist_ok=True`; lets rank 0 alone remove, with a barrier behind it; puts `with
    rankup.rank0_first():` around `if not os.path.exists(path):` and what makes the file.
    """
    for call in file.names.all(ast.Call):
        makes = _makes_folder(file, call)
        if not makes and not changes_files(file, call):
            continue
        own = any(ranked(script, file, arg) for arg in given(call)[:1])
        if own or guard(file, script, call) or rank0_first(file, script, call):
            continue
        if not runs(file, script, call):
            continue
        yield Hit(
            call,
            f"{call_name(call)} on every rank: the second one fails, or takes away what is in use",
            "os.makedirs(path, exist_ok=True)" if makes else "rank 0 alone, then rankup.barrier()",
            partial(_may_exist if makes else _changed_by_root, call=call),
        )


def _makes_folder(file: File, call: ast.Call) -> bool:
    """True of what fails where the folder is there, and does not catch that."""
    dotted = file.names.called(call)
    of_path = not dotted and isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir"
    if dotted not in ("os.mkdir", "os.makedirs") and not of_path:
        return False
    given = argument(call, "exist_ok", 2)
    asks = file.names.enclosing(call, ast.If)
    tries = file.names.enclosing(call, ast.Try)
    # If it is made where it is not there, the script may end where that fails.
    asked = asks is not None and "exists" in file.code(asks.test)
    fails = not caught(file, call) or (asked and tries is not None and ends(*tries.handlers))
    return (given is None or literal(given) is False) and fails


def changes_files(file: File, call: ast.Call) -> bool:
    """True of what removes or renames files: caught or not, one rank may still need them."""
    dotted = file.names.called(call)
    removes = not dotted and isinstance(call.func, ast.Attribute) and call.func.attr in _REMOVING
    paths = "pathlib" in {name.partition(".")[0] for name in file.names.imported}
    return dotted in _CHANGERS or (removes and paths)


def _may_exist(context: Context, call: ast.Call) -> str | None:
    """A folder that another rank has just made is no error."""
    script = context.script
    passed, exists = given(call), argument(call, "exist_ok", 2)
    if exists is not None:
        context.replace(exists, "True")
    else:
        if script.name(call.func) == "os.mkdir":
            if not isinstance(call.func, ast.Attribute):
                return None
            context.replace(call.func, f"{script.code(call.func.value)}.makedirs")
        text = ", exist_ok=True" if passed else "exist_ok=True"
        place = script.span(passed[-1])[1] if passed else script.span(call)[1] - 1
        context.edits.insert(place, text)
    return "a folder may be there already: another rank made it"


def _changed_by_root(context: Context, call: ast.Call) -> str | None:
    place = context.meeting(call)
    if context.script.per_sample(call) or not context.only_root(call):
        return None
    if context.goes_first(call):
        return "rank 0 alone changes files"
    if place is None:
        context.leave(call, _UNKNOWN_TURN)
        return ""
    context.after(place, "rankup.barrier()")
    return "rank 0 alone changes files; the others wait"


@rule("RK147", "error", "a name made of the time")
def name_of_its_own(file: File, script: Script) -> Iterator[Hit]:
    """A folder or run name from `strftime`, `datetime.now()` or a UUID.

    Each rank makes its own: half of the run's files are in the folder of a second later.

    ```diff
    -run_name = "run-" + time.strftime("%H%M%S")
    +run_name = rankup.broadcast("run-" + time.strftime("%H%M%S"))
    ```

    Makes the name on rank 0 for all where it sees it; else it leaves a remark.
    """
    for node in clock_names(file):
        if guard(file, script, node) or rank0_first(file, script, node):
            continue
        if any(True for one in script.files for _ in calls(one, "broadcast_object_list")):
            continue
        yield Hit(
            node,
            f"{file.code(node.targets[0])} is made of the time, and is another on each rank",
            "make it on rank 0: rankup.broadcast",
            partial(_same_on_all, assign=node),
        )


def _same_on_all(context: Context, assign: ast.Assign) -> str:
    if context.script.per_sample(assign) or context.goes_first(assign):
        return ""
    context.around(assign.value, "rankup.broadcast(")
    return "a name made of the time is rank 0's on all ranks (rankup.broadcast)"


_PRINTS = ("builtins.print", "rich.print")


def clock_names(file: File) -> Iterator[ast.Assign]:
    """Assignments of a text that is made of the time or of a random number, once in a run."""
    for node in file.names.all(ast.Assign):
        if isinstance(node.value, (ast.Tuple, ast.GeneratorExp, ast.Lambda)):
            continue
        if any(isinstance(up, (ast.For, ast.While, ast.Lambda)) for up in file.names.up(node)):
            continue
        shared = any(call_name(one) in ("broadcast", "rank0_first") for one in calls_in(node.value))
        if not shared and any(_tells_time(file, one) for one in calls_in(node.value)):
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


def _quiet(script: Script) -> bool:
    return anywhere(script, "quiet") and ported(script)


@rule("RK174", "warning", "printed by every rank", by_port=True)
def printed_by_all(file: File, script: Script) -> Iterator[Hit]:
    """`print` and progress bars without a condition on the rank; one finding per file.

    Every line appears once per rank, and bars draw over each other.

    ```diff
    +rankup.setup()
    +rankup.quiet()
     for epoch in range(10):
         print("epoch", epoch)
    ```

    Adds `rankup.quiet()`: only rank 0 prints, draws and logs.
    """
    if _quiet(script) or _own_print(script):
        return
    found: list[ast.Call] = []
    for call in file.names.all(ast.Call):
        dotted = file.names.called(call)
        bar = call_name(call) in _BARS and root(dotted) in ("tqdm", "rich", "progress")
        if script.distributed:  # `print(f"[rank {rank}] …")` is meant for every rank
            if argument(call, "disable") is not None:
                continue
            if any(ranked(script, file, arg) for arg in given(call)):
                continue
        if (bar or dotted in _PRINTS) and not guard(file, script, call):
            found.append(call)
    if not found:
        return
    what = {call_name(call) for call in found}
    times = f"{len(found)} times here" if len(found) > 1 else "here"
    yield Hit(
        found[0],
        f"{' and '.join(sorted(what))} on every rank ({times})",
        "rankup.quiet() silences all ranks but the first, bars included; print0 for single lines",
    )


def _own_print(script: Script) -> bool:
    """`builtins.print` is replaced, as torchvision's references do."""
    return any(
        "builtins.print =" in one.text or "__builtin__.print =" in one.text for one in script.files
    ) or any(
        made.kind != "import" or made.dotted not in _PRINTS
        for one in script.files
        for made in one.names.members(one.tree).get("print", ())
    )


@rule("RK175", "error", "logged by every rank", by_port=True)
def logged_by_all(file: File, script: Script) -> Iterator[Hit]:
    """`SummaryWriter`, `wandb.init`, MLflow and alike on every rank.

    The run shows up N times, and files of one run are written by all.

    ```diff
    +rankup.setup()
    +rankup.quiet()
     writer = SummaryWriter()
    ```

    Adds `rankup.quiet()`, after which these do nothing on the other ranks.
    """
    if _quiet(script):
        return
    for call in file.names.all(ast.Call):
        dotted, name = file.names.called(call), call_name(call)
        known = _LOGGERS.get(name, "") if dotted or name == "SummaryWriter" else ""
        what = "wandb" if dotted == "wandb.init" else known
        if what and not guard(file, script, call):
            yield Hit(
                call,
                f"{what} would get a run from every rank",
                "rankup.quiet() before it, or only on rank 0",
            )


@rule("RK176", "error", "a terminal in a job", frameworks=True)
def no_terminal(file: File, script: Script) -> Iterator[Hit]:
    """`input()`, `breakpoint()`, `plt.show()`, the size of the terminal without a `try`.

    A job has no terminal and no screen: the call fails, or waits until the time is up.

    ```diff
    -lr = float(input("learning rate: "))
    +lr = float(sys.argv[1])
    ```

    Leaves a remark at the place.
    """
    uses = [one.code(call) for one in script.files for call, _ in calls(one, "use")]
    screenless = any("Agg" in code for code in uses)
    for call in file.names.all(ast.Call):
        message = _DIALOGS.get(file.names.called(call))
        starts = call_name(call) in ("popen", "check_output", "system", "run")
        if message is None and starts and any("stty size" in file.code(x) for x in given(call)[:1]):
            message = None if caught(file, call) else "stty has no terminal"
        if message is not None and not ("show" in message and screenless):
            yield Hit(
                call,
                f"{message}, and a job has neither terminal nor screen",
                "savefig instead" if "show" in message else "take it out, or make it an option",
            )
