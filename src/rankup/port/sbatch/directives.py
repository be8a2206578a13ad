"""Directives of a job on one GPU made those of a job on many nodes, every other word kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..rewrite.edits import Edits
from .options import Option
from .script import BatchScript

_MEMORY = re.compile(r"([0-9]{1,9})([KMGT]?B?)", re.IGNORECASE)
_TASKS = ("ntasks", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core")
_GPUS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


class Directives:
    """The directives of a script while they are changed."""

    def __init__(self, script: BatchScript) -> None:
        self.script = script
        self._changed: dict[Option, str | None] = {}  # None: it goes
        self._added: list[str] = []

    def put(self, name: str, value: str, becomes: str = "") -> None:
        """Give an option a value, where it stands or in a line of its own."""
        option = self.script.option(name)
        if option is None:
            self._added.append(f"#SBATCH --{name}={value}")
            return
        written = self.script.text[option.start : option.end]
        if becomes or not option.value or not written.endswith(option.value):
            self._changed[option] = f"--{becomes or name}={value}"
        else:
            self._changed[option] = written.removesuffix(option.value) + value

    def drop(self, *names: str) -> None:
        """Take options away, each with its line where nothing else stands in it."""
        self._changed |= {one: None for one in self.script.options if one.name in names}

    def apply(self, edits: Edits, behind: str) -> None:
        """Make the changes, with a text behind the last directive."""
        script = self.script
        read = [one for one in script.directives if one.read]
        for one in read:
            start = script.starts[one.line - 1]
            if (
                one.options
                and not one.rest
                and all(self._changed.get(option, "") is None for option in one.options)
            ):
                edits.replace((start, start + len(script.lines[one.line - 1]) + 1), "")
                continue
            for option in one.options:
                text = self._changed.get(option, "")
                if text is None:
                    before = script.text[: option.start].rstrip()
                    edits.replace((len(before), option.end), "")
                elif text:
                    edits.replace((option.start, option.end), text)
        last = read[-1].line
        lines = [*self._added, "", *behind.rstrip("\n").split("\n")]
        if last < len(script.lines) and script.lines[last].strip():
            lines.append("")
        edits.lines_after(script.starts[last - 1] + len(script.lines[last - 1]), "", *lines)


def widen(directives: Directives, nodes: int, gpus: int, cores: int | None) -> Iterator[str]:
    """Ask for `nodes` nodes of `gpus` GPUs, with one task on each; yield what there is to say.

    Args:
        cores: of a node; None where that is not known.
    """
    script = directives.script
    before = script.gpus() or 0
    factor = gpus // before if before and gpus % before == 0 else 1
    directives.put("nodes", str(nodes))
    directives.drop(*_TASKS)
    directives.put("ntasks-per-node", "1")
    if gpus:
        _put_gpus(directives, gpus)
    cpus = script.number("cpus-per-task")
    if cores is not None and gpus:
        directives.put("cpus-per-task", str(cores))
    elif cpus is not None and factor > 1:
        directives.put("cpus-per-task", str(cpus * factor))
        yield f"--cpus-per-task={cpus * factor}: as many for each GPU as before"
    elif cpus is None and script.asked("cpus-per-gpu") is None and gpus:
        yield "no --cpus-per-task: write how many cores a node has, or torchrun gets one"
    memory = _MEMORY.fullmatch(script.asked("mem") or "")
    if memory and int(memory[1]) and factor > 1:
        wide = f"{int(memory[1]) * factor}{memory[2]}"
        directives.put("mem", wide)
        yield f"--mem={wide} of a node: as much for each GPU as before"


def _put_gpus(directives: Directives, gpus: int) -> None:
    script = directives.script
    gres = script.asked("gres")
    asked = [name for name in _GPUS if script.option(name) is not None]
    holds = [name for name in asked if name != "gres" or "gpu" in (gres or "")]
    if not holds:  # the gres are of something else
        directives.put("gres", f"{gres},gpu:{gpus}" if gres else f"gpu:{gpus}")
        return
    name, *others = holds
    directives.drop(*others)
    value = script.asked(name) or ""
    if name == "gres":
        gpu = r"(?<![\w-])(gpu(?::[A-Za-z][\w.-]*)?)(?::\d+)?(?=,|$)"
        directives.put(name, re.sub(gpu, rf"\1:{gpus}", value))
    else:
        kind = value.rpartition(":")[0]
        directives.put(name, f"{kind}:{gpus}" if kind else str(gpus), "gpus-per-node")
