"""One voice: what is printed, drawn and logged."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ...script.flow import argument, call_name, given
from ...script.roles import Script
from ...script.source import File
from .facts import anywhere, calls, caught, ranked
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


def _quiet(script: Script) -> bool:
    return anywhere(script, "quiet") and "rankup" in script.runtimes


def printed_by_all(file: File, script: Script) -> Iterator[Hit]:
    """RK174: every line once per rank."""
    if _quiet(script) or _own_print(script):
        return
    found: list[ast.Call] = []
    for call in file.names.all(ast.Call):
        name, dotted = call_name(call), file.names.called(call)
        if dotted == "builtins.print":
            pass
        elif name in _BARS and dotted.split(".")[0] in ("tqdm", "rich", "progress"):
            disable = argument(call, "disable")
            if disable is not None and script.distributed:
                continue
        else:
            continue
        if not guard(file, script, call) and not _names_the_rank(file, script, call):
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
    ) or any("print" in one.names.members(one.tree) for one in script.files)


def _names_the_rank(file: File, script: Script, call: ast.Call) -> bool:
    """`print(f"[rank {rank}] …")` is meant to be there for every rank."""
    return script.distributed and any(ranked(script, file, arg) for arg in given(call))


def logged_by_all(file: File, script: Script) -> Iterator[Hit]:
    """RK175: a log of the run per rank."""
    if _quiet(script):
        return
    for call in file.names.all(ast.Call):
        dotted, name = file.names.called(call), call_name(call)
        what = _LOGGERS.get(name, "")
        if dotted == "wandb.init":
            what = "wandb"
        if not what or (name != "SummaryWriter" and not dotted):
            continue
        if guard(file, script, call):
            continue
        yield Hit(
            call,
            f"{what} would get a run from every rank",
            "rankup.quiet() before it, or only on rank 0",
        )


def no_terminal(file: File, script: Script) -> Iterator[Hit]:
    """RK176: nobody answers in a job."""
    for call in file.names.all(ast.Call):
        message = _DIALOGS.get(file.names.called(call))
        starts = call_name(call) in ("popen", "check_output", "system", "run")
        if message is None and starts and any("stty size" in file.code(x) for x in given(call)[:1]):
            message = None if caught(file, call) else "stty has no terminal"
        if message is not None and not ("show" in message and _agg(script.files)):
            yield Hit(
                call,
                f"{message}, and a job has neither terminal nor screen",
                "savefig instead" if "show" in message else "take it out, or make it an option",
            )


def _agg(files: Sequence[File]) -> bool:
    return any("Agg" in file.code(call) for file in files for call, _ in calls(file, "use"))


RULES = (
    Rule("RK174", "printed-by-all", "warning", printed_by_all),
    Rule("RK175", "logged-by-all", "error", logged_by_all),
    Rule("RK176", "no-terminal", "error", no_terminal, frameworks=True),
)
