"""One voice: what is printed, drawn and logged."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...script.flow import argument, call_name, given
from ...script.roles import Script
from ...script.source import File
from ...script.torch_names import root
from .facts import anywhere, calls, caught, guard, ported, ranked
from .rule import Hit, rule

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
    return anywhere(script, "quiet") and ported(script)


@rule("RK174", "warning", "printed by every rank")
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
        if (bar or dotted == "builtins.print") and not guard(file, script, call):
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


@rule("RK175", "error", "logged by every rank")
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
