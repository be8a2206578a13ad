"""Files: one rank writes, and all read to their own GPU."""

from __future__ import annotations

import ast

from ....script.effects import callee, leads_to, written
from ....script.flow import argument, call_name, given
from ....script.names import walk
from ....script.roles import Site
from ...rules.reading import named, reads_too_early
from ...rules.saving import changes_files, clock_names, makes_folder
from ..context import Context
from ..expressions import words
from .beside import (
    harmless,
    keeps_state,
    made_in,
    saved_elsewhere,
    written_elsewhere,
)

_BY_ALL = "every rank writes this file: let rank 0 alone, `if rankup.is_root_process():`"
_NEEDS_ALL = (
    "every rank writes this file, and what is written needs all of them: give it a name before, "
    "and let rank 0 alone write it, `if rankup.is_root_process():`"
)
_OWN_SAMPLES = (
    "each rank writes what its own samples need, maybe two of them the same file: make all of it "
    "before the job"
)
_UNKNOWN_TURN = (
    "rank 0 alone changes files here, and the others do not wait for it: call rankup.barrier() "
    "where all ranks come by"
)


def _sites(context: Context, *forms: str) -> list[Site]:
    """The script's own calls that write, of these forms."""
    script = context.script
    found = [written(script.whole_flow, script.file, call) for call in script.all(ast.Call)]
    return [one for one in found if one is not None and one.form in forms]


def save(context: Context) -> None:
    """`rankup.save0(…)` in place of `torch.save(…)`."""
    script = context.script
    for site in _sites(context, "call"):
        call = site.node
        assert isinstance(call, ast.Call)
        if site.dotted != "torch.save":
            continue
        if script.per_sample(call):
            context.leave(call, _OWN_SAMPLES)
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


def wait_for_written(context: Context) -> None:
    """`rankup.barrier()` before all ranks read what rank 0 has written in the same function."""
    script = context.script
    written_here = [
        (script.code(named(site.path)), site.node)
        for site in _sites(context, "call", "path", "object")
        if site.path is not None and isinstance(site.node, ast.Call)
    ]
    meetings = [script.line(one) for one in context.training.backwards]
    places: set[ast.AST] = set()
    for call, _ in reads_too_early(script.file, written_here, meetings):
        place = context.meeting(call)
        if place is None or place in places or context.goes_first(call):
            continue
        if "rankup.barrier()" in context.edits.lines_at(script.span(place)[0]):
            continue
        places.add(place)
        context.before(place, "rankup.barrier()")
        context.done(call, "waits until rank 0 has written this (rankup.barrier)")


def root_writes(context: Context) -> None:
    """Plots, images and tables are written by rank 0 alone."""
    script = context.script
    loops = [one for one in context.training.loops if one.trains]
    parts = {name for loop in loops for name in context.training.derived(loop)}
    for site in _sites(context, "call"):
        call = site.node
        assert isinstance(call, ast.Call)
        if site.dotted == "torch.save":
            continue
        if _where_missing(context, call):
            continue  # the other ranks find it there
        if script.per_sample(call):
            context.leave(call, _OWN_SAMPLES)
        elif context.needs_all(call):
            context.leave(call, _NEEDS_ALL)
        elif context.only_root(call, result=site.result):
            context.done(call, "rank 0 alone writes this")
            if words(call) & parts:
                context.leave(
                    call, "what is written here is of rank 0's part of a batch", comment=False
                )
        else:
            context.leave(call, _BY_ALL)
    for call in script.all(ast.Call):
        if changes_files(script.file, call):
            _change(context, call)
    written_elsewhere(context)
    for site in _sites(context, "object"):
        _object(context, site)


def _where_missing(context: Context, call: ast.Call) -> bool:
    """Return whether rank 0 makes a file before the others look, which then find it."""
    above = list(context.script.above(call))
    return any(up in context.missing for up in above) or (
        context.goes_first(call)
        and any(isinstance(up, ast.If) and context.asks_files(up.test) for up in above)
    )


def _change(context: Context, call: ast.Call) -> None:
    place = context.meeting(call)
    if context.script.per_sample(call) or not context.only_root(call):
        context.leave(call, "every rank does this, and the second one fails: let rank 0 alone")
    elif context.goes_first(call):
        context.done(call, "rank 0 alone changes files")
    elif place is None:
        context.leave(call, _UNKNOWN_TURN)
    else:
        context.after(place, "rankup.barrier()")
        context.done(call, "rank 0 alone changes files; the others wait")


