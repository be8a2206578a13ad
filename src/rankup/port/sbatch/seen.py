"""What the rules look at: a batch script, and what it starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...base.findings import Finding, Level
from ...base.text import clean
from .launches import TORCHRUN, Launch, launches
from .parsed import BatchScript
from .shell import Command


@dataclass(frozen=True)
class Seen:
    """A batch script with what its rules ask again and again."""

    script: BatchScript

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Programs that are started, one's own helpers (`python -c`, `pip`) left out."""
        return tuple(
            one for one in launches(self.script) if one.kind != "code" and not _helper(one)
        )

    def find(self, code: str, level: Level, line: int, message: str, todo: str) -> Finding:
        """A finding at a line of the script."""
        return Finding(
            code, level, f"{clean(str(self.script.path))}:{line}", clean(message), clean(todo)
        )

    def nodes(self, launch: Launch) -> int | None:
        """Nodes that a launch runs on; None where it cannot be told."""
        if launch.srun is None:
            return 1
        asked = _number(launch, "nodes")
        return self.script.nodes() if asked == "" else _whole(self.script.resolve(asked))

    def tasks(self, launch: Launch) -> int | None:
        """Tasks that srun starts on each node; None where it cannot be told."""
        if launch.srun is None:
            return 1
        if each := _number(launch, "ntasks-per-node"):
            return _whole(self.script.resolve(each))
        if total := _number(launch, "ntasks"):
            count, nodes = _whole(self.script.resolve(total)), self.nodes(launch)
            return None if not count or not nodes else max(1, count // nodes)
        return self.script.tasks_per_node()

    def ranks(self, launch: Launch) -> int | None:
        """Ranks that torchrun starts on a node; None where the node's GPUs decide, or unknown."""
        text = launch.option("nproc-per-node")
        return 1 if text is None else _whole(self.script.resolve(text))

    def wrapped(self, launch: Launch) -> bool:
        """Whether a launcher that is not srun spreads it: mpirun, or a function of the script."""
        functions = {one.function for one in self.script.commands if one.function}
        own = launch.command.function is not None or launch.command.name() in functions
        return own or launch.kind not in ("python", *TORCHRUN)

    def sets(self, name: str) -> Command | None:
        """The first command that sets a variable."""
        for command in self.script.commands:
            if any(word.text.startswith(f"{name}=") for word in command.words):
                return command
        return None


def _number(launch: Launch, name: str) -> str:
    found = [one.value or "" for one in launch.srun or () if one.name == name]
    return found[-1] if found else ""


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _helper(launch: Launch) -> bool:
    """A module run by `python -m` that trains nothing: pip, venv, a download."""
    words = launch.words
    if launch.script is not None or "-m" not in words:
        return False
    module = words[words.index("-m") + 1] if words.index("-m") + 1 < len(words) else ""
    return module.partition(".")[0] in ("pip", "venv", "ensurepip", "site", "compileall", "rankup")
