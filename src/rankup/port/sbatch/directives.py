"""Directives of a job on one GPU made those of a job on many nodes, every other word kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .options import SHORT
from .script import BatchScript

_LETTERS = {name: letter for letter, name in SHORT.items()}
_MEMORY = re.compile(r"([0-9]{1,9})([KMGT]?B?)", re.IGNORECASE)
_TASKS = ("ntasks", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core")
_GPUS = ("gres", "gpus-per-node", "gpus", "gpus-per-task")


@dataclass
class Lines:
    """The lines of a script while they are changed; a line that goes is None."""

    script: BatchScript
    lines: list[str | None] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = list(self.script.lines)

    def put(self, name: str, value: str, becomes: str | None = None) -> None:
        """Give an option a value, where it stands or in a line of its own."""
        place = self._last(name)
        if place is None:
            self.added.append(f"#SBATCH --{name}={value}")
            return
        line = self.lines[place] or ""
        found = _search(name, line)
        assert found
        option = found["option"] if becomes is None else f" --{becomes}="
        self.lines[place] = f"{line[: found.start()]}{option}{value}{line[found.end() :]}"

    def drop(self, name: str) -> bool:
        """Take an option away, with its line where nothing else stands in it."""
        dropped = False
        while (place := self._last(name)) is not None:
            line = self.lines[place] or ""
            found = _search(name, line)
            assert found
            rest = line[: found.start()] + line[found.end() :]
            self.lines[place] = rest if re.match(r"#SBATCH\s+[^#\s]", rest) else None
            dropped = True
        return dropped

    def _last(self, name: str) -> int | None:
        for directive in reversed(self.script.directives):
            line = self.lines[directive.line - 1] if directive.read else None
            if line is not None and _search(name, line):
                return directive.line - 1
        return None


def _search(name: str, line: str) -> re.Match[str] | None:
    """Return the option and its value in a directive, a comment behind it left alone."""
    letter = _LETTERS.get(name)
    short = rf"|\s-{letter}[ =]?" if letter else ""
    option = rf"(?P<option>\s--{name}(?:=|\s+){short})(?P<value>(?![-#])[^\s#]+)"
    comment = line.find("#", 1)
    return re.compile(option).search(line, 0, comment if comment > 0 else len(line))


def widen(lines: Lines, nodes: int, gpus: int, cores: int | None) -> list[str]:
    """Ask for `nodes` nodes of `gpus` GPUs, with one task on each; what there is to say of it.

    Args:
        cores: of a node; None where that is not known.
    """
    script = lines.script
    before = script.gpus() or 0
    factor = gpus // before if before and gpus % before == 0 else 1
    notes: list[str] = []
    lines.put("nodes", str(nodes))
    for name in _TASKS:
        lines.drop(name)
    lines.put("ntasks-per-node", "1")
    if gpus:
        _put_gpus(lines, gpus)
    cpus = script.number("cpus-per-task")
    if cores is not None and gpus:
        lines.put("cpus-per-task", str(cores))
    elif cpus is not None and factor > 1:
        lines.put("cpus-per-task", str(cpus * factor))
        notes.append(f"--cpus-per-task={cpus * factor}: as many for each GPU as before")
    elif cpus is None and script.asked("cpus-per-gpu") is None and gpus:
        notes.append("no --cpus-per-task: write how many cores a node has, or torchrun gets one")
    memory = _MEMORY.fullmatch(script.asked("mem") or "")
    if memory and int(memory[1]) and factor > 1:
        wide = f"{int(memory[1]) * factor}{memory[2]}"
        lines.put("mem", wide)
        notes.append(f"--mem={wide} of a node: as much for each GPU as before")
    return notes


def _put_gpus(lines: Lines, gpus: int) -> None:
    script = lines.script
    asked = [name for name in _GPUS if script.asked(name) is not None]
    holds = [name for name in asked if name != "gres" or "gpu" in (script.asked("gres") or "")]
    if not holds:
        if "gres" in asked:  # of something else
            lines.put("gres", f"{script.asked('gres')},gpu:{gpus}")
        else:
            lines.put("gres", f"gpu:{gpus}")
        return
    name, *others = holds
    value = script.asked(name) or ""
    if name == "gres":
        lines.put(
            name,
            re.sub(r"(?<![\w-])(gpu(?::[A-Za-z][\w.-]*)?)(?::\d+)?(?=,|$)", rf"\1:{gpus}", value),
        )
    else:
        kind = value.rpartition(":")[0]
        lines.put(name, f"{kind}:{gpus}" if kind else str(gpus), "gpus-per-node")
    for other in others:
        lines.drop(other)