def _object(context: Context, site: Site) -> None:
    """`with h5py.File(path, "w") as file:` is rank 0's, where nothing else is changed in it."""
    script, call = context.script, site.node
    assert isinstance(call, ast.Call)
    item = script.parents[call]
    block = script.parents.get(item) if isinstance(item, ast.withitem) else None
    if script.per_sample(call):
        context.leave(call, _OWN_SAMPLES)
    elif isinstance(block, ast.With) and _self_contained(context, block):
        place = context.meeting(block)
        context.indented(block, "if rankup.is_root_process():")
        context.done(call, "rank 0 alone writes this file")
        if place is not None and not context.goes_first(block):
            context.after(place, "rankup.barrier()")
    else:
        context.leave(call, _BY_ALL)


def _self_contained(context: Context, block: ast.With) -> bool:
    """Return whether the ranks that leave a block out stay as those that run it."""
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
        found = callee(script.whole_flow, script.file, call)
        if found is not None and not harmless(leads_to(script.whole_flow, *found)):
            return False
    return True


def _used_behind(context: Context, block: ast.With) -> bool:
    """Whether a name that a block gives a value is read elsewhere, but where it is given anew."""
    script = context.script
    stored = {
        one.id
        for one in walk(block)
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    }
    for name in script.inside(script.scope(block), ast.Name):
        if name.id not in stored or not isinstance(name.ctx, ast.Load):
            continue
        around = [name, *script.above(name)]
        if block not in around and not any(_binds(one, name.id) for one in around):
            return True
    return False


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a `with` or `for` gives a name its value for the statements in it."""
    targets: list[ast.AST] = []
    if isinstance(node, ast.With):
        targets = [one.optional_vars for one in node.items if one.optional_vars is not None]
    elif isinstance(node, ast.For):
        targets = [node.target]
    return any(isinstance(one, ast.Name) and one.id == name for one in walk(*targets))


def opened(context: Context) -> None:
    """`open(rankup.path0(path), "w")`: the other ranks write to nowhere."""
    script = context.script
    for site in _sites(context, "path"):
        call = site.node
        assert isinstance(call, ast.Call)
        if site.path is None or script.per_sample(call):
            context.leave(call, _OWN_SAMPLES if site.path else _BY_ALL)
            continue
        if site.dotted == ".open" and not _by_function(context, call):
            context.leave(call, _BY_ALL)
            continue
        context.around(site.path, "rankup.path0(")
        what = "log" if site.dotted.startswith("logging.") else "file"
        context.done(call, f"rank 0 alone writes this {what} (rankup.path0)")


def _by_function(context: Context, call: ast.Call) -> bool:
    """Write `open(path, "w")` for `path.open("w")`; False where `open` is something else."""
    script = context.script
    names = script.file.names
    if any("open" in names.members(scope) for scope in names.scopes):
        return False
    assert isinstance(call.func, ast.Attribute)
    start, end = script.whole(call.func.value)
    opening = script.text.index("(", script.span(call.func)[1])
    if context.edits.taken((end, opening + 1)):
        return False
    context.edits.around((start, opening + 1), "open(", "")  # outside of what is put around `path`
    context.edits.replace((end, opening + 1), ", " if given(call) else "")
    return True


def folders(context: Context) -> None:
    """A folder that another rank has just made is no error."""
    script = context.script
    for call in script.all(ast.Call):
        if not makes_folder(script.file, call):
            continue
        name, passed = script.name(call.func), given(call)
        exists = argument(call, "exist_ok", 2)
        if exists is not None:
            context.replace(exists, "True")
        else:
            if name == "os.mkdir":
                if not isinstance(call.func, ast.Attribute):
                    context.leave(call, "the second rank finds it there: os.makedirs(…, exist_ok)")
                    continue
                context.replace(call.func, f"{script.code(call.func.value)}.makedirs")
            text = ", exist_ok=True" if passed else "exist_ok=True"
            place = script.span(passed[-1])[1] if passed else script.span(call)[1] - 1
            context.edits.insert(place, text)
        context.done(call, "a folder may be there already: another rank made it")


def same_names(context: Context) -> None:
    """A name with the time in it is rank 0's on all ranks."""
    for node in clock_names(context.script.file):
        if context.script.per_sample(node) or context.goes_first(node):
            continue
        context.around(node.value, "rankup.broadcast(")
        context.done(node, "a name made of the time is rank 0's on all ranks (rankup.broadcast)")
