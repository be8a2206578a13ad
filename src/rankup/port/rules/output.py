"""One voice: what is printed, drawn and logged."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..roles import Roles
from ..roles.pieces import argument, call_name
from ..source import Source
from .facts import anywhere, calls, ranked
from .guards import guard
from .rule import Hit, Rule

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


def _quiet(roles: Roles) -> bool:
    return anywhere(roles, "quiet") and "rankup" in roles.runtimes


def printed_by_all(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK174: every line once per rank."""
    if _quiet(roles) or _own_print(roles):
        return
    found: list[cst.Call] = []
    for call in source.index.all(cst.Call):
        name, dotted = call_name(call), source.index.called(call)
        if dotted == "builtins.print":
            pass
        elif name in _BARS and dotted.split(".")[0] in ("tqdm", "rich", "progress"):
            disable = argument(call, "disable")
            if disable is not None and roles.distributed:
                continue
        else:
            continue
        if not guard(source, roles, call) and not _names_the_rank(source, roles, call):
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


def _own_print(roles: Roles) -> bool:
    """`builtins.print` is replaced, as torchvision's references do."""
    return any(
        "builtins.print =" in one.text or "__builtin__.print =" in one.text for one in roles.sources
    ) or any("print" in one.index.members(one.module) for one in roles.sources)


def _names_the_rank(source: Source, roles: Roles, call: cst.Call) -> bool:
    """`print(f"[rank {rank}] …")` is meant to be there for every rank."""
    return roles.distributed and any(ranked(roles, source, arg.value) for arg in call.args)


def logged_by_all(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK175: a log of the run per rank."""
    if _quiet(roles):
        return
    for call in source.index.all(cst.Call):
        dotted, name = source.index.called(call), call_name(call)
        what = _LOGGERS.get(name, "")
        if dotted == "wandb.init":
            what = "wandb"
        if not what or (name != "SummaryWriter" and not dotted):
            continue
        if guard(source, roles, call):
            continue
        yield Hit(
            call,
            f"{what} would get a run from every rank",
            "rankup.quiet() before it, or only on rank 0",
        )


def no_terminal(source: Source, roles: Roles) -> Iterator[Hit]:
    """RK176: nobody answers in a job."""
    for call in source.index.all(cst.Call):
        said = _DIALOGS.get(source.index.called(call))
        if (
            said is None
            and call_name(call) in ("popen", "check_output", "system", "run")
            and any("stty size" in source.code(arg.value) for arg in call.args[:1])
        ):
            said = "stty has no terminal"
        if said is None:
            continue
        if "show" in said and _agg(roles):
            continue
        if "stty" in said and _answered(source, call):
            continue
        yield Hit(
            call,
            f"{said}, and a job has neither terminal nor screen",
            "take it out; an option of the command line, savefig instead of show",
        )


def _answered(source: Source, call: cst.Call) -> bool:
    """Whether the script itself goes on where there is no terminal."""
    around = source.index.enclosing(call, cst.Try, cst.FunctionDef)
    return isinstance(around, cst.Try) and bool(around.handlers)


def _agg(roles: Roles) -> bool:
    return any(
        "Agg" in source.code(call) for source in roles.sources for call, _ in calls(source, "use")
    )


RULES = (
    Rule("RK174", "printed-by-all", "warning", printed_by_all),
    Rule("RK175", "logged-by-all", "error", logged_by_all),
    Rule("RK176", "no-terminal", "error", no_terminal, frameworks=True),
)
