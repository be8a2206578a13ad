"""A batch script, read: its directives, its commands, its variables, what git left in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import UserError
from ...base.files import open_regular
from . import options
from .options import Option
from .shell import Command, commands
from .tokens import UnreadableError, is_assignment

LARGEST = 256 * 1024  # bytes; what people write is a hundredth of it
SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".batch", ".sub")
_CONFLICT = re.compile(r"(<{7}|>{7}|\|{7})( |$)|={7}$")
_MEANT = re.compile(r"#SBATCH[ \t]+(?=[^\s#])|\s*#+\s*SBATCH\b\s*(?=-)", re.IGNORECASE)
_PLAIN = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Directive:
    """A line `#SBATCH …`, or one that was meant to be.

    Attributes:
        marker: what stands in the place of `#SBATCH`, as it is written.
        read: sbatch reads it: it begins with exactly `#SBATCH`, before the first command.
        fault: why its words cannot be told apart; empty where they can.
    """

    line: int
    text: str
    marker: str
    read: bool
    options: tuple[Option, ...]
    rest: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class BatchScript:
    """What stands in a batch script.

    Attributes:
        conflicts: lines with git's conflict markers; the commands are not read then.
        first: line of the first command, behind which sbatch reads no directive.
        unreadable: why the commands cannot be read, and the line; None where they can.
        values: of variables that are set to a plain text once, at the top.
    """

    path: Path
    text: str
    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    conflicts: tuple[int, ...]
    first: int | None
    commands: tuple[Command, ...] = ()
    unreadable: tuple[int, str] | None = None
    values: dict[str, str] = field(default_factory=dict)

    def asked(self, *names: str) -> str | None:
        """The value of the last directive with one of these long names; None without one."""
        found = None
        for directive in self.directives:
            for option in directive.options if directive.read else ():
                if option.name in names:
                    found = option.value or ""
        return found

    def number(self, name: str) -> int | None:
        """The same as a whole number; None where there is none, or no plain one."""
        text = (self.asked(name) or "").strip()
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None

    def gpus(self) -> int | None:
        """GPUs of a node that are asked for: 0 without a word about them, None if unclear."""
        if (gres := self.asked("gres")) is not None and "gpu" in gres:
            return options.gpus_of(gres)
        for name, of in (("gpus-per-node", 1), ("gpus", self.nodes())):
            if (text := self.asked(name)) is not None:
                count = options.gpus_of(f"gpu:{text}")
                return None if count is None or not of or count % of else count // of
        if (text := self.asked("gpus-per-task")) is not None:
            count = options.gpus_of(f"gpu:{text}")
            tasks = self.tasks_per_node()
            return None if count is None or tasks is None else count * tasks
        return 0

    def nodes(self) -> int | None:
        """Nodes; 1 where nothing is said, None for a range."""
        if self.asked("nodes") is None:
            tasks, each = self.number("ntasks"), self.number("ntasks-per-node")
            return -(-tasks // each) if tasks and each else 1
        return self.number("nodes")

    def tasks_per_node(self) -> int | None:
        """Tasks that a plain `srun` starts on a node; None where it cannot be told."""
        if (each := self.number("ntasks-per-node")) is not None:
            return each
        total, nodes = self.number("ntasks"), self.nodes()
        if total is None:
            return 1
        return total // nodes if nodes and total % nodes == 0 else None

    def resolve(self, text: str) -> str:
        """Text with the variables put in whose value is known; the others stay."""

        def put(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return self._slurm(name) or self.values.get(name) or match[0]

        return _PLAIN.sub(put, text)

    def _slurm(self, name: str) -> str | None:
        known = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_GPUS_ON_NODE": self.gpus,
            "SLURM_GPUS_PER_NODE": self.gpus,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
        }
        value = known[name]() if name in known else None
        return str(value) if value else None


def load(path: Path) -> BatchScript:
    """Read a batch script.

    Raises:
        UserError: it is not there, not a file of text, or far too long to be one.
    """
    try:
        with open_regular(path) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}; name a batch script") from None
    if len(data) > LARGEST:
        raise UserError(f"{path} is longer than {LARGEST // 1024} KiB; that is no batch script")
    if b"\0" in data:
        raise UserError(f"{path} is not text; name a batch script, or a Python script (.py)")
    try:
        return parse(path, data.decode())
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8; store it as UTF-8 text") from None


def is_batch(path: Path) -> bool:
    """Whether a file is a batch script: by its name, or by `#SBATCH` in a shell script."""
    if path.suffix in (".py", ".ipynb", ".pyw"):
        return False
    if path.suffix in SUFFIXES:
        return True
    try:
        with open_regular(path) as file:
            head = file.read(8192)
    except OSError:
        return False
    return head.startswith(b"#!") and b"SBATCH" in head


def parse(path: Path, text: str) -> BatchScript:
    """The parts of a batch script; `path` is only kept."""
    lines = tuple(text.split("\n"))  # a CR at their end is a finding
    conflicts = tuple(
        number for number, line in enumerate(lines, 1) if _CONFLICT.match(line.rstrip("\r"))
    )
    found: list[Command] = []
    unreadable = None
    if not conflicts:
        try:
            found = commands(text.replace("\r\n", "\n"))
        except UnreadableError as error:
            unreadable = text.count("\n", 0, error.at) + 1, str(error)
    first = found[0].line if found else _first(lines)
    directives = tuple(
        _directive(number, line, match.group().strip(), match.end(), first)
        for number, line in enumerate(lines, 1)
        if (match := _MEANT.match(line))
    )
    return BatchScript(
        *(path, text, lines, directives, conflicts, first, tuple(found), unreadable),
        _values(found),
    )


def _first(lines: tuple[str, ...]) -> int | None:
    """The first line that is neither empty nor a comment."""
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#") and not _CONFLICT.match(line):
            return number
    return None


def _directive(line: int, text: str, marker: str, end: int, first: int | None) -> Directive:
    rest = text[end:].rstrip("\r")
    exact = text.startswith("#SBATCH") and text[7:8] in (" ", "\t", "-")
    read = exact and (first is None or line < first)
    try:
        found, left = options.read(options.split(rest))
    except ValueError as error:
        return Directive(line, text, marker, read, (), (), str(error).lower())
    shown = marker if text.lstrip() == text else text[: text.index("#")] + marker
    while left:  # an option may follow what is none
        more, left_now = options.read(left[1:])
        found += more
        if not more:
            break
        left = left_now
    return Directive(line, text, shown, read, tuple(found), tuple(left))


def _values(found: list[Command]) -> dict[str, str]:
    """Variables with one plain value, set at the top of the script."""
    seen: dict[str, str | None] = {}
    for command in found:
        words = command.words
        if words[0].text in ("export", "readonly", "declare"):
            words = tuple(word for word in words if is_assignment(word))
        if not all(is_assignment(word) for word in words):
            continue
        for word in words:
            name, _, value = word.value.partition("=")
            plain = not command.depth and not word.live and value[:1] != "(" and name not in seen
            seen[name] = value if plain else None
    return {name: value for name, value in seen.items() if value is not None}
