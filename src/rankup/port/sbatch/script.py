"""A batch script as `port` reads it: its variables, and what it starts, from its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from ...script.roles import Script
from ..batch import script as read_script
from ..batch.options import gpus_of
from ..batch.script import BASH
from ..batch.shell import Command, is_assignment
from .launches import Launch, launches

__all__ = ["BASH", "BatchScript", "load"]

_PLAIN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class BatchScript(read_script.BatchScript):
    """A batch script, with what its text says of the programs that it starts."""

    @cached_property
    def values(self) -> dict[str, str]:
        """Variables that are set to a plain text once, at the top."""
        found: dict[str, str | None] = {}
        for command in self.commands:
            words = command.words
            if words[0].text in ("export", "readonly", "declare"):
                words = tuple(word for word in words if is_assignment(word))
            for word in words if all(map(is_assignment, words)) else ():
                name, _, value = word.value.partition("=")
                plain = not (command.depth or word.live or value[:1] == "(" or name in found)
                found[name] = value if plain else None
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Python programs that are started; helpers (`python -c`, `pip`) are left out."""
        return tuple(launches(self.commands, self.functions))

    @cached_property
    def seen(self) -> list[Launch]:
        """The launches of which the script or module is known."""
        return [one for one in self.launches if one.script is not None or "-m" in one.words]

    @cached_property
    def training(self) -> list[Launch]:
        """The same; where they start several scripts, those that train."""
        if len({one.name for one in self.seen}) == 1:
            return self.seen
        known = ((one, self.understood(one.script or "")) for one in self.seen)
        return [one for one, role in known if role is not None and role.trains]

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions that the script defines."""
        return frozenset(one.function for one in self.commands if one.function)

    def understood(self, name: str) -> Script | None:
        """Return what a Python script does that the job would find; None without it."""
        return super().understood(self.resolve(name))

    def gpus(self) -> int | None:
        """Return the GPUs of a node that are asked for: 0 for none, None if unclear."""
        if (gres := self.asked("gres")) is not None and "gpu" in gres:
            return gpus_of(gres)
        for name, of in (("gpus-per-node", 1), ("gpus", self.nodes())):
            if (text := self.asked(name)) is not None:
                count = gpus_of(f"gpu:{text}")
                return None if count is None or not of or count % of else count // of
        if (text := self.asked("gpus-per-task")) is not None:
            count = gpus_of(f"gpu:{text}")
            tasks = self.tasks_per_node()
            return None if count is None or tasks is None else count * tasks
        return 0

    def nodes(self, launch: Launch | None = None) -> int | None:
        """Return the nodes of the job, or of a launch; None for a range or an unknown number."""
        if launch is not None:
            asked = "1" if launch.srun is None else launch.of_srun("nodes")
            return _whole(self.resolve(asked)) if asked else self.nodes()
        if self.asked("nodes") is None:
            tasks, each = self.number("ntasks"), self.number("ntasks-per-node")
            return -(-tasks // each) if tasks and each else 1
        return self.number("nodes")

    def tasks_per_node(self, launch: Launch | None = None) -> int | None:
        """Return the tasks that srun starts on each node; None where it cannot be told."""
        if launch is not None:
            if launch.srun is None:
                return 1
            if each := launch.of_srun("ntasks-per-node"):
                return _whole(self.resolve(each))
            if asked := launch.of_srun("ntasks"):
                count, nodes = _whole(self.resolve(asked)), self.nodes(launch)
                return max(1, count // nodes) if count and nodes else None
        if (given := self.number("ntasks-per-node")) is not None:
            return given
        total, nodes = self.number("ntasks"), self.nodes()
        if total is None:
            return 1
        return total // nodes if nodes and total % nodes == 0 else None

    def sets(self, name: str) -> Command | None:
        """Return the first command that sets a variable."""
        return next((one for one in self.commands if one.sets(name)), None)

    def resolve(self, text: str) -> str:
        """Return the text with the variables put in whose value is known; the others stay."""

        def put(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return self._slurm(name) or self.values.get(name) or match[0]

        return _PLAIN.sub(put, text)

    def offset(self, byte: int) -> int:
        """Return the offset of one of its bytes in the text."""
        return len(self.text.encode()[:byte].decode())

    def _slurm(self, name: str) -> str | None:
        known: dict[str, Callable[[], int | str | None]] = {
            "SLURM_SUBMIT_DIR": lambda: ".",
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS_PER_NODE": self.gpus,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
        }
        value = known[name]() if name in known else None
        return str(value) if value else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def load(path: Path) -> BatchScript:
    """Read a batch script.

    Raises:
        UserError: it is not there, not a file of text, or far too long or deep to be one.
    """
    found = read_script.load(path)
    return BatchScript(**{one.name: getattr(found, one.name) for one in fields(found)})
